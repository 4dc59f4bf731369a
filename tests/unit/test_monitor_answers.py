"""The five questions: what is answered when all is well, and when it is not."""

from __future__ import annotations

import msgspec
import pytest

from common.queues import FailedJob, QueueCounts
from common.spool import SpoolUsage
from monitor.facts import Facts, QueueFacts
from monitor.plain import render_plain
from monitor.snapshot import take_snapshot
from monitor.terminal import render
from monitor.views import Answer, Snapshot
from tests.monitor_scene import GIB, NOW, QUEUE, RUN, points, scene, worker


def _look(facts: Facts) -> Snapshot:
    return take_snapshot(facts, NOW)


def _answers(facts: Facts) -> dict[str, Answer]:
    return {answer.about: answer for answer in _look(facts).answers}


def _with_run(**changes: object) -> Facts:
    (run,) = scene().runs
    return scene(runs=(msgspec.structs.replace(run, **changes),))


def test_all_five_are_answered() -> None:
    found = _answers(scene())
    assert list(found) == ["busy", "upload", "done", "wrong", "disk"]
    assert found["busy"].text == "2 of 2 workers busy, devices computing 95% of the time"
    assert found["upload"].text == "5 files on the way; 95.4 MiB/s stored, 95.4 MiB/s extracted"
    assert "50.0%, about 1 min 4" in found["done"].text
    assert found["wrong"].text == "1 batch of demo-0123456789ab failed and must be looked at"
    assert found["disk"].text == "12% of 50.0 GiB used by 5 files, full in 1 h 28 min; 900.0 GiB free on disk"
    assert [answer.verdict for answer in found.values()] == ["good", "good", "good", "bad", "good"]
    briefs = [answer.brief for answer in found.values()]
    assert briefs[:2] == ["2 of 2 busy", "keeping up"]
    assert briefs[2].startswith("about 1 min 4")
    assert briefs[3:] == ["1 problem", "12% full"]


def test_a_worker_that_fell_silent_and_one_that_waits() -> None:
    silent = scene(workers=(worker("gpu_worker-h-1"), worker("gpu_worker-h-2", last_heartbeat=NOW - 60)))
    assert _answers(silent)["busy"].text.endswith("; 1 silent")
    assert _answers(silent)["busy"].brief == "1 of 2 silent"
    assert _answers(silent)["busy"].verdict == "bad"
    waits = worker("gpu_worker-h-2", running=0, waiting="the spool is full")
    found = _answers(scene(workers=(worker("gpu_worker-h-1"), waits)))["busy"]
    assert (found.verdict, "waiting: the spool is full" in found.text) == ("warn", True)
    assert _answers(scene(workers=()))["busy"].verdict == "bad"


def test_a_worker_that_is_gone_is_missed_while_there_is_work() -> None:
    gone = scene(workers=(worker("gpu_worker-h-1"),))
    found = _answers(gone)["busy"]
    assert (found.verdict, found.text.rpartition("; ")[2]) == ("warn", "1 gone within the last hour")
    at_the_end = _with_run(extract=QueueFacts(name=QUEUE, counts=QueueCounts(started=1)))
    assert _answers(msgspec.structs.replace(at_the_end, workers=gone.workers))["busy"].verdict == "good"


def test_nobody_is_missed_when_all_is_done() -> None:
    (run,) = scene().runs
    done = msgspec.structs.replace(run, record=msgspec.structs.replace(run.record, state="complete"))
    assert _answers(scene(runs=(done,), workers=()))["busy"].text == "there is nothing to do"
    idle = _answers(scene(runs=(done,), workers=(worker("gpu_worker-h-1", running=0),)))["busy"]
    assert (idle.verdict, idle.text) == ("good", "there is nothing to do; 1 worker idle")


def test_what_redis_would_have_to_say_is_unknown_while_it_is_away() -> None:
    found = _answers(scene(redis_error="Redis is not there", runs=(), workers=(), uploads=()))
    assert [answer.verdict for answer in found.values()] == ["unknown", "unknown", "unknown", "bad", "good"]


def test_of_many_reasons_and_silent_processes_a_few_are_told() -> None:
    waiting = tuple(
        worker(f"gpu_worker-w-{number}", running=0, waiting=f"spool {number} is full") for number in range(9)
    )
    assert (
        "spool 0 is full; spool 1 is full; and 7 other reasons"
        in _answers(scene(workers=waiting))["busy"].text
    )
    silent = tuple(worker(f"gpu_worker-s-{number}", last_heartbeat=NOW - 60) for number in range(300))
    problems = _look(scene(workers=silent)).problems
    assert sum("has been silent" in problem for problem in problems) == 5
    assert "silent as well: 295 more processes" in problems


