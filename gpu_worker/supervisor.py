"""Keeps a fleet of worker processes alive: starts, watches, restarts, and passes on the wish to end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event
from types import FrameType

from common.logs import get_logger
from gpu_worker.fleet import Again, EndAll, Worker, decide, exit_code

log = get_logger("supervisor")

_LOOK_SECONDS = 0.1
_PR_SET_PDEATHSIG = 1


@dataclass
class _Watched:
    """A worker and its present process, if it has one."""

    worker: Worker
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    quick_ends: int = 0
    restart_at: float | None = None
    #: Exit code of the process that ended last.
    code: int = 0


@dataclass
class Supervisor:
    """Runs workers until they are told to end, or until a setting proves wrong."""

    workers: Sequence[Worker]
    #: What a worker's arguments are appended to.
    command: Sequence[str] = (sys.executable, "-m", "gpu_worker")
    _told: int = field(default=0, init=False)
    _news: Event = field(default_factory=Event, init=False)

    def run(self) -> int:
        """Start all and return the exit code once all have ended. To be called in the main thread.

        SIGTERM and SIGINT are passed on to every worker as SIGTERM, each time they come: workers
        finish what they have in hand at the first and end at once at the second.
        """
        before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        watched = [_Watched(worker) for worker in self.workers]
        try:
            return self._watch(watched)
        finally:
            for each in watched:
                if each.process is not None and each.process.poll() is None:
                    each.process.kill()
                    each.process.wait()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._told += 1
        self._news.set()

    def _watch(self, all_watched: Sequence[_Watched]) -> int:
        passed_on, ending, wrong = 0, False, 0
        for watched in all_watched:
            self._launch(watched)
        while True:
            while passed_on < self._told:
                passed_on, ending = passed_on + 1, True
                self._terminate(all_watched)
            for watched in all_watched:
                decision = self._look(watched, ending=ending)
                if isinstance(decision, EndAll) and not ending:
                    ending, wrong = True, decision.exit_code
                    self._terminate(all_watched)
            if all(watched.process is None and watched.restart_at is None for watched in all_watched):
                return wrong or exit_code([watched.code for watched in all_watched])
            self._news.wait(_LOOK_SECONDS)
            self._news.clear()

    def _look(self, watched: _Watched, *, ending: bool) -> Again | EndAll | None:
        """Note that a worker ended, or start it again when it is due."""
        now = time.monotonic()
        if watched.process is None:
            if ending:
                watched.restart_at = None
            elif watched.restart_at is not None and now >= watched.restart_at:
                self._launch(watched)
            return None
        code = watched.process.poll()
        if code is None:
            return None
        watched.process, watched.code = None, code
        decision = decide(code, now - watched.started_at, watched.quick_ends)
        if ending or not isinstance(decision, Again):
            log.info("process ended", worker=watched.worker.name, code=code)
            return decision if isinstance(decision, EndAll) else None
        watched.quick_ends, watched.restart_at = decision.quick_ends, now + decision.after_seconds
        log.warning(
            "process ended and is started again",
            worker=watched.worker.name,
            code=code,
            in_seconds=decision.after_seconds,
        )
        return decision

    def _launch(self, watched: _Watched) -> None:
        # A session of its own: Ctrl-C on the terminal must reach the worker once, through us.
        watched.process = subprocess.Popen(
            [*self.command, *watched.worker.arguments],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()),
        )
        watched.started_at, watched.restart_at = time.monotonic(), None
        log.info("process started", worker=watched.worker.name, pid=watched.process.pid)

    def _terminate(self, all_watched: Sequence[_Watched]) -> None:
        for watched in all_watched:
            if watched.process is not None:
                watched.process.terminate()


def _die_with(supervisor: int) -> Callable[[], None] | None:
    """What the new process does first: be told to end when its supervisor is killed. Linux alone can do that."""
    if not sys.platform.startswith("linux"):
        return None
    set_option = ctypes.CDLL(None).prctl

    def bind() -> None:
        set_option(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != supervisor:
            os._exit(1)

    return bind
