"""What a GPU worker checks before it serves, and how it waits for the one run it was told to serve."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from common.run_state import RunRecord, register_run
from gpu_worker.__main__ import main
from gpu_worker.pinned import PinnedRun

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("hiddenfeed")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def _flags(folder: Path, redis_url: str, changes: dict[str, str]) -> list[str]:
    (folder / "store").mkdir(exist_ok=True)
    settings = {
        "store": str(folder / "store"),
        "redis_url": redis_url,
        "spool_dir": str(folder / "spool"),
        "device": "cpu",
        **changes,
    }
    return [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value)]


def test_ready_says_what_a_worker_would_use_and_stops(
    tmp_path: Path, redis_url: str, capsys: Captured
) -> None:
    cache = tmp_path / "cache"
    assert main(["ready", *_flags(tmp_path, redis_url, {"cache_dir": str(cache), "run": "any-0"})]) == 0
    assert capsys.readouterr().out == (
        f"ready: cpu, {tmp_path / 'store'}, spool {tmp_path / 'spool'}, cache {cache}\n"
    )
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "sentence", "code"),
    [
        ({"run": "../x"}, "--run: run id '../x' is not allowed", 2),
        ({"lease_seconds": "9"}, "is more than a third of --lease-seconds 9", 2),
        ({"device": "cuda:99"}, "device 'cuda:99' is not there", 2),
        ({"attention": "flash_attention_2"}, "--attention flash_attention_2 needs the package flash_attn", 2),
        ({"model_path": "/nowhere"}, "--model-path /nowhere is not a folder", 2),
        ({"model_path": "{folder}/file"}, "/file is not a folder but a file", 2),
        ({"threads": "100000"}, "--threads", 2),
        ({"spool_dir": "{folder}/" + "x" * 300}, "cannot be written: File name too long", 2),
        ({"redis_url": "redis://127.0.0.1:1/0"}, "Redis at 127.0.0.1:1 is not there", 75),
        ({"store": "/nowhere"}, "store folder /nowhere does not exist", 2),
        ({"spool_dir": "/proc/spool"}, "spool folder /proc/spool cannot be written", 2),
        ({"cache_dir": "{folder}/file/cache"}, "/file/cache cannot be written", 2),
    ],
)
def test_what_cannot_be_used_is_said_at_the_start(
    tmp_path: Path, redis_url: str, capsys: Captured, changes: dict[str, str], sentence: str, code: int
) -> None:
    (tmp_path / "file").touch()
    changes = {name: value.format(folder=tmp_path) for name, value in changes.items()}
    # The same for the worker itself and for the command that only checks.
    for tool in ([], ["ready"]):
        assert main([*tool, *_flags(tmp_path, redis_url, changes)]) == code
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert sentence in line


def test_a_worker_waits_aloud_for_a_run_that_is_not_there_yet(
    redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    pinned = PinnedRun(redis_client, "late-0")
    with caplog.at_level("INFO", logger="hiddenfeed"):
        assert [pinned.why_not(), pinned.why_not()] == ["waiting for run late-0"] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for run late-0: nobody has submitted it to this Redis yet"
    ]
    record = RunRecord(run_id="late-0", model="m", samples=1, tokens=1, batches=1, submitted_at=time.time())
    register_run(redis_client, record)
    assert pinned.why_not() is None
