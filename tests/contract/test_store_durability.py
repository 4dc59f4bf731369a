"""A store in a folder survives a power cut: in which order bytes, names and folders become durable."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hiddenfeed.checksum import checksum_of
from hiddenfeed.store import PutOutcome, Store, open_store

KEY = "run-1/batches/000000.safetensors"
DATA = os.urandom(600_000)

#: (what was done, path relative to the store's root; a temporary file is called `temporary`)
Step = tuple[str, str]


class Recorder:
    """What a process asks of its file system, in order; everything is done as well."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[Step] = []
        self._root = root
        for name in ("write", "fsync", "link", "replace", "mkdir"):
            monkeypatch.setattr(os, name, self._recording(name, getattr(os, name)))

    def _recording(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def recording(what: int | str | Path, *more: Any, **named: Any) -> Any:
            done = real(what, *more, **named)
            if isinstance(what, int):
                path = Path(f"/proc/self/fd/{what}").readlink()
            else:
                path = Path(what if name == "mkdir" else more[0])
            if path.is_relative_to(self._root):
                self.steps.append((name, self._told(path)))
            return done

        return recording

    def _told(self, path: Path) -> str:
        relative = path.relative_to(self._root)
        return "temporary" if relative.parts[:1] == (".tmp",) and len(relative.parts) > 1 else str(relative)

    def last(self, step: Step) -> int:
        """When it was done last; -1 if never."""
        return max((number for number, each in enumerate(self.steps) if each == step), default=-1)

    def assert_durable(self, publish: Step) -> None:
        """The object got its name by `publish`, after its bytes were durable and before its folder was."""
        written, synced = self.last(("write", "temporary")), self.last(("fsync", "temporary"))
        published = self.last(publish)
        named = self.last(("fsync", str(Path(publish[1]).parent)))
        assert -1 < written < synced < published < named, self.steps
        for made in [path for what, path in self.steps if what == "mkdir"]:
            parent = str(Path(made).parent)
            assert self.last(("mkdir", made)) < self.last(("fsync", parent)), f"{made} in {self.steps}"


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    (tmp_path / "store").mkdir()
    return Recorder(tmp_path / "store", monkeypatch)


@pytest.fixture
def store(tmp_path: Path, recorder: Recorder) -> Store:
    return open_store(str(tmp_path / "store"))


def put(store: Store, tmp_path: Path) -> PutOutcome:
    path = tmp_path / "file.bin"
    path.write_bytes(DATA)
    return store.put_file(KEY, path, size_bytes=len(DATA), checksum=checksum_of(DATA))


def test_a_file_is_durable_before_it_is_seen_and_its_name_before_it_is_stored(
    store: Store, recorder: Recorder, tmp_path: Path
) -> None:
    assert put(store, tmp_path) is PutOutcome.STORED
    recorder.assert_durable(("link", KEY))
    assert {path for what, path in recorder.steps if what == "mkdir"} == {".tmp", "run-1", "run-1/batches"}


@pytest.mark.parametrize(("if_absent", "publish"), [(True, "link"), (False, "replace")])
def test_a_document_is_durable_too(store: Store, recorder: Recorder, if_absent: bool, publish: str) -> None:
    store.write("run-1/run.json", b"{}", if_absent=if_absent)
    recorder.assert_durable((publish, "run-1/run.json"))


def test_what_another_stored_is_made_durable_before_it_is_relied_on(
    store: Store, recorder: Recorder, tmp_path: Path
) -> None:
    """Its writer may have died between the link and the folder's fsync, and our file goes because of it."""
    (tmp_path / "store" / "run-1" / "batches").mkdir(parents=True)
    (tmp_path / "store" / KEY).write_bytes(DATA)
    recorder.steps.clear()
    assert put(store, tmp_path) is PutOutcome.ALREADY_THERE
    assert set(recorder.steps) == {
        ("fsync", KEY),
        ("fsync", "run-1/batches"),
        ("fsync", "run-1"),
        ("fsync", "."),
    }


def test_a_folder_that_was_removed_is_made_again(store: Store, tmp_path: Path) -> None:
    assert put(store, tmp_path) is PutOutcome.STORED
    store.delete(KEY)
    (tmp_path / "store" / "run-1" / "batches").rmdir()
    assert put(store, tmp_path) is PutOutcome.STORED
