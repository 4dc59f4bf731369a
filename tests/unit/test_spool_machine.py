"""The spool against a model of it: whatever happens in whatever order, it counts right and stays below its cap."""

from __future__ import annotations

import os
import shutil
import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from common.part_file import PartFile
from common.settings.catalogue import SpoolSettings
from common.spool import Spool

_CAP = 1 << 20


class SpoolMachine(RuleBasedStateMachine):
    """Writers that reserve, publish, give up and die; uploaders that remove; a sweeper."""

    parts = Bundle("parts")
    published = Bundle("published")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="spool-")
        self.spool = Spool(SpoolSettings(spool_dir=self.folder, spool_cap_bytes=_CAP, spool_free_bytes=0))
        self.open_parts: dict[str, PartFile] = {}
        self.writing: dict[str, int] = {}
        self.dead: dict[str, int] = {}
        self.files: dict[str, int] = {}
        self.count = 0

    def teardown(self) -> None:
        """Remove the folder; descriptors of living parts are closed by `discard`."""
        for part in self.open_parts.values():
            part.discard()
        shutil.rmtree(self.folder)

    @property
    def held(self) -> int:
        return sum(self.writing.values()) + sum(self.dead.values()) + sum(self.files.values())

    @rule(target=parts, size=st.integers(1, _CAP), run=st.sampled_from(["run-1", "run-2"]))
    def reserve(self, size: int, run: str) -> object:
        self.count += 1
        part = self.spool.reserve(run, self.count, "t", size)
        assert (part is not None) == (self.held + size <= _CAP)
        if part is None:
            return multiple()
        name = f"{run}/{part.path.name}"
        self.writing[name] = size
        self.open_parts[name] = part
        return name

    @rule(target=published, name=consumes(parts))
    def publish(self, name: str) -> str:
        relative = self.open_parts.pop(name).publish()
        self.files[relative] = self.writing.pop(name)
        return relative

    @rule(name=consumes(parts))
    def discard(self, name: str) -> None:
        self.open_parts.pop(name).discard()
        del self.writing[name]

    @rule(name=consumes(parts))
    def die(self, name: str) -> None:
        os.close(self.open_parts.pop(name).fd)
        self.dead[name] = self.writing.pop(name)

    @rule(relative=published)
    def remove(self, relative: str) -> None:
        assert self.spool.remove(relative) == (self.files.pop(relative, None) is not None)

    @rule()
    def sweep(self) -> None:
        assert sorted(self.spool.sweep()) == sorted(self.dead)
        self.dead.clear()

    @invariant()
    def counts_are_right(self) -> None:
        usage = self.spool.usage()
        assert usage.bytes == sum(self.files.values())
        assert usage.files == len(self.files)
        assert usage.part_bytes == sum(self.writing.values()) + sum(self.dead.values())
        assert usage.bytes + usage.part_bytes <= _CAP
        assert {file.path: file.size_bytes for file in self.spool.files()} == self.files


TestSpoolMachine = SpoolMachine.TestCase
TestSpoolMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
