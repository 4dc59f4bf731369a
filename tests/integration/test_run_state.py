"""What Redis remembers of runs: records, states, and counters that count each batch once."""

from __future__ import annotations

import msgspec
import pytest
import redis
from msgspec import UNSET

from common.checks import Checks, Extreme, StateRange
from common.messages import BatchReport, ExtractBatch, UploadFile, UploadReceipt
from common.progress_records import RecentWork
from common.run_progress import progress_keys
from common.run_state import (
    FoundBatch,
    Progress,
    RunRecord,
    RunStateName,
    forget_run,
    get_run,
    list_runs,
    note_found,
    note_stored,
    pause_run,
    read_progress,
    register_run,
    set_run_priority,
    set_run_state,
)
from common.worker import list_workers
from hiddenfeed.errors import ConfigError

RUN = "chat-0123456789ab"


def record(run_id: str = RUN, submitted_at: float = 1000.0, **more: object) -> RunRecord:
    """A run of ten batches."""
    fields = {"model": "tiny", "samples": 100, "tokens": 5000, "batches": 10, **more}
    return msgspec.convert({"run_id": run_id, "submitted_at": submitted_at, **fields}, RunRecord)


def upload(batch_id: int, worker: str = "gpu a:1") -> UploadFile:
    """A batch of 10 samples and 500 tokens."""
    batch = ExtractBatch(
        run_id=RUN,
        batch_id=batch_id,
        tokens="t",
        row_group=batch_id,
        samples=10,
        tokens_total=500,
        longest=60,
        squares=30_000,
    )
    report = BatchReport(
        worker=worker, device="cpu", forward_seconds=0.25, total_seconds=0.5, padded_tokens=512, halvings=3
    )
    return UploadFile(
        batch=batch,
        spool="default",
        path="p",
        key=f"{RUN}/quarantine/{batch_id:06}.json" if batch_id == 7 else "k",
        size_bytes=2000,
        checksum="crc32:AAAAAA==",
        report=report,
    )


def note(
    client: redis.Redis, batch_id: int, outcome: str = "stored", now: float = 2000.0, worker: str = "gpu a:1"
) -> None:
    """Count an upload as the uploader does."""
    receipt = UploadReceipt(
        run_id=RUN, batch_id=batch_id, key="k", outcome=outcome, size_bytes=2000, upload_seconds=0.125
    )
    with client.pipeline(transaction=True) as pipe:
        note_stored(pipe, upload(batch_id, worker), receipt, now, uploader="up-1")
        pipe.execute()


def store(client: redis.Redis, message: UploadFile) -> None:
    """Count the upload of a message."""
    receipt = UploadReceipt(
        run_id=RUN,
        batch_id=message.batch.batch_id,
        key="k",
        outcome="stored",
        size_bytes=1,
        upload_seconds=1.0,
    )
    with client.pipeline(transaction=True) as pipe:
        note_stored(pipe, message, receipt, 2000.0)
        pipe.execute()


def test_a_run_that_is_registered_again_keeps_its_state_priority_and_age(redis_client: redis.Redis) -> None:
    assert register_run(redis_client, record()) == record()
    set_run_state(redis_client, RUN, "paused")
    set_run_priority(redis_client, RUN, 5)
    again = register_run(redis_client, record(submitted_at=9999.0, samples=101))
    assert again == record(samples=101, state="paused", priority=5)
    assert get_run(redis_client, RUN) == again


def test_runs_are_listed_by_priority_then_age_and_forgotten_whole(redis_client: redis.Redis) -> None:
    for run_id, submitted_at in (("young", 3.0), ("old", 1.0), ("urgent", 2.0)):
        register_run(redis_client, record(run_id, submitted_at))
    set_run_priority(redis_client, "urgent", 1)
    assert [run.run_id for run in list_runs(redis_client)] == ["urgent", "old", "young"]
    for run_id in ("young", "old", "urgent"):
        forget_run(redis_client, run_id)
    assert list_runs(redis_client) == []
    assert redis_client.keys("*") == []


@pytest.mark.parametrize(
    ("state", "paused", "refused"),
    [
        ("complete", True, True),
        ("complete", False, True),
        ("cancelled", True, True),
        ("cancelled", False, False),
    ],
)
def test_a_run_that_is_over_is_not_paused(
    redis_client: redis.Redis, state: RunStateName, paused: bool, refused: bool
) -> None:
    register_run(redis_client, record())
    assert pause_run(redis_client, RUN, paused=True).state == "paused"
    assert pause_run(redis_client, RUN, paused=False).state == "active"
    set_run_state(redis_client, RUN, state)
    if refused:
        with pytest.raises(ConfigError, match=f"is {state}: there is nothing"):
            pause_run(redis_client, RUN, paused=paused)
        assert [run.state for run in list_runs(redis_client)] == [state]
    else:
        assert pause_run(redis_client, RUN, paused=paused).state == "active"


