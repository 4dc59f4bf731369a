"""What the single-machine runner decides and says, without starting anything."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from common.eta import Estimate
from common.pace import Pace
from common.queues import QueueCounts
from common.run_state import Progress, RunRecord, UploaderProgress, WorkerProgress
from common.settings.catalogue import (
    ExtractSettings,
    HomeSettings,
    PlanSettings,
    RedisSettings,
    SpoolSettings,
    StandaloneSettings,
)
from common.settings.resolve import resolve
from hiddenfeed.errors import ConfigError, DataError
from hiddenfeed.options import StoreOptions
from standalone import report, restart
from standalone.display import Display
from standalone.home import Home
from standalone.progress import announced_run, doing, latest_warning, progress_line, statements, warnings
from standalone.restart import Ended, GiveUp, Restart
from standalone.roles import role_environment, settings_environment, worker_roles
from standalone.surroundings import chosen_places

GROUPS = (
    HomeSettings,
    StandaloneSettings,
    RedisSettings,
    StoreOptions,
    SpoolSettings,
    PlanSettings,
    ExtractSettings,
)


def _ended(code: int, *, seconds: float = 5.0, sentence: str = "") -> Ended:
    return Ended(role="uploader-1", code=code, ran_seconds=seconds, sentence=sentence, last_lines="the end")


@pytest.mark.parametrize("code", [1, 2, 65])
def test_an_error_that_would_repeat_ends_everything_with_its_sentence(code: int) -> None:
    assert restart.decide(_ended(code, sentence="no such bucket"), 0) == GiveUp(
        "no such bucket", code, "uploader-1"
    )


@pytest.mark.parametrize("code", [-9, 0, 1, 75])
def test_other_ends_are_started_again_after_a_growing_pause(code: int) -> None:
    pauses = []
    for before in range(3):
        decision = restart.decide(_ended(code), before)
        assert isinstance(decision, Restart)
        pauses.append(decision.after_seconds)
    assert pauses == [0.5, 1.0, 2.0]


def test_a_process_that_never_settles_is_given_up_with_its_last_words() -> None:
    decision = restart.decide(_ended(-11), restart.MOST_QUICK_ENDS)
    assert isinstance(decision, GiveUp)
    assert decision.sentence == "uploader-1 ended 6 times soon after its start (killed by signal 11): the end"


def test_a_process_that_ran_long_starts_counting_anew() -> None:
    decision = restart.decide(_ended(-9, seconds=restart.SETTLED_SECONDS + 1), restart.MOST_QUICK_ENDS)
    assert decision == Restart(0.5, 1)


def test_something_away_is_waited_for_without_end() -> None:
    decision = restart.decide(_ended(75, sentence="Redis is not there"), 50)
    assert decision == Restart(30.0, 51)


def test_something_away_before_anything_has_begun_is_said_at_once() -> None:
    ended = _ended(75, sentence="the hub cannot be reached")
    assert restart.decide(ended, 0, patient=False) == GiveUp("the hub cannot be reached", 75, "uploader-1")
    assert isinstance(restart.decide(_ended(-9), 0, patient=False), Restart)


def test_settings_that_were_given_reach_the_roles_and_defaults_do_not() -> None:
    resolved = resolve(
        GROUPS,
        {"micro_batch_tokens": "64", "spool_cap_bytes": "2GiB", "trust_remote_code": True, "home": "x"},
        {},
    )
    environ = role_environment(
        {"PATH": "/bin", "HIDDENFEED_DEVICE": "cuda:7"}, settings_environment(resolved, {"spool": "mine"})
    )
    assert environ == {
        "PATH": "/bin",
        "HIDDENFEED_MICRO_BATCH_TOKENS": "64",
        "HIDDENFEED_SPOOL_CAP_BYTES": str(2 * 2**30),
        "HIDDENFEED_TRUST_REMOTE_CODE": "yes",
        "HIDDENFEED_SPOOL": "mine",
    }
    # And they mean the same there.
    assert resolve(GROUPS, {}, environ).values["spool_cap_bytes"] == 2 * 2**30


def test_one_worker_per_device_and_threads_are_shared() -> None:
    roles = worker_roles({}, StandaloneSettings(devices="cuda:0, cuda:1"), processors=8)
    assert [role.name for role in roles] == ["gpu_worker-1", "gpu_worker-2"]
    assert [role.environ["HIDDENFEED_DEVICE"] for role in roles] == ["cuda:0", "cuda:1"]
    assert {role.environ["HIDDENFEED_THREADS"] for role in roles} == {"4"}
    (alone,) = worker_roles({}, StandaloneSettings(), processors=8)
    assert alone.environ == {}


@pytest.mark.parametrize(
    ("flags", "redis_url", "store", "spool"),
    [
        ({}, None, None, "default"),
        ({"out": "s3://b/p", "s3_endpoint": "http://e"}, None, "s3://b/p", "default"),
        ({"redis_url": "redis://h/0", "spool": "mine"}, "redis://h/0", None, "mine"),
    ],
)
def test_places_are_those_given_or_the_homes_own(
    tmp_path: Path, flags: dict[str, str], redis_url: str | None, store: str | None, spool: str
) -> None:
    places = chosen_places(Home(tmp_path), resolve(GROUPS, flags, {}))
    assert (places.redis_url, places.store, places.spool) == (redis_url, store, spool)


def test_homes_on_one_shared_redis_have_upload_queues_of_their_own(tmp_path: Path) -> None:
    shared = resolve(GROUPS, {"redis_url": "redis://h/0"}, {})
    names = {chosen_places(Home(tmp_path / name), shared).spool for name in ("a", "b")}
    assert len(names) == 2
    assert "default" not in names


def test_a_folder_is_remembered_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert chosen_places(Home(tmp_path), resolve(GROUPS, {"out": "states"}, {})).store == str(
        tmp_path / "states"
    )


def test_an_endpoint_without_a_bucket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="need --out s3://"):
        chosen_places(Home(tmp_path), resolve(GROUPS, {"s3_endpoint": "http://e"}, {}))


def _pace(arrivals: int) -> Pace:
    """Of 100 tokens a second."""
    pace = Pace()
    for batch in range(arrivals + 1):
        pace.look(10.0 * batch, Progress(run_id="r", batches=batch, tokens=1000 * batch, last_at=batch))
    return pace


@pytest.mark.parametrize(
    ("batches", "total", "extract", "upload", "arrivals", "expected"),
    [
        (
            0,
            4,
            QueueCounts(queued=4),
            QueueCounts(),
            0,
            "[....................]   0%  0/4 batches  loading the model",
        ),
        (
            2,
            4,
            QueueCounts(queued=2, started=1),
            QueueCounts(queued=1, started=1),
            2,
            "[##########..........]  50%  2/4 batches  100 tokens/s  2 files on their way",
        ),
        (
            4,
            8,
            QueueCounts(queued=3, started=1),
            QueueCounts(started=1),
            4,
            "[##########..........]  50%  4/8 batches  100 tokens/s  1 file on its way  about 40 s left (30 s to 50 s)",
        ),
        (3, 4, QueueCounts(failed=1), QueueCounts(), 0, "[###############.....]  75%  3/4 batches  1 failed"),
        (1, 1, QueueCounts(), QueueCounts(), 0, "[####################] 100%  1/1 batch  proving"),
    ],
)
def test_progress_in_one_line(
    batches: int, total: int, extract: QueueCounts, upload: QueueCounts, arrivals: int, expected: str
) -> None:
    record = RunRecord(run_id="r", model="m", samples=40, tokens=1000 * total, batches=total, submitted_at=0)
    progress = Progress(run_id="r", batches=batches, tokens=1000 * batches)
    left = Estimate(seconds=40.0, low_seconds=30.0, high_seconds=50.0) if arrivals == 4 else None
    assert progress_line(record, progress, extract, upload, _pace(arrivals), left) == expected


def test_the_run_is_known_once_the_producer_names_it() -> None:
    assert announced_run(["no json", '{"message": "reading"}', "[1]"]) is None
    assert announced_run(['{"message": "submitted", "run": "demo-1"}', '{"run": "other"}']) == "demo-1"
    with pytest.raises(DataError):
        announced_run(['{"run": "../x"}'])


def test_what_the_producer_says_is_told_from_how_far_it_is() -> None:
    lines = [
        '{"source": "producer", "level": "info", "message": "model m: 3 blocks"}',
        '{"source": "progress", "level": "info", "message": "preparing: 10%"}',
        '{"source": "producer", "level": "warning", "message": "waiting: the hub is away"}',
        '{"source": "progress", "level": "info", "message": "preparing: 20%"}',
    ]
    assert statements(lines) == ["model m: 3 blocks"]
    assert (doing(lines), doing(lines[:1])) == ("preparing: 20%", "")
    record = RunRecord(run_id="r", model="m", samples=1, tokens=1, batches=1, submitted_at=0)
    progress, none = Progress(run_id="r", batches=1, tokens=1), QueueCounts()
    line = progress_line(record, progress, none, none, Pace(), None, part="proving: 7 of 9 batches")
    assert line.endswith("  proving: 7 of 9 batches")


def test_what_a_role_last_warned_of() -> None:
    lines = [
        'cut off", "level": "warning"}',
        '{"time": "1970-01-01T00:00:10.000Z", "level": "warning", "message": "waiting", "error": "the disk is full"}',
        '{"time": "1970-01-01T00:00:20.000Z", "level": "info", "message": "job finished"}',
        '{"time": "never", "level": "error", "message": "odd"}',
    ]
    assert latest_warning(lines, 5.0) == (10.0, "waiting: the disk is full")
    assert latest_warning(lines, 15.0) == (0.0, "")


def test_warnings_of_a_role() -> None:
    lines = ['{"level": "warning", "message": "a"}', "error: x", '{"level": "info", "message": "b"}']
    assert warnings(lines) == ["a"]


def test_rates_per_worker_and_uploader_are_the_monitors() -> None:
    worker = WorkerProgress(
        worker="w",
        device="cpu",
        batches=2,
        tokens=900,
        padded_tokens=1000,
        forward_seconds=3.0,
        active_seconds=2.0,
        first_at=10.0,
        last_at=20.0,
    )
    uploader = UploaderProgress(
        uploader="u", files=2, bytes=8 * 2**20, upload_seconds=2.0, first_at=10.0, last_at=20.0
    )
    lines = report.rate_lines(Progress(run_id="r", workers=(worker,), uploaders=(uploader,)))
    assert [line.strip() for line in lines] == [
        "rates      w: 2 batches, 900 tokens, 45 tokens/s (75% of the time in the model), 10.0% padding (cpu)",
        "u: 2 files, 8.0 MiB, 409.6 KiB/s, 4.0 MiB/s each file",
    ]
    nothing = Progress(run_id="r", workers=(WorkerProgress(worker="w", batches=1),))
    assert "w: 1 batch, 0 tokens, - tokens/s (" in report.rate_lines(nothing)[0]


def test_without_a_terminal_the_state_is_said_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    display = Display(stream)
    for number in range(100):
        display.status(f"state {number}")
    display.say("done")
    assert stream.getvalue() == "state 0\ndone\n"
    # What could not be said then is said later, even if it has not changed.
    monkeypatch.setattr("standalone.display._PLAIN_SECONDS", 0.0)
    display.status("state 99")
    display.status("state 99")
    assert stream.getvalue() == "state 0\ndone\nstate 99\n"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


def test_on_a_terminal_the_state_is_renewed_in_place_and_stays_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = _Terminal()
    display = Display(stream)
    display.status("one")
    display.say("a line")
    display.status("x" * 200)
    display.clear()
    assert stream.getvalue() == f"\r\x1b[Kone\r\x1b[Ka line\none\r\x1b[K{'x' * 78}…\r\x1b[K"


def test_home_is_held_by_one_at_a_time(tmp_path: Path) -> None:

    with (
        Home(tmp_path).locked(),
        pytest.raises(ConfigError, match=f"is in use by process {os.getpid()}; wait"),
        Home(tmp_path).locked(),
    ):
        pass
    with Home(tmp_path).locked():
        pass


def test_a_home_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used"), Home(tmp_path / "file").locked():
        pass


def test_the_report_names_commands_that_work_as_they_stand() -> None:
    folder = report.place_lines("/runs/a run", None, StoreOptions())
    assert [line.split(maxsplit=1)[0] for line in folder[:2]] == ["where", "read"]
    assert folder[1].endswith("python -m hiddenfeed show '/runs/a run'")
    assert folder[3].endswith("examples/train_drafter.py '/runs/a run'")
    options = StoreOptions(s3_endpoint="https://s3.example", s3_profile="my lab")
    elsewhere = report.place_lines("s3://b/r/run", None, options)
    told = "HIDDENFEED_S3_ENDPOINT=https://s3.example HIDDENFEED_S3_PROFILE='my lab'"
    assert all(line[10:].strip().startswith(told) for line in elsewhere[1:])
    at_home = report.place_lines("s3://b/r/run", Path("demo"), options)
    assert all("standalone exec --home demo -- python " in line for line in at_home[1:4])
