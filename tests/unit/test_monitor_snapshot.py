"""What the monitor makes of facts: words, rates, problems, and texts that command nothing."""

from __future__ import annotations

import msgspec
import pytest

from common.queues import FailedJob, QueueCounts
from common.run_state import Progress, RunRecord, UploaderProgress, WorkerProgress
from common.spool import SpoolUsage
from common.worker.presence import WorkerInfo
from monitor import words
from monitor.facts import Facts, QueueFacts, RunFacts
from monitor.plain import render_plain
from monitor.snapshot import take_snapshot
from monitor.terminal import render
from monitor.views import RunView, Snapshot

NOW = 1_000_000.0
LEASE = 45.0
RUN = "demo-0123456789ab"
QUEUE = f"extract-{RUN}"
EVIL = "<script>alert(1)</script>\x1b]0;owned\x07"


def _record(**changes: object) -> RunRecord:
    base = RunRecord(run_id=RUN, model="m", samples=100, tokens=10_000, batches=10, submitted_at=NOW - 100)
    return msgspec.structs.replace(base, **changes)


def _progress(batches: int, **changes: object) -> Progress:
    base = Progress(
        run_id=RUN,
        batches=batches,
        samples=batches * 10,
        tokens=batches * 1000,
        bytes=batches * 10**6,
        first_at=NOW - 50,
        last_at=NOW - 10,
    )
    return msgspec.structs.replace(base, **changes)


def _run(progress: Progress, counts: QueueCounts | None = None, **record: object) -> RunFacts:
    return RunFacts(
        record=_record(**record),
        progress=progress,
        extract=QueueFacts(name=QUEUE, counts=counts or QueueCounts()),
    )


def _worker(**changes: object) -> WorkerInfo:
    base = WorkerInfo(
        name="w1",
        role="gpu_worker",
        queue=QUEUE,
        state="idle",
        waiting="",
        running=0,
        slots=3,
        finished=0,
        failed=0,
        working_seconds=0.0,
        host="h",
        pid=1,
        started_at=NOW - 60,
        last_heartbeat=NOW - 3,
    )
    return msgspec.structs.replace(base, **changes)


def _look(*runs: RunFacts, **facts: object) -> Snapshot:
    return take_snapshot(msgspec.structs.replace(Facts(lease_seconds=LEASE, runs=runs), **facts), NOW)


def _view(run: RunFacts, **facts: object) -> RunView:
    return _look(run, **facts).runs[0]


def test_rate_leaves_the_first_batch_out_and_gives_the_time_left() -> None:
    run = _run(_progress(5), QueueCounts(queued=4, started=1))
    view = _view(run, workers=(_worker(),))
    # Four batches of 1,000 tokens in the 40 s between the first one's end and the last one's.
    assert view.tokens_per_second == pytest.approx(100)
    assert view.remaining_seconds == pytest.approx(50)
    assert view.done == 0.5
    # Nobody is there who would do the rest.
    assert _view(run).remaining_seconds is None
    assert _view(run, workers=(_worker(last_heartbeat=NOW - 999),)).remaining_seconds is None


@pytest.mark.parametrize("batches", [0, 1])
def test_one_batch_tells_no_rate(batches: int) -> None:
    view = _view(_run(_progress(batches), QueueCounts(queued=1, started=1)))
    assert (view.tokens_per_second, view.remaining_seconds) == (None, None)


UPLOADING = (QueueFacts(name="upload-default", counts=QueueCounts(queued=1)),)


@pytest.mark.parametrize(
    ("run", "facts", "state"),
    [
        (_run(_progress(0), QueueCounts(queued=10)), {}, "waiting"),
        (_run(_progress(0), QueueCounts(queued=10)), {"workers": (_worker(),)}, "waiting"),
        (_run(_progress(0), QueueCounts(queued=9, started=1)), {}, "running"),
        (_run(_progress(3), QueueCounts(queued=7)), {"workers": (_worker(),)}, "running"),
        (_run(_progress(3), QueueCounts(queued=7)), {}, "stalled"),
        (
            _run(_progress(3), QueueCounts(queued=7)),
            {"workers": (_worker(last_heartbeat=NOW - 999),)},
            "stalled",
        ),
        (_run(_progress(3), QueueCounts(queued=7)), {"workers": (_worker(queue="other"),)}, "stalled"),
        (_run(_progress(9)), {"uploads": UPLOADING}, "uploading"),
        (_run(_progress(10)), {}, "proving"),
        (msgspec.structs.replace(_run(_progress(10)), proved=True), {}, "complete"),
        (_run(_progress(3), QueueCounts(queued=7), state="paused"), {"workers": (_worker(),)}, "paused"),
        (_run(_progress(10), state="complete"), {}, "complete"),
    ],
)
def test_state_is_one_word(run: RunFacts, facts: dict[str, object], state: str) -> None:
    assert _view(run, **facts).state == state