def test_a_run_that_redis_does_not_know_is_not_brought_to_life(redis_client: redis.Redis) -> None:
    with pytest.raises(ConfigError, match="there is no run 'nobody' in Redis"):
        set_run_state(redis_client, "nobody", "paused")
    assert get_run(redis_client, "nobody") is None
    assert redis_client.keys("*") == []
    with pytest.raises(ConfigError, match="'sleeping' is not a state of a run"):
        set_run_state(redis_client, "nobody", "sleeping")  # type: ignore[arg-type]


def test_a_record_of_another_version_is_left_out_of_the_list(redis_client: redis.Redis) -> None:
    register_run(redis_client, record())
    redis_client.hset("hiddenfeed:run:other", "run_id", "other")
    redis_client.sadd("hiddenfeed:runs", "other")
    assert [run.run_id for run in list_runs(redis_client)] == [RUN]


@pytest.mark.parametrize("run_id", ["../e v il", "", "x" * 200, "<b>"])
def test_a_record_of_a_run_that_cannot_be_is_left_out_of_the_list(
    redis_client: redis.Redis, run_id: str
) -> None:
    register_run(redis_client, record())
    fields = {name: str(value) for name, value in msgspec.to_builtins(record()).items()}
    redis_client.hset("hiddenfeed:run:other", mapping={**fields, "run_id": run_id})
    redis_client.sadd("hiddenfeed:runs", "other")
    assert [run.run_id for run in list_runs(redis_client)] == [RUN]


def test_amounts_that_are_none_are_left_out(redis_client: redis.Redis) -> None:
    register_run(redis_client, record())
    _, totals, *_ = progress_keys(RUN)
    redis_client.hset(
        totals, mapping={"batches": "3", "first_at": "nan", "last_at": "inf", "samples": "9" * 5000}
    )
    progress = read_progress(redis_client, RUN)
    assert (progress.batches, progress.samples) == (3, 0)
    assert (progress.first_at, progress.last_at) == (Progress(run_id=RUN).first_at, 0.0)


@pytest.mark.parametrize("count", ["²", "9" * 5000, "-1", "many"])
def test_a_worker_whose_counts_are_none_is_listed(redis_client: redis.Redis, count: str) -> None:
    key = "rq:worker:gpu_worker-h-1"
    redis_client.hset(
        key, mapping={"hf_role": "gpu_worker", "hf_running": count, "total_working_time": "nan"}
    )
    redis_client.sadd("rq:workers", key)
    (worker,) = list_workers(redis_client)
    assert (worker.running, worker.working_seconds) == (0, 0.0)


def test_a_key_of_another_kind_in_place_of_a_record_stops_no_run(redis_client: redis.Redis) -> None:
    register_run(redis_client, record())
    redis_client.set("hiddenfeed:run:other", "no hash")
    redis_client.sadd("hiddenfeed:runs", "other")
    assert [run.run_id for run in list_runs(redis_client)] == [RUN]
    assert redis_client.smembers("hiddenfeed:runs") == {RUN.encode()}


def test_each_batch_counts_once_however_often_it_is_delivered(redis_client: redis.Redis) -> None:
    assert read_progress(redis_client, RUN) == Progress(run_id=RUN)
    note(redis_client, 0, now=2000.0)
    note(redis_client, 0, outcome="already-there", now=2001.0)
    note(redis_client, 7, worker="gpu b", now=2002.0)
    note(redis_client, 8, outcome="sent-back", now=2003.0)
    progress = read_progress(redis_client, RUN)
    assert (progress.batches, progress.samples, progress.tokens, progress.bytes) == (2, 20, 1000, 4000)
    assert (progress.first_at, progress.last_at) == (2000.0, 2002.0)
    first, second = progress.workers
    assert (first.worker, first.device, first.batches, first.padded_tokens) == ("gpu a:1", "cpu", 1, 512)
    assert (first.forward_seconds, first.total_seconds, first.bytes) == (0.25, 0.5, 2000)
    assert (second.worker, second.batches) == ("gpu b", 1)
    assert (progress.squares, first.squares) == (60_000, 30_000)
    (cost,) = progress.first_costs
    assert (cost.device, cost.batches, cost.x, cost.z, cost.y) == ("cpu", 2, 1.0, 0.06, 0.5)
    assert progress.costs == ()
    assert (first.halvings, first.quarantined) == (3, 0)
    assert (second.worker, second.batches, second.quarantined) == ("gpu b", 1, 1)
    [uploader] = progress.uploaders
    assert (uploader.uploader, uploader.files, uploader.duplicates, uploader.bytes) == ("up-1", 3, 1, 4000)
    assert uploader.upload_seconds == 0.375
    assert all(int(redis_client.ttl(key)) > 0 for key in redis_client.keys("hiddenfeed:progress:*"))


