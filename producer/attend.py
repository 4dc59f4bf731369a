"""From a prepared run to its proof: submit, follow, prove, and say how it ended."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import TypeVar

from common.retry import keep_trying
from common.settings.catalogue import QueueSettings, SubmitSettings
from common.settings.resolve import Resolved
from hiddenfeed.errors import HiddenfeedError, PermanentError, TransientError
from hiddenfeed.inventory import completion_gaps
from hiddenfeed.proof import finish, load_proof
from hiddenfeed.run import RunDocument
from hiddenfeed.words import count_text
from producer.bootstrap import Surroundings
from producer.console import Console
from producer.failed import failures
from producer.follow import follow
from producer.report import proof_lines
from producer.report_files import write_report
from producer.submission import Submission
from producer.tokens_file import read_manifests

ResultT = TypeVar("ResultT")

_FAILURES_SHOWN = 10


def attend(settings: Resolved, around: Surroundings, document: RunDocument, *, detach: bool) -> int:
    """Bring the run to its end, or with `detach` one window of it onto its queue; returns the exit code.

    Outages of Redis and the store are waited out. Raises PermanentError if batches failed or the run
    was cancelled, and DataError if the store holds what does not belong to the run.
    """
    console, run_id = around.console, document.run_id
    try:
        if waited_out(console, lambda: _is_over(around, document)):
            return 0
        submission = waited_out(console, lambda: _open(settings, around, document))
        if detach:
            return _leave(around, submission, document)
        return _see_through(around, submission, document)
    except KeyboardInterrupt:
        console.warn(
            f"run {run_id} goes on without this process; the same command, or `python -m producer wait {run_id}`, "
            "takes it up again"
        )
        raise


def waited_out(console: Console, call: Callable[[], ResultT]) -> ResultT:
    """The result of `call`, tried again for as long as Redis or the store is away."""
    return keep_trying(
        call, wait=Event().wait, on_failure=lambda error, seconds: console.warn(f"waiting: {error}")
    )


def _is_over(around: Surroundings, document: RunDocument) -> bool:
    """True, and said, if the run is complete and nothing of it was lost since."""
    run_id, store = document.run_id, around.store
    proof = load_proof(store, run_id)
    if proof is None:
        return False
    gaps = completion_gaps(store, document)
    if gaps:
        around.console.warn(
            f"{count_text(len(gaps), 'batch', 'batches')} of a finished run disappeared from the store and will be extracted again"
        )
        return False
    for line in (f"run {run_id}: nothing is left to do", *proof_lines(proof, store.url)):
        around.console.result(line)
    return True


def _open(settings: Resolved, around: Surroundings, document: RunDocument) -> Submission:
    submission = Submission(
        around.store,
        around.client,
        document,
        read_manifests(around.store, document.run_id),
        queue_settings=settings.group(QueueSettings),
        window=settings.group(SubmitSettings).queue_window,
    )
    retried = submission.open()
    if retried:
        around.console.say(f"{count_text(retried, 'job')} that had failed will be tried again")
    return submission


def _leave(around: Surroundings, submission: Submission, document: RunDocument) -> int:
    """Queue one window of batches, say what becomes of the others, and go."""
    standing = waited_out(around.console, submission.step)
    batches, wait = document.plan.batches, f"`python -m producer wait {document.run_id}`"
    if standing.stored:
        around.console.say(
            f"all of {count_text(batches, 'batch', 'batches')} stored; {wait} writes the proof"
        )
    elif standing.pending:
        around.console.say(
            f"{standing.counts.queued:,} of {count_text(batches, 'batch', 'batches')} queued, as many as --queue-window lets in; start {wait}, "
            "which queues the others as workers take from them, queues again what gets lost and writes the proof"
        )
    else:
        around.console.say(
            f"{standing.counts.queued:,} of {count_text(batches, 'batch', 'batches')} queued; {wait} sees to the end: it queues again what "
            "gets lost and writes the proof"
        )
    around.console.result(document.run_id)
    return 0


def _see_through(around: Surroundings, submission: Submission, document: RunDocument) -> int:
    console, run_id, planned = around.console, document.run_id, document.plan.batches
    standing = follow(submission, around.client, document, console, Event().wait)
    if standing.state == "cancelled":
        raise PermanentError(f"run {run_id} was cancelled; run it again to go on")
    if standing.stuck:
        _say_failures(around, submission)
        raise PermanentError(
            f"{len(standing.failed):,} of {count_text(planned, 'batch', 'batches')} of run {run_id} failed; mend the cause, "
            "and run it again to try again"
        )

    def proving(done: int, total: int) -> None:
        console.progress(lambda: f"proving: {done:,} of {count_text(total, 'batch', 'batches')}")

    proof = waited_out(console, lambda: finish(around.store, run_id, progress=proving))
    try:
        write_report(around.store, around.client, document, proof)
    except HiddenfeedError as error:
        console.warn(f"the run is complete, but its report could not be written: {error}")
    try:
        submission.close()
    except TransientError as error:
        console.warn(f"Redis was not told that the run is complete: {error}")
    for line in proof_lines(proof, around.store.url):
        console.result(line)
    return 0


def _say_failures(around: Surroundings, submission: Submission) -> None:
    """Why batches failed, one line each."""
    console = around.console
    try:
        reasons = failures(around.client, submission.run_id)
    except TransientError as error:
        reasons = [f"why batches failed cannot be said: {error}"]
    reasons += [
        f"batch {batch} was extracted again and again and never arrived: do all roles have the same --store?"
        for batch in submission.lost
    ]
    for reason in reasons[:_FAILURES_SHOWN]:
        console.warn(reason)
    if len(reasons) > _FAILURES_SHOWN:
        console.warn(f"and {len(reasons) - _FAILURES_SHOWN} more")