def test_upload_that_falls_behind() -> None:
    found = _answers(_with_run(recent=points(backlog_step=2)))["upload"]
    assert (found.verdict, found.brief) == ("warn", "falling behind")
    assert "24 files more than 2 min 00 s ago" in found.text
    failed = (QueueFacts(name="upload-default", counts=QueueCounts(failed=1)),)
    found = _answers(scene(uploads=failed))["upload"]
    assert (found.verdict, found.brief) == ("bad", "1 file failed")


def test_what_is_tried_again_is_said_with_its_reason() -> None:
    why = "S3 at http://s3 is not reachable: connection refused"
    job = FailedJob("upload-demo-000003", "upload batch 3 of demo", why)
    queue = QueueFacts(name="upload-default", counts=QueueCounts(scheduled=1), retrying=(job,))
    facts = scene(uploads=(queue,))
    found = _answers(facts)["upload"]
    assert (found.verdict, found.brief) == ("warn", "trying again")
    assert found.text.startswith(f"1 file on the way, 1 to be tried again ({why})")
    for shown in (render(_look(facts)), render_plain(_look(facts))):
        assert f"to be tried again: upload batch 3 of demo: {why}" in shown
    extract = QueueFacts(name=QUEUE, counts=QueueCounts(queued=9, scheduled=1), retrying=(job,))
    assert _answers(_with_run(extract=extract))["wrong"].text == f"1 batch to be tried again ({why})"
    well = _with_run(extract=QueueFacts(name=QUEUE, counts=QueueCounts(queued=9)))
    found = _answers(msgspec.structs.replace(well, uploads=(queue,)))["wrong"]
    assert (found.verdict, found.text) == ("warn", f"1 file to be tried again ({why})")


def test_files_that_nobody_uploads() -> None:
    workers = (worker("gpu_worker-h-1"), worker("uploader-h-3", "uploader"))
    silent = worker("uploader-h-3", "uploader", last_heartbeat=NOW - 60)
    elsewhere = worker("uploader-h-3", "uploader", queue="upload-other")
    for there in ((workers[0],), (workers[0], silent), (workers[0], elsewhere)):
        facts = scene(workers=there)
        found = _answers(facts)
        assert (found["upload"].verdict, found["upload"].brief) == ("bad", "no uploader")
        assert (found["done"].verdict, found["done"].brief) == ("bad", "waits for uploads")
        assert "no uploader takes from upload-default: 5 files waiting" in _look(facts).problems
    looking = worker("uploader-h-4", "uploader", queue=None)
    for facts in (scene(workers=workers), scene(workers=(looking,)), scene(workers=(), uploads=())):
        assert not any("uploader" in problem for problem in _look(facts).problems)


def test_whether_upload_keeps_up_is_not_known_before_anybody_has_watched() -> None:
    found = _answers(_with_run(recent=()))["upload"]
    assert (found.verdict, found.brief, found.text) == ("unknown", "not known yet", "5 files on the way")
    idle = msgspec.structs.replace(_with_run(recent=()), uploads=())
    assert _answers(idle)["upload"].verdict == "good"


