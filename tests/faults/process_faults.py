"""Faults of processes: killed, told to end, frozen."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tests.faults.fault_site import LEASE_SECONDS
from tests.faults.trial import Fault, Trial

#: In the long form, and in the short one, where a process that starts again costs more than all else.
_STORM_SIGNALS, _SHORT_STORM = 8, 3
_STORM_ROLES = ("gpu_worker", "uploader", "uploader", "producer")


def _kill(role: str) -> Fault:
    def inject(trial: Trial) -> None:
        trial.strike(role, signal.SIGKILL)

    return Fault(f"kill -9 {role}", inject, times=3, forgets_files=role == "gpu_worker")


def _kill_early(trial: Trial) -> None:
    trial.strike("producer", signal.SIGKILL)


def _kill_all(trial: Trial) -> None:
    for name in trial.site.fleet.names():
        trial.site.fleet.strike(name, signal.SIGKILL)


def _kill_servers_too(trial: Trial) -> None:
    """As if the machine had stopped, but for what the disks had not written yet."""
    _kill_all(trial)
    trial.site.kill_redis()
    trial.site.kill_s3()
    trial.site.start_s3()
    trial.site.start_redis()


def _storm(number: signal.Signals) -> Callable[[Trial], None]:
    """One after the other is struck, some twice in a row, while others are still starting."""

    def inject(trial: Trial) -> None:
        for _ in range(_STORM_SIGNALS if trial.long else _SHORT_STORM):
            name = trial.strike(trial.random.choice(_STORM_ROLES), number)
            trial.wait(trial.random.uniform(0.1, 0.7))
            if trial.random.random() < 0.3 and name in trial.site.fleet.names():
                trial.site.fleet.strike(name, number)

    return inject


def _freeze(trial: Trial) -> None:
    """A GPU worker and an uploader stand still until others have taken over their jobs, and then go on with them."""
    frozen = [trial.strike(role, signal.SIGSTOP) for role in ("gpu_worker", "uploader")]
    trial.wait(max(LEASE_SECONDS + 2.0, trial.outage_seconds()))
    for name in frozen:
        trial.site.fleet.strike(name, signal.SIGCONT)


FAULTS = (
    _kill("gpu_worker"),
    _kill("uploader"),
    _kill("producer"),
    Fault("kill -9 producer, early", _kill_early, times=3, early=True),
    Fault("kill -9 all", _kill_all, forgets_files=True),
    # A role that starts before its servers ends with 75, for its supervisor to try again.
    Fault("kill -9 all and servers", _kill_servers_too, forgets_files=True, own_ends=frozenset({75})),
    Fault("kill -9 storm", _storm(signal.SIGKILL), times=1, forgets_files=True),
    Fault("SIGTERM storm", _storm(signal.SIGTERM), forgets_files=True),
    Fault("frozen past the lease", _freeze),
)