def test_samples_set_aside_count_once_with_the_last_reason(redis_client: redis.Redis) -> None:
    for batch_id, reason in ((0, "first"), (1, "second " + "x" * 1000), (1, "again")):
        message = upload(batch_id)
        report = msgspec.structs.replace(
            message.report, set_aside=2, set_aside_reason=reason, padded_tokens=400, computed_tokens=300,
            computed_squares=20_000,
        )  # fmt: skip
        store(redis_client, msgspec.structs.replace(message, report=report))
    progress = read_progress(redis_client, RUN)
    assert progress.set_aside == 4
    # All of the run's tokens are dealt with; the worker's seconds were spent on those that are stored.
    assert (progress.samples, progress.tokens) == (20, 1000)
    (worker,) = progress.workers
    assert (worker.samples, worker.tokens, worker.squares, worker.padded_tokens) == (16, 600, 40_000, 800)
    assert (worker.padding, worker.tokens / worker.forward_seconds) == (0.25, 1200)
    (first,), (other,) = progress.first_costs, progress.costs
    assert (first.x, other.x) == pytest.approx((0.3, 0.3))
    assert worker.recent_work.tokens == 300
    assert first.z + other.z == pytest.approx(0.04)
    assert progress.set_aside_reason == ("second " + "x" * 1000)[:500]


def test_a_batch_without_states_adds_nothing_to_what_was_computed(redis_client: redis.Redis) -> None:
    note(redis_client, 0)
    report = BatchReport(
        worker="gpu a:1", device="cpu", total_seconds=3.0, set_aside=10, set_aside_reason="no", computed_tokens=0,
        computed_squares=0, failed_checks={"canary": 10, "<evil": 3}, guards={"reason": "no"},
    )  # fmt: skip
    store(redis_client, msgspec.structs.replace(upload(7), report=report))
    progress = read_progress(redis_client, RUN)
    (worker,) = progress.workers
    assert (progress.tokens, worker.tokens, worker.samples, worker.quarantined) == (1000, 500, 10, 1)
    assert worker.tokens / worker.forward_seconds == 500 / 0.25
    assert (progress.checks.failed, progress.checks.batches) == ({"canary": 10}, 0)


def test_checks_keep_the_worst_of_every_kind_with_its_batch(redis_client: redis.Redis) -> None:
    told = (
        # norms, zeros, canary's cosine and error, self-test's
        (4, "5.5,90", "6.5,700", "0,0.02", "0.9999", "0.001"),
        (12, "5,95", "6,649.5", "0.01,0", "0.9991", "0.004"),
        (12, "1,1", "9,999", "0.5,0.5", "0.1", "9"),
        (31, "5.1,80", "6.1,650", "0.005,0.01", "0.9995", "1e-05"),
    )
    for batch, low, high, zeros, cosine, error in told:
        guards = {
            "norm_min": low, "norm_max": high, "zero_fraction": zeros, "canary_cosine": cosine, "canary_error": error,
            "selftest_cosine": "0.99", "selftest_error": "0.02",
        }  # fmt: skip
        message = upload(batch)
        store(
            redis_client,
            msgspec.structs.replace(message, report=msgspec.structs.replace(message.report, guards=guards)),
        )
    states = ["tap 2", "the final state"]
    checks = read_progress(redis_client, RUN, states).checks
    # A batch that is delivered twice counts once: the third one says nothing.
    assert (checks.batches, checks.canaries) == (3, 3)
    assert (checks.canary_cosine, checks.canary_error) == (Extreme(0.9991, 12), Extreme(0.004, 12))
    assert (checks.selftest_cosine, checks.selftest_error) == (Extreme(0.99, 4), Extreme(0.02, 4))
    tap, final = checks.states
    assert tap == StateRange(
        state="tap 2", norm_low=Extreme(5.0, 12), norm_high=Extreme(6.5, 4), zero_share=Extreme(0.01, 12)
    )
    assert final == StateRange(
        state="the final state",
        norm_low=Extreme(80, 31),
        norm_high=Extreme(700, 4),
        zero_share=Extreme(0.02, 4),
    )
    # However many batches and taps: Redis holds a fixed number of fields.
    assert redis_client.hlen(f"hiddenfeed:progress:{RUN}:checks") == 9


