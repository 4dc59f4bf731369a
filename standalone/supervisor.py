"""Keeps the processes of a run alive: starts, watches, restarts and ends them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from standalone import process, restart
from standalone.home import Home
from standalone.process import Child, ProcessRecord
from standalone.restart import Ended, GiveUp
from standalone.roles import Role

_ERROR = "error: "
_TAIL_BYTES = 16 * 1024


@dataclass
class _Watched:
    """A role and its present process, if it has one."""

    role: Role
    child: Child | None = None
    started_at: float = 0.0
    log_start: int = 0
    quick_ends: int = 0
    restart_at: float | None = None
    restarts: int = 0


class Supervisor:
    """The roles of one runner. Not for several threads."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._watched: dict[str, _Watched] = {}
        #: For people: the last unexpected end, until the role has settled again.
        self.trouble = ""

    def start(self, role: Role) -> None:
        """Start a role and watch it from now on."""
        watched = self._watched[role.name] = _Watched(role)
        self._launch(watched)

    def running(self, name: str) -> bool:
        """Whether the role's process runs now."""
        watched = self._watched.get(name)
        return watched is not None and watched.child is not None and watched.child.poll() is None

    @property
    def restarts(self) -> int:
        """How often a role had to be started again."""
        return sum(watched.restarts for watched in self._watched.values())

    def finished(self, name: str) -> bool:
        """Whether the role's process ended by itself with exit code 0."""
        watched = self._watched.get(name)
        return watched is not None and watched.child is not None and watched.child.poll() == 0

    def output(self, name: str) -> list[str]:
        """Lines that the role has written since its present process was started."""
        watched = self._watched.get(name)
        return self._lines(watched) if watched else []

    def tails(self) -> dict[str, list[str]]:
        """The last lines that each role has written, by name; the first of them may be cut."""
        return {name: self._lines(watched, _TAIL_BYTES) for name, watched in self._watched.items()}

    def step(self, may_finish: Iterable[str] = (), *, patient: bool = True) -> GiveUp | None:
        """Look at every role once; restart those that ended and are due. A GiveUp ends the run.

        Roles in `may_finish` may end with exit code 0; all others are to run until they are stopped.
        `patient` as in `restart.decide`.
        """
        now = time.monotonic()
        for watched in self._watched.values():
            if watched.child is None:
                if watched.restart_at is not None and now >= watched.restart_at:
                    watched.restarts += 1
                    self._launch(watched)
                continue
            code = watched.child.poll()
            if code is None or (code == 0 and watched.role.name in may_finish):
                if now - watched.started_at > restart.SETTLED_SECONDS and self.trouble.startswith(
                    watched.role.name
                ):
                    self.trouble = ""
                continue
            decision = restart.decide(self._ended(watched, code, now), watched.quick_ends, patient=patient)
            if isinstance(decision, GiveUp):
                return decision
            watched.child = None
            watched.quick_ends, watched.restart_at = decision.quick_ends, now + decision.after_seconds
        return None

    def stop(self, names: Iterable[str], grace_seconds: float) -> None:
        """End these roles: SIGTERM to all, SIGKILL to those that are left after the grace."""
        chosen = [self._watched.pop(name) for name in names if name in self._watched]
        living: list[tuple[ProcessRecord, Child]] = []
        for watched in chosen:
            if watched.child is not None and (record := process.record_of(watched.child.pid)):
                process.interrupt(record)
                living.append((record, watched.child))
        deadline = time.monotonic() + grace_seconds
        for record, child in living:
            process.stop(record, max(0.0, deadline - time.monotonic()), child, ask=False)

    def stop_all(self, grace_seconds: float) -> None:
        """End every role."""
        self.stop(list(self._watched), grace_seconds)

    def _launch(self, watched: _Watched) -> None:
        role = watched.role
        log = self._home.log_path(role.name)
        watched.log_start = log.stat().st_size if log.exists() else 0
        watched.child = process.start(
            self._home.record_path(role.name), role.command, log=log, environ=role.environ, bound=True
        )
        watched.started_at, watched.restart_at = time.monotonic(), None

    def _ended(self, watched: _Watched, code: int, now: float) -> Ended:
        lines = self._lines(watched)
        sentences = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
        ended = Ended(
            role=watched.role.name,
            code=code,
            ran_seconds=now - watched.started_at,
            sentence=sentences[-1] if sentences else "",
            last_lines=" / ".join([line.strip() for line in lines if line.strip()][-2:]),
        )
        self.trouble = f"{ended.role} ended ({restart.shown_code(code)}) and is started again"
        if ended.sentence:
            self.trouble += f": {ended.sentence}"
        return ended

    def _lines(self, watched: _Watched, most_bytes: int | None = None) -> list[str]:
        log = self._home.log_path(watched.role.name)
        if not log.exists():
            return []
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(watched.log_start if most_bytes is None else max(watched.log_start, size - most_bytes))
            return file.read().decode(errors="replace").splitlines()