def test_worker_shows_stage_shares_and_padding() -> None:
    worker = WorkerProgress(
        worker="w1",
        device="cuda:0",
        batches=3,
        samples=30,
        tokens=900,
        padded_tokens=1000,
        read_seconds=1,
        forward_seconds=7,
        stall_seconds=0,
        write_seconds=2,
        first_at=NOW - 20,
        last_at=NOW - 10,
    )
    (view,) = _view(_run(_progress(3, workers=(worker,)))).workers
    assert view.stages == {"read": 0.1, "forward": 0.7, "stall": 0.0, "write": 0.2}
    assert view.padding == pytest.approx(0.1)
    assert view.tokens_per_second == pytest.approx(60)
    assert view.last_seconds_ago == 10


def test_a_worker_that_has_done_nothing_yet_divides_by_nothing() -> None:
    view = _view(
        _run(
            _progress(0, workers=(WorkerProgress(worker="w1"),), uploaders=(UploaderProgress(uploader="u"),))
        )
    )
    assert (
        view.workers[0].padding,
        sum(view.workers[0].stages.values()),
        view.workers[0].last_seconds_ago,
    ) == (0, 0, None)
    assert view.uploaders[0].bytes_per_second is None


def test_problems_are_sentences_and_the_worst_comes_first() -> None:
    failed = QueueFacts(
        name=QUEUE, counts=QueueCounts(failed=2), failed=(FailedJob("j", "extract batch 3", "out of memory"),)
    )
    run = msgspec.structs.replace(_run(_progress(3)), extract=failed)
    usage = SpoolUsage(files=9, bytes=95, part_bytes=0, cap_bytes=100, disk_free_bytes=10**9)
    snapshot = _look(
        run,
        redis_error="Redis at h:1 is not there: connection refused",
        workers=(_worker(last_heartbeat=NOW - 100),),
        uploads=(QueueFacts(name="upload-default", counts=QueueCounts(failed=1)),),
        spool=usage,
        spool_name="default",
    )
    assert snapshot.problems == (
        "Redis at h:1 is not there: connection refused",
        f"2 batches of {RUN} failed and must be looked at",
        f"{RUN} stands still: no GPU worker takes its batches",
        "1 file of upload-default failed to upload and must be looked at",
        "w1 has been silent for 100 s",
        "the spool default is 95% full: GPU workers wait for uploads",
    )
    assert "extract batch 3: out of memory" in render(snapshot)


def _past(run_id: str, state: str) -> RunFacts:
    """A run that is over, with a failed batch, one that will be tried again, samples set aside and no proof."""
    run = _run(_progress(10, set_aside=3), QueueCounts(failed=1, scheduled=1), run_id=run_id, state=state)
    return msgspec.structs.replace(run, proved=False)


@pytest.mark.parametrize("state", ["complete", "cancelled"])
def test_what_failed_in_a_run_that_is_over_is_no_problem_of_the_next(state: str) -> None:
    past = _past("past-0123456789ab", state)
    failed = tuple(FailedJob(f"upload-past-0123456789ab-00000{number}", "", "gone") for number in range(2))
    uploads = QueueFacts(name="upload-default", counts=QueueCounts(failed=2), failed=failed)
    snapshot = _look(
        past, _run(_progress(3), QueueCounts(queued=7)), workers=(_worker(),), uploads=(uploads,)
    )
    assert snapshot.problems == ()
    answers = {answer.about: answer for answer in snapshot.answers}
    assert (answers["wrong"].verdict, answers["wrong"].text) == ("good", "nothing")
    assert answers["upload"].verdict == "good"
    # In its own view it stands all the same.
    assert (snapshot.runs[0].failed, snapshot.runs[0].set_aside) == (1, 3)

    # A file of the run that goes on counts, and no other does.
    own = FailedJob(f"upload-{RUN}-000001", "", "gone")
    both = msgspec.structs.replace(uploads, counts=QueueCounts(failed=3), failed=(own, *failed))
    (problem,) = _look(
        past, _run(_progress(3), QueueCounts(queued=7)), workers=(_worker(),), uploads=(both,)
    ).problems
    assert problem == "1 file of upload-default failed to upload and must be looked at"