@pytest.mark.parametrize("norms", ["nan", "inf,1", "one", "", ",", "1 2,3", "\n"])
def test_checks_of_a_message_that_holds_no_numbers_are_left_out(
    redis_client: redis.Redis, norms: str
) -> None:
    message = upload(0)
    report = msgspec.structs.replace(message.report, guards={"norm_min": norms, "canary_cosine": norms})
    store(redis_client, msgspec.structs.replace(message, report=report))
    assert read_progress(redis_client, RUN).checks == Checks()
    redis_client.hset(f"hiddenfeed:progress:{RUN}:checks", mapping={"canary_cosine": norms, "batches": norms})
    assert read_progress(redis_client, RUN).checks.canary_cosine is None


def test_time_between_batches_counts_but_for_long_pauses(redis_client: redis.Redis) -> None:
    # The third is delivered twice; before the fourth the run was paused for an hour.
    for batch_id, now in ((0, 2000.0), (1, 2010.0), (2, 2025.0), (2, 2030.0), (3, 5625.0)):
        note(redis_client, batch_id, now=now)
    (worker,) = read_progress(redis_client, RUN).workers
    assert worker.active_seconds == 10 + 15 + 60
    expected = RecentWork()
    for seconds in (10, 15, 60):
        expected = expected.after(seconds, 500, 30_000, 0.25)
    found = msgspec.structs.asdict(worker.recent_work)
    assert found == pytest.approx(msgspec.structs.asdict(expected), rel=1e-6)


def test_costs_are_kept_by_kind_of_device_without_first_batches(redis_client: redis.Redis) -> None:
    kinds = {"a": "NVIDIA H200", "b": "NVIDIA A100-SXM4-80GB", "c": ""}
    for batch_id in range(9):
        worker = "abc"[batch_id % 3]
        message = upload(batch_id, worker)
        report = msgspec.structs.replace(message.report, device="cuda:1", kind=kinds[worker] or UNSET)
        _note_message(redis_client, msgspec.structs.replace(message, report=report), batch_id)
    progress = read_progress(redis_client, RUN)
    assert {cost.device: cost.batches for cost in progress.costs} == {
        "NVIDIA H200": 2, "NVIDIA A100-SXM4-80GB": 2, "cuda": 2,
    }  # fmt: skip
    assert {cost.device: cost.batches for cost in progress.first_costs} == {
        "NVIDIA H200": 1, "NVIDIA A100-SXM4-80GB": 1, "cuda": 1,
    }  # fmt: skip
    assert {worker.device_class for worker in progress.workers} == {cost.device for cost in progress.costs}


def test_kinds_of_devices_are_bounded_whatever_is_said(redis_client: redis.Redis) -> None:
    for batch_id in range(80):
        message = upload(batch_id, f"w{batch_id}")
        report = msgspec.structs.replace(message.report, kind=f"kind {batch_id} " + "x" * 1000)
        _note_message(redis_client, msgspec.structs.replace(message, report=report), batch_id)
    progress = read_progress(redis_client, RUN)
    assert progress.batches == len(progress.workers) == 80
    assert len(progress.first_costs) == 32
    assert max(len(worker.kind) for worker in progress.workers) == 80


def _note_message(client: redis.Redis, message: UploadFile, batch_id: int) -> None:
    receipt = UploadReceipt(
        run_id=RUN, batch_id=batch_id, key="k", outcome="stored", size_bytes=1, upload_seconds=1.0
    )
    with client.pipeline(transaction=True) as pipe:
        note_stored(pipe, message, receipt, 2000.0 + batch_id)
        pipe.execute()


def test_what_the_store_holds_already_counts_once_after_a_wipe(redis_client: redis.Redis) -> None:
    found = [FoundBatch(batch_id=number, samples=10, tokens=500, bytes=2000) for number in range(1200)]
    assert note_found(redis_client, RUN, found) == 1200
    assert note_found(redis_client, RUN, found[:5]) == 0
    note(redis_client, 3)
    progress = read_progress(redis_client, RUN)
    assert (progress.batches, progress.bytes, progress.workers) == (1200, 2_400_000, ())


def test_a_batch_number_out_of_all_bounds_costs_no_memory(redis_client: redis.Redis) -> None:
    note(redis_client, 2**33)
    assert redis_client.keys("*") == []
