"""The folder of one single-machine installation: its lock, servers, spool, logs and running roles."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hiddenfeed.errors import ConfigError
from standalone import process

_LEFTOVER_GRACE_SECONDS = 5.0


class Home:
    """`<home>/{redis, s3, spool, cache, logs, roles}`. Used by one runner at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.logs = self.path / "logs"
        self.roles = self.path / "roles"
        self.spool = self.path / "spool"
        self.cache = self.path / "cache"
        #: What a shell needs to reach the servers; holds secrets.
        self.environment_file = self.path / "env.sh"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the home; raises ConfigError naming who holds it, or why it cannot be used."""
        try:
            for folder in (self.path, self.logs, self.roles):
                folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(f"the home {self.path} cannot be used: {error.strerror}") from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(lock, 20, 0).decode(errors="replace").strip()
                raise ConfigError(
                    f"the home {self.path} is in use by process {holder}; wait for it, stop it or give another --home"
                ) from None
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(lock)

    def record_path(self, role: str) -> Path:
        """Where the process of a role is recorded."""
        return self.roles / role

    def log_path(self, role: str) -> Path:
        """Where a role writes."""
        return self.logs / f"{role}.log"

    def stop_leftovers(self) -> list[str]:
        """End role processes that outlived an earlier runner; returns their names. Call with the home held."""
        found = {
            path.name: process.read_record(path) for path in sorted(self.roles.iterdir()) if not path.suffix
        }
        living = {name: record for name, record in found.items() if record}
        for record in living.values():
            process.interrupt(record)
        for record in living.values():
            process.stop(record, _LEFTOVER_GRACE_SECONDS)
        return list(living)
