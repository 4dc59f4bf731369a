"""Settings changed in a running fleet."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from common.settings.catalogue import RedisSettings, SpoolSettings, UploadSettings
from common.settings.live import LIVE_KEY, LiveSettings, clear_live, live_settings, read_live, set_live
from common.settings.resolve import Resolved, resolve
from hiddenfeed.errors import ConfigError
from standalone.redis_server import RedisServer
from tests.worker_rig import wait_until


@pytest.fixture
def resolved() -> Resolved:
    """An uploader's settings with a flag given."""
    return resolve((RedisSettings, UploadSettings, SpoolSettings), {"upload_parallelism": "100"}, {})


def test_a_change_reaches_every_process_and_its_source_is_shown(
    redis_client: redis.Redis, resolved: Resolved
) -> None:
    fleet = [LiveSettings(redis_client, resolved, look_seconds=0.1).start() for _ in range(2)]
    try:
        assert [one.group(UploadSettings).upload_parallelism for one in fleet] == [100, 100]
        assert set_live(redis_client, {"upload_parallelism": "500", "spool_cap_bytes": "2GiB"}) == {
            "upload_parallelism": 500,
            "spool_cap_bytes": 2 * 2**30,
        }
        wait_until(lambda: [one.group(UploadSettings).upload_parallelism for one in fleet] == [500, 500])
        assert ("upload_parallelism", "500", "live") in list(fleet[0].resolved.table())
        clear_live(redis_client, ["upload_parallelism", "spool_cap_bytes"])
        wait_until(lambda: [one.group(UploadSettings).upload_parallelism for one in fleet] == [100, 100])
        assert fleet[0].resolved.sources["upload_parallelism"] == "flag --upload-parallelism"
    finally:
        for one in fleet:
            one.stop()


def test_what_is_not_live_or_not_a_value_is_refused_and_nothing_changes(redis_client: redis.Redis) -> None:
    for values, reason in (
        (
            {"upload_parallelism": "50", "log_level": "debug"},
            "log_level cannot be changed in a running fleet",
        ),
        ({"upload_parallelism": "50", "nonsense": "1"}, "there is no setting 'nonsense'"),
        ({"upload_paralelism": "50"}, r"; did you mean upload_parallelism\?"),
        (
            {"upload_parallelism": "0"},
            "live setting upload_parallelism '0' cannot be used: it takes a whole number from 1 to 5000",
        ),
    ):
        with pytest.raises(ConfigError, match=reason):
            set_live(redis_client, values)
    assert read_live(redis_client) == {}
    assert "upload_parallelism" in live_settings()


def test_a_bad_value_in_redis_is_ignored_and_the_others_hold(
    redis_client: redis.Redis, resolved: Resolved, caplog: pytest.LogCaptureFixture
) -> None:
    redis_client.hset(
        LIVE_KEY, mapping={"upload_parallelism": "many", "spool_cap_bytes": "3GiB", "redis_url": "x"}
    )
    live = LiveSettings(redis_client, resolved)
    live.refresh()
    live.refresh()
    assert live.group(UploadSettings).upload_parallelism == 100
    assert live.group(SpoolSettings).spool_cap_bytes == 3 * 2**30
    assert live.group(RedisSettings).redis_url == resolved.values["redis_url"]
    # Said once, not every two seconds.
    assert len([entry for entry in caplog.records if "ignored a live setting" in entry.message]) == 2


def test_while_redis_is_away_the_last_values_hold(
    private_redis: Callable[[], RedisServer], resolved: Resolved
) -> None:
    server = private_redis()
    with redis.Redis.from_url(server.url) as client:
        set_live(client, {"upload_parallelism": "7"})
        live = LiveSettings(client, resolved, look_seconds=0.05).start()
        server.stop()
        assert live.group(UploadSettings).upload_parallelism == 7
        live.stop()


def test_a_redis_that_lost_the_settings_gets_them_back_once(
    redis_client: redis.Redis, resolved: Resolved, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = [LiveSettings(redis_client, resolved) for _ in range(2)]
    set_live(redis_client, {"upload_parallelism": "7", "spool_cap_bytes": "3GiB"})
    for one in fleet:
        one.refresh()
    redis_client.flushdb()
    for one in fleet:
        one.refresh()
        assert one.group(UploadSettings).upload_parallelism == 7
    assert read_live(redis_client) == {"upload_parallelism": "7", "spool_cap_bytes": "3GiB"}
    assert [entry.message for entry in caplog.records].count(
        "Redis had lost the live settings, which are written again"
    ) == 1


def test_a_change_after_the_loss_is_not_undone(redis_client: redis.Redis, resolved: Resolved) -> None:
    live = LiveSettings(redis_client, resolved)
    set_live(redis_client, {"upload_parallelism": "7"})
    live.refresh()
    redis_client.flushdb()
    clear_live(redis_client, ["upload_parallelism"])
    live.refresh()
    assert live.group(UploadSettings).upload_parallelism == 100
    assert read_live(redis_client) == {}
