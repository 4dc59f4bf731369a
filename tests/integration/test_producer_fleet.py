"""`producer set` and `producer priority`: one command changes a running fleet."""

from __future__ import annotations

import pytest
import redis

from common.run_state import RunRecord, get_run, register_run
from common.settings.catalogue import UploadSettings
from common.settings.live import LIVE_KEY, LiveSettings
from common.settings.resolve import resolve
from producer.__main__ import main
from producer.fleet import split_assignments
from tests.worker_rig import wait_until


def test_set_reaches_a_running_process_and_clearing_gives_its_own_value_back(
    redis_client: redis.Redis, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    uploader = LiveSettings(
        redis_client, resolve((UploadSettings,), {"upload_parallelism": "100"}, {})
    ).start()
    try:
        assert main(["set", "--redis-url", redis_url, "upload-parallelism=500"]) == 0
        assert "upload_parallelism 500 " in " ".join(capsys.readouterr().out.split())
        wait_until(lambda: uploader.group(UploadSettings).upload_parallelism == 500)
        assert main(["set", "--redis-url", redis_url, "upload_parallelism="]) == 0
        assert "each process its own" in capsys.readouterr().out
        wait_until(lambda: uploader.group(UploadSettings).upload_parallelism == 100)
    finally:
        uploader.stop()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("upload_parallelism", "'upload_parallelism' is not NAME=VALUE"),
        ("=5", "'=5' is not NAME=VALUE"),
        (
            "upload_parallelism=many",
            "live setting upload_parallelism 'many' cannot be used: it takes a whole number from 1 to 5000",
        ),
        ("log_level=debug", "log_level cannot be changed in a running fleet"),
        ("nonsense=1", "there is no setting 'nonsense'"),
    ],
)
def test_what_cannot_be_set_is_one_sentence(
    redis_client: redis.Redis, redis_url: str, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    assert main(["set", "--redis-url", redis_url, text]) == 2
    assert reason in capsys.readouterr().err


def test_a_value_that_every_process_ignores_is_shown_as_such(
    redis_client: redis.Redis, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    redis_client.hset(LIVE_KEY, "spool_low_percent", "much")
    assert main(["set", "--redis-url", redis_url, "upload_parallelism=7"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "spool_low_percent 'much' (ignored) " in out
    assert "upload_parallelism 7 " in out


def test_assignments_are_told_from_clearings() -> None:
    assert split_assignments(["a-b=1", "c= ", "d=x=y"]) == ({"a_b": "1", "d": "x=y"}, ["c"])


def test_priority_is_kept_with_the_run(
    redis_client: redis.Redis, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record = RunRecord(
        run_id="a-1", state="active", model="m", samples=1, tokens=1, batches=1, submitted_at=1.0, priority=0
    )
    register_run(redis_client, record)
    assert main(["priority", "--redis-url", redis_url, "a-1", "7"]) == 0
    kept = get_run(redis_client, "a-1")
    assert kept is not None
    assert kept.priority == 7
    assert main(["priority", "--redis-url", redis_url, "a-1", "high"]) == 2
    assert "'high' is not a whole number" in capsys.readouterr().err
    assert main(["priority", "--redis-url", redis_url, "b-2", "7"]) == 2
