"""Processes that outlive their starter: started with a record, recognised again, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from hiddenfeed.errors import PermanentError
from standalone import launch

_POLL_SECONDS = 0.05
_KILL_SECONDS = 10.0
_LAST_LINES = 4


class Child(subprocess.Popen[bytes]):
    """A process started here that may outlive this one: to forget it is no mistake, so nobody complains."""

    def __del__(self) -> None:
        pass


class ProcessRecord(msgspec.Struct, frozen=True):
    """One process, told from any later process of the same pid by its start time."""

    pid: int
    started: str

    def alive(self) -> bool:
        """Whether exactly this process still runs."""
        return launch.start_time(self.pid) == self.started


def record_of(pid: int) -> ProcessRecord | None:
    """The record of a running process; None if there is none of this pid."""
    started = launch.start_time(pid)
    return ProcessRecord(pid, started) if started else None


def read_record(path: Path) -> ProcessRecord | None:
    """The living process recorded at `path`; None if nothing was recorded or it has ended."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=ProcessRecord)
    except (FileNotFoundError, msgspec.MsgspecError):
        # Half a record cannot be: it is renamed into place. Anything else there is nobody's process.
        return None
    return record if record.alive() else None


def start(
    record_path: Path,
    command: Sequence[str],
    *,
    log: Path,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    bound: bool = False,
) -> Child:
    """Start `command` in a session of its own, recorded at `record_path`, its output appended to `log`.

    A session of its own, because Ctrl-C on the terminal must reach the starter alone. A `bound`
    process is told to end (SIGTERM) when its starter is killed; only Linux does that.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    binding = ["--bound", str(os.getpid())] if bound else []
    with log.open("ab") as output:
        return Child(
            [sys.executable, "-E", "-S", launch.__file__, *binding, str(record_path.absolute()), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=environ,
            start_new_session=True,
        )


def stop(
    record: ProcessRecord,
    grace_seconds: float,
    child: Child | None = None,
    *,
    ask: bool = True,
) -> bool:
    """SIGTERM, then SIGKILL after `grace_seconds`; True if it ended by itself. No error if it is gone.

    `child` is the process's handle where this process started it, so that it is waited for as well.
    Without `ask` the SIGTERM has been sent already.
    """
    if ask:
        interrupt(record)
    gentle = wait_until(lambda: not record.alive(), grace_seconds)
    if not gentle:
        _signal(record, signal.SIGKILL)
        if not wait_until(lambda: not record.alive(), _KILL_SECONDS):
            raise PermanentError(f"process {record.pid} does not end even when killed")
    if child is not None:
        child.wait()
    return gentle


def interrupt(record: ProcessRecord) -> None:
    """Ask the process to end (SIGTERM) without waiting; no error if it is gone."""
    _signal(record, signal.SIGTERM)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll an outside fact until it holds; False once `seconds` have passed without."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def last_lines(log: Path, count: int = _LAST_LINES) -> str:
    """The last lines of a log that say something, in one line; empty if there is no log."""
    try:
        size = log.stat().st_size
        with log.open("rb") as file:
            file.seek(max(0, size - 16384))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return " / ".join([line.strip() for line in text.splitlines() if line.strip()][-count:])


def _signal(record: ProcessRecord, number: signal.Signals) -> bool:
    """Send a signal to exactly this process; False if it does not run any more."""
    if not record.alive():
        return False
    try:
        os.kill(record.pid, number)
    except ProcessLookupError:
        return False
    return True
