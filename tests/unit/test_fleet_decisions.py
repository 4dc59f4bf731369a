"""Which processes a fleet has, and what follows when one of them ends."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_worker.fleet import SETTLED_SECONDS, Again, EndAll, Over, asked, decide, exit_code, plan_fleet
from hiddenfeed.errors import ConfigError


def _fleet(*arguments: str, devices: int = 2, processors: int = 8, threads: int = 0) -> dict[str, Any]:
    workers = plan_fleet(
        asked(arguments), cuda_devices=lambda: devices, processors=processors, threads=threads
    )
    return {worker.name: worker.arguments for worker in workers}


def test_flags_of_the_supervisor_are_not_the_workers() -> None:
    found = asked(["--store", "s", "--devices", "0,1", "--log-level=debug", "--processes=2"])
    assert found.several
    assert (found.devices, found.processes, found.rest) == ("0,1", 2, ("--store", "s", "--log-level=debug"))
    assert not asked(["--store", "s", "--device", "cuda:1"]).several
    assert asked(["--processes", "2"]).several


@pytest.mark.parametrize("text", ["0,1", "cuda:0, cuda:1", "all"])
def test_one_process_for_each_device(text: str) -> None:
    assert _fleet("--store", "s", "--devices", text) == {
        "cuda:0": ("--store", "s", "--device", "cuda:0"),
        "cuda:1": ("--store", "s", "--device", "cuda:1"),
    }


def test_processes_on_the_cpu_share_its_processors() -> None:
    assert _fleet("--devices", "cpu", "--processes", "3") == {
        f"cpu#{number}": ("--device", "cpu", "--threads", "2") for number in (1, 2, 3)
    }
    assert _fleet("--devices", "cpu", "--processes", "3", threads=7)["cpu#1"] == ("--device", "cpu")
    assert _fleet("--devices", "cpu", processors=1)["cpu"] == ("--device", "cpu", "--threads", "1")


def test_several_on_whatever_there_is() -> None:
    assert _fleet("--processes", "2") == {f"auto#{number}": ("--device", "auto") for number in (1, 2)}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--devices", "tpu"), "'tpu' is not a number, cuda:N or cpu"),
        (("--devices", "0,"), "'' is not a number"),
        (("--devices", "-1"), "'-1' is not a number"),
        (("--devices", ""), "'' is not a number"),
        (("--devices", "0,cuda:0"), "name cuda:0 more than once; --processes N .* starts several"),
        (("--devices", "0,00"), "name cuda:0 more than once"),
        (("--devices", "cuda,0"), "name cuda:0 more than once"),
        (("--devices", "cpu", "--processes", "0"), "--processes 0 is not a number from 1 to 64"),
    ],
)
def test_lists_that_name_no_fleet(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        _fleet(*arguments)


def test_all_devices_where_there_are_none() -> None:
    with pytest.raises(ConfigError, match="torch sees no CUDA device here"):
        _fleet("--devices", "all", devices=0)


def test_what_follows_an_end() -> None:
    assert decide(0, 5.0, 0) == Over()
    assert decide(2, 5.0, 0) == EndAll(2)
    assert decide(-9, 5.0, 0) == Again(1.0, 1)
    assert decide(1, 5.0, 2) == Again(4.0, 3)
    assert decide(75, 5.0, 30) == Again(60.0, 31)
    # One that had worked for long starts again at once, whatever it did before.
    assert decide(-11, SETTLED_SECONDS, 30) == Again(1.0, 1)


def test_exit_code_is_the_first_that_is_not_zero() -> None:
    assert exit_code([0, 0]) == 0
    assert exit_code([0, 75, 1]) == 75
    assert exit_code([-9, 0]) == 137