def test_what_failed_in_the_last_run_is_a_problem_until_there_is_another() -> None:
    snapshot = _look(_past("older-0123456789ab", "complete"), _past(RUN, "complete"))
    assert len(snapshot.problems) == 3
    assert all(RUN in problem for problem in snapshot.problems)


def test_a_worker_that_cannot_serve_a_run_is_a_problem() -> None:
    reason = (
        f"cannot serve {RUN}: the self-test failed: tap 3 of a padded batch is not what the whole model gives"
    )
    facts = Facts(lease_seconds=LEASE, runs=(_run(_progress(0)),), workers=(_worker(waiting=reason),))
    assert take_snapshot(facts, NOW).problems == (f"w1 {reason}",)


def test_process_states() -> None:
    workers = (
        _worker(name="a", running=1),
        _worker(name="b"),
        _worker(name="c", waiting="the spool is full"),
        _worker(name="d", last_heartbeat=NOW - 46),
        _worker(name="e", last_heartbeat=0.0),
    )
    assert [process.state for process in _look(workers=workers).processes] == [
        "busy",
        "idle",
        "waiting",
        "silent",
        "idle",
    ]


def test_nothing_at_all_is_shown_plainly() -> None:
    snapshot = _look()
    assert not snapshot.problems
    assert "no runs yet" in render(snapshot)
    assert "No runs yet" in render_plain(snapshot)


def test_what_could_not_be_seen_is_marked_everywhere() -> None:
    run = _run(_progress(10), state="complete")
    away = _look(run, store="s3://b/p", store_error="bucket 'b' does not exist at e", exit_code=2)
    assert (away.problems, away.exit_code) == (("bucket 'b' does not exist at e",), 2)
    for shown in (render(away), render_plain(away)):
        assert "Proofs are unknown: the store could not be read." in shown
        assert "complete, whether it is proved is unknown" in shown.replace("</span>", "")
    blind = _look(redis_error="Redis at h:1 is not there", exit_code=75)
    for shown in (render(blind), render_plain(blind)):
        assert "Runs, queues and processes are unknown: Redis could not be read." in shown


def test_a_run_that_redis_calls_complete_needs_its_proof() -> None:
    lacking = msgspec.structs.replace(_run(_progress(10), state="complete"), proved=False)
    (problem,) = _look(lacking, store="s3://b/p").problems
    assert problem == (
        f"Redis says that {RUN} is complete, and s3://b/p holds no proof of it: is --store the right one?"
    )
    proved = _look(msgspec.structs.replace(lacking, proved=True), store="s3://b/p")
    assert not proved.problems
    assert f"{RUN}  complete, proved  [" in render(proved)
    # Without a store nobody asked, so nothing is said of it.
    assert f"{RUN}  complete  [" in render(_look(_run(_progress(10), state="complete")))


def test_texts_from_redis_command_neither_browser_nor_terminal() -> None:
    failed = QueueFacts(
        name=f"upload-{EVIL}", counts=QueueCounts(failed=1), failed=(FailedJob(EVIL, EVIL, EVIL),)
    )
    progress = _progress(
        3, workers=(WorkerProgress(worker=EVIL, device=EVIL),), uploaders=(UploaderProgress(uploader=EVIL),)
    )
    run = RunFacts(record=_record(run_id=EVIL, model=EVIL), progress=progress, extract=failed)
    snapshot = _look(
        run,
        uploads=(failed,),
        workers=(_worker(name=EVIL), _worker(waiting=EVIL)),
        store=EVIL,
        redis_error=EVIL,
    )
    page, text = render_plain(snapshot), render(snapshot)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 12
    assert all(line.isprintable() for line in text.splitlines())
    assert text.count("alert(1)") >= 12


def test_snapshot_is_json_and_back() -> None:
    snapshot = _look(_run(_progress(3), QueueCounts(queued=7)), workers=(_worker(),))
    assert msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot) == snapshot


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (words.ago(None), "never"),
        (words.ago(7500), "2 h 05 min ago"),
        (words.rate(1020.4, "tokens"), "1,020 tokens/s"),
        (words.rate(1.25, "samples"), "1.2 samples/s"),
        (words.share(0.999), "99%"),
        (words.share(1.0), "100%"),
        (words.share(0.29), "29%"),
        (words.share(0.9996, 1), "99.9%"),
        (words.share(0.5, 1), "50.0%"),
    ],
)
def test_numbers_as_people_read_them(shown: str, expected: str) -> None:
    assert shown == expected
