"""One worker process per device: which processes there are, and what follows when one ends; pure decisions."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.devices import ALL, device_list
from hiddenfeed.errors import ConfigError

#: A worker that ran for this long had started well; its end counts as a first one again.
SETTLED_SECONDS = 60.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0


@dataclass(frozen=True)
class Asked:
    """What the command line says of processes, and the rest of it, which is every worker's own."""

    #: As given: `0,1`, `cuda:0,cuda:1`, `all`, `cpu`; None if not given.
    devices: str | None
    #: Per device.
    processes: int
    rest: tuple[str, ...]

    @property
    def several(self) -> bool:
        """Whether a supervisor is asked for at all."""
        return self.devices is not None or self.processes > 1


@dataclass(frozen=True)
class Worker:
    """One process of the fleet."""

    #: Unique among the processes, for people.
    name: str
    #: The command line after `python -m gpu_worker`.
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Again:
    """Start it again after a pause."""

    after_seconds: float
    quick_ends: int


@dataclass(frozen=True)
class Over:
    """It ended as it should; nothing is to be done."""


@dataclass(frozen=True)
class EndAll:
    """A setting is wrong, and every start would end the same way: stop the others too."""

    exit_code: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--devices` and `--processes`."""
    parser.add_argument(
        "--devices",
        metavar="LIST",
        help="one process for each of these: 0,1 or cuda:0,cuda:1 or all or cpu; restarted when they crash",
    )
    parser.add_argument(
        "--processes", type=int, default=1, metavar="N", help="processes per device (default %(default)s)"
    )


def asked(arguments: Sequence[str]) -> Asked:
    """Take the supervisor's own flags out of a command line; raises ConfigError for a number that cannot be."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_arguments(parser)
    found, rest = parser.parse_known_args(arguments)
    if not 1 <= found.processes <= 64:
        raise ConfigError(f"--processes {found.processes} is not a number from 1 to 64")
    return Asked(found.devices, found.processes, tuple(rest))


def plan_fleet(
    given: Asked, *, cuda_devices: Callable[[], int], processors: int, threads: int
) -> list[Worker]:
    """The processes that are asked for.

    `cuda_devices` is asked for `all` alone; `processors` are shared among the workers on the CPU
    unless `threads`, the setting, says otherwise. Raises ConfigError for a list that names no
    device, one twice, or a kind that there is not.
    """
    devices = _devices(given.devices, cuda_devices)
    on_cpu = sum(device == "cpu" for device in devices) * given.processes
    workers = []
    for device in devices:
        for number in range(1, given.processes + 1):
            name = device if given.processes == 1 else f"{device}#{number}"
            own = ["--device", device]
            if device == "cpu" and not threads:
                own += ["--threads", str(max(1, processors // on_cpu))]
            workers.append(Worker(name, (*given.rest, *own)))
    return workers


def decide(code: int, ran_seconds: float, quick_ends_before: int) -> Again | Over | EndAll:
    """What follows when a worker that nobody asked to end has ended with `code` (negative for a signal).

    A device that fails again and again must not end the work of its neighbours, so there is no last
    attempt; the pauses grow instead.
    """
    if code == 0:
        return Over()
    if code == ConfigError.exit_code:
        return EndAll(code)
    quick_ends = quick_ends_before + 1 if ran_seconds < SETTLED_SECONDS else 1
    return Again(min(_FIRST_PAUSE_SECONDS * 2.0 ** (quick_ends - 1), _LONGEST_PAUSE_SECONDS), quick_ends)


def exit_code(codes: Sequence[int]) -> int:
    """Of the supervisor, from those of its workers: 0 if all ended as told, else the first that did not."""
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


def _devices(text: str | None, cuda_devices: Callable[[], int]) -> list[str]:
    if text is None:
        return ["auto"]
    devices = device_list(text)
    if devices != [ALL]:
        return devices
    count = cuda_devices()
    if not count:
        raise ConfigError("--devices all: torch sees no CUDA device here")
    return [f"cuda:{number}" for number in range(count)]
