"""The roles of a site as processes, under a supervisor that starts again what ended, as Compose does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: In the environment of every process of a site, with the site's folder: how strays are found.
MARK = "HFFAULTS_SITE"
_LOOK_SECONDS = 0.05
_RESTART_SECONDS = 0.3
_GRACE_SECONDS = 20.0
#: Ends that follow from the signals that are sent here: by the signal itself, in good order, like Ctrl-C.
_ASKED_FOR = frozenset({0, 130, -signal.SIGKILL, -signal.SIGTERM})


@dataclass(frozen=True)
class End:
    """How one process ended."""

    member: str
    code: int
    #: Whether a signal had been sent to it.
    struck: bool

    def is_as_asked(self) -> bool:
        """False for an end that no signal accounts for."""
        return self.struck and self.code in _ASKED_FOR

    def __str__(self) -> str:
        return f"{self.member} ended by itself with {self.code}"


@dataclass
class _Member:
    name: str
    command: list[str]
    environ: dict[str, str]
    #: A member with an end: not started again once it has ended with 0.
    ends: bool
    process: subprocess.Popen[bytes] | None = None
    struck: bool = False
    start_at: float = 0.0
    done: bool = False
    starts: int = 0


@dataclass
class Fleet:
    """Members by name. Any thread may call any method; a thread of the fleet's own does the restarts."""

    folder: Path
    environ: Mapping[str, str]
    ends: list[End] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fleet")
        self._thread.start()

    def enlist(
        self,
        name: str,
        role: str,
        *arguments: str,
        ends: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Start `python -m role arguments` and keep it going, with `ends` until it has ended with 0."""
        command = [sys.executable, "-m", role, *arguments]
        member = _Member(name, command, {**self.environ, **(environ or {}), MARK: str(self.folder)}, ends)
        with self._lock:
            assert name not in self._members
            self._members[name] = member
            self._start(member)

    def names(self, role: str = "") -> list[str]:
        """Members whose name starts with `role` and whose process runs, in the order of their enlistment."""
        with self._lock:
            return [
                name for name, member in self._members.items() if name.startswith(role) and member.process
            ]

    def strike(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the member's process, if it has one just now."""
        with self._lock:
            member = self._members[name]
            if member.process is not None and member.process.poll() is None:
                member.struck |= number not in (signal.SIGSTOP, signal.SIGCONT)
                member.process.send_signal(number)

    def is_done(self, name: str) -> bool:
        """Whether a member with an end has come to it."""
        with self._lock:
            return self._members[name].done

    def starts(self, name: str) -> int:
        """How many processes the member has had."""
        with self._lock:
            return self._members[name].starts

    def pids(self) -> set[int]:
        """Processes that run now, or were not seen to end yet."""
        with self._lock:
            return {member.process.pid for member in self._members.values() if member.process is not None}

    def dismiss(self, names: Iterable[str]) -> list[str]:
        """End members: SIGTERM, and SIGKILL to those that ignore it; returns a sentence for each bad end."""
        with self._lock:
            leaving = [self._members.pop(name) for name in names if name in self._members]
        living = [member for member in leaving if member.process is not None]
        for member in living:
            assert member.process is not None
            member.process.send_signal(signal.SIGTERM)
            member.process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + _GRACE_SECONDS
        return [sentence for member in living if (sentence := _end(member, deadline))]

    def close(self) -> list[str]:
        """End everybody; returns a sentence for each bad end."""
        self._closed.set()
        self._thread.join()
        return self.dismiss(list(self._members))

    def log(self, name: str) -> Path:
        """Where a member writes."""
        return self.folder / "logs" / f"{name}.log"

    def _start(self, member: _Member) -> None:
        log = self.log(member.name)
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as output:
            member.process = subprocess.Popen(
                member.command,
                cwd=ROOT,
                env=member.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the driver alone.
                start_new_session=True,
            )
        member.struck = False
        member.starts += 1

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            with self._lock:
                for member in self._members.values():
                    self._look_at(member)

    def _look_at(self, member: _Member) -> None:
        if member.process is None:
            if not member.done and time.monotonic() >= member.start_at:
                self._start(member)
            return
        code = member.process.poll()
        if code is None:
            return
        member.process = None
        member.start_at = time.monotonic() + _RESTART_SECONDS
        member.done = member.ends and code == 0
        if not member.done:
            self.ends.append(End(member.name, code, member.struck))


def _end(member: _Member, deadline: float) -> str:
    assert member.process is not None
    try:
        code = member.process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        member.process.kill()
        member.process.wait()
        return f"{member.name} had to be killed: it did not end within {_GRACE_SECONDS:.0f} s of SIGTERM"
    return "" if code in _ASKED_FOR else f"{member.name} ended with {code} when told to stop"


def processes_of(folder: Path) -> set[int]:
    """Processes of the site in `folder` that run, whoever started them; empty where there is no /proc."""
    mark = f"{MARK}={folder}".encode()
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = entry.read_bytes().split(b"\0")
        except OSError:
            continue  # ended meanwhile, or another user's
        if mark in variables and int(entry.parent.name) != os.getpid():
            found.add(int(entry.parent.name))
    return found
