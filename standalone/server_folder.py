"""The folder a server lives in: its lock, its record, its remembered ports and secrets, its log."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from hiddenfeed.errors import ConfigError, PermanentError, TransientError
from standalone import launch, process
from standalone.process import Child, ProcessRecord

MemoryT = TypeVar("MemoryT", bound=msgspec.Struct)


class ServerFolder:
    """`<folder>/{pid, server.json, log, data/}`; readable by its owner alone, because it holds secrets."""

    def __init__(self, folder: Path, title: str) -> None:
        self.path, self.title = folder.absolute(), title
        self.record_path = self.path / "pid"
        self.memory_path = self.path / "server.json"
        self.log = self.path / "log"
        self.data = self.path / "data"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder against others who start or stop the same server. Makes the folder."""
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o700)
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(
                f"the folder {self.path} of {self.title} cannot be used: {error.strerror}"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def remember(self, memory: msgspec.Struct) -> None:
        """Keep ports and secrets for the next start, whole or not at all, for the owner's eyes only."""
        write_private(self.memory_path, msgspec.json.encode(memory))

    def recall(self, kind: type[MemoryT]) -> MemoryT | None:
        """What was remembered; None before the first start."""
        try:
            return msgspec.json.decode(self.memory_path.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise PermanentError(f"{self.memory_path} is damaged: {error}") from None

    def running(self) -> ProcessRecord | None:
        """The server's process if it runs."""
        return process.read_record(self.record_path)

    def may_run_on(self, wanted: int | None, running: int, *, may_move: bool) -> None:
        """Raise ConfigError if a server that others use would have to move to another port."""
        if wanted not in (None, running) and not may_move:
            raise ConfigError(
                f"{self.title} of {self.path.parent} is in use by others on port {running}; "
                f"leave out port {wanted}, or end them first"
            )

    def start(
        self, command: list[str], ready: Callable[[], bool], seconds: float
    ) -> tuple[ProcessRecord, Child]:
        """Start the server and wait until `ready` says so.

        Raises PermanentError with the last lines of its log if it ends before, TransientError if it
        is not ready in time (it is stopped then).
        """
        log_start = self.log.stat().st_size if self.log.exists() else 0
        child = process.start(self.record_path, command, log=self.log, cwd=self.path)
        in_time = process.wait_until(lambda: child.poll() is not None or ready(), seconds)
        record = self.running()
        if child.poll() is not None or record is None:
            raise PermanentError(f"{self.title} ended at its start ({self._why(child.wait(), log_start)})")
        if not in_time:
            process.stop(record, 2, child)
            raise TransientError(
                f"{self.title} was not ready after {seconds:.0f} s ({self._why(None, log_start)})"
            )
        return record, child

    def _why(self, code: int | None, log_start: int) -> str:
        if code == launch.ALREADY_RUNNING:
            return f"another one is running in {self.path}"
        said = process.last_lines(self.log) if self.log.stat().st_size > log_start else ""
        exit_code = "" if code is None else f"exit code {code}; "
        return (
            f"{exit_code}its log {self.log} ends: {said}"
            if said
            else f"{exit_code}its log {self.log} is empty"
        )


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    part.replace(path)