def test_how_long_until_the_spool_is_full_or_empty() -> None:
    filling = _look(_with_run(recent=points(spool_step=GIB // 12)))
    assert filling.spool is not None
    # 6 GiB now, 5 GiB two minutes ago, 44 GiB to go.
    assert filling.spool.full_in_seconds == pytest.approx(44 * 120)
    slowly = _answers(_with_run(recent=points(spool_step=2**20)))["disk"]
    assert "full in" in slowly.text
    usage = SpoolUsage(files=1, bytes=5 * GIB + 10**6, part_bytes=0, cap_bytes=50 * GIB, disk_free_bytes=1)
    assert "full in" not in _answers(scene(spool=usage))["disk"].text
    emptying = scene(
        spool=SpoolUsage(files=1, bytes=GIB, part_bytes=0, cap_bytes=50 * GIB, disk_free_bytes=1)
    )
    spool = _look(emptying).spool
    assert spool is not None
    assert spool.full_in_seconds is None
    assert spool.empty_in_seconds == pytest.approx(30)
    full = SpoolUsage(files=48, bytes=48 * GIB, part_bytes=0, cap_bytes=50 * GIB, disk_free_bytes=1)
    found = _answers(scene(spool=full))["disk"]
    assert (found.verdict, found.brief) == ("bad", "96% full")
    assert _answers(scene(spool=None))["disk"].verdict == "unknown"


def test_workers_held_back_for_want_of_disk() -> None:
    why = "disk short of --spool-free-bytes"
    held = worker("gpu_worker-h-1", queue="", running=0, waiting=why)
    (run,) = scene().runs
    still = msgspec.structs.replace(
        run, extract=msgspec.structs.replace(run.extract, counts=QueueCounts(queued=9))
    )
    facts = scene(runs=(still,), workers=(held,))
    found = _answers(facts)["disk"]
    assert (found.verdict, found.text.endswith(f"; workers wait: {why}")) == ("bad", True)
    assert f"{run.record.run_id} stands still: its workers wait: {why}" in _look(facts).problems
    elsewhere = _answers(scene(spool=None, workers=(held,)))["disk"]
    assert (elsewhere.verdict, why in elsewhere.text) == ("bad", True)


def test_samples_set_aside_are_said_with_their_reason() -> None:
    (run,) = scene().runs
    progress = msgspec.structs.replace(run.progress, set_aside=3, set_aside_reason="tap 2 is not finite")
    snapshot = _look(_with_run(progress=progress))
    assert snapshot.runs[0].set_aside == 3
    assert (
        f"3 samples of {run.record.run_id} set aside, the last because: tap 2 is not finite"
        in snapshot.problems
    )


def test_points_of_long_ago_say_nothing() -> None:
    snapshot = take_snapshot(scene(workers=()), NOW + 100)
    assert snapshot.runs[0].recent is None
    assert snapshot.spool is not None
    assert snapshot.spool.full_in_seconds is None


def test_workers_of_a_run_carry_their_state_and_what_they_have_in_hand() -> None:
    newcomer = worker("gpu_worker-h-9", running=0)
    facts = scene(workers=(worker("gpu_worker-h-1"), newcomer))
    (run,) = _look(facts).runs
    assert [(device.worker, device.state, device.batches) for device in run.workers] == [
        ("gpu_worker-h-1", "busy", 50),
        ("gpu_worker-h-2", "gone", 50),
        ("gpu_worker-h-9", "idle", 0),
    ]
    assert run.workers[0].current == (f"{QUEUE}-000101",)
    assert run.workers[0].busy == pytest.approx(1 / 1.05)


def test_nothing_to_say_without_runs() -> None:
    found = _answers(Facts(lease_seconds=45.0))
    assert [answer.verdict for answer in found.values()] == ["unknown", "good", "unknown", "good", "unknown"]


def test_the_run_that_is_answered_about_is_named_and_every_run_has_an_answer() -> None:
    """A page shows one run: what is said beside it must be about the same."""
    (run,) = scene().runs
    record = run.record

    ended = msgspec.structs.replace(record, run_id="over-0", state="cancelled")
    progress = msgspec.structs.replace(run.progress, run_id="over-0")
    over = msgspec.structs.replace(run, record=ended, progress=progress)
    snapshot = _look(scene(runs=(over, run)))
    assert snapshot.main_run == RUN
    first, second = snapshot.when_done
    assert first.text == "over-0 is cancelled"
    assert second == next(answer for answer in snapshot.answers if answer.about == "done")
    last = _look(scene(runs=(over,)))
    assert (last.main_run, _look(scene(runs=())).main_run) == ("over-0", "")


@pytest.mark.parametrize("queue", ["extract", "upload"])
def test_a_command_is_offered_for_names_that_we_give_and_for_no_others(queue: str) -> None:
    """It is pasted into a shell."""
    jobs = tuple(FailedJob(f"{queue}-{run}-000007", "", "") for run in (RUN, "x; rm -rf ~", "$(id)", ""))
    failing = QueueFacts(name=queue, counts=QueueCounts(failed=4), failed=jobs)
    (run,) = scene().runs
    runs = (msgspec.structs.replace(run, extract=failing),)
    snapshot = _look(scene(runs=runs) if queue == "extract" else scene(uploads=(failing,)))
    (view,) = snapshot.runs if queue == "extract" else snapshot.uploads
    assert [each.command for each in view.failures] == [f"python -m producer retry-failed {RUN}", "", "", ""]
