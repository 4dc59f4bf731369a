"""`run`, `submit`, `wait` and `plan`: from data to a run in the store, and from there to its proof."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from threading import Event

from common.retry import keep_trying
from common.settings.catalogue import DataSettings, PlanSettings, QueueSettings, SubmitSettings
from common.settings.resolve import Resolved
from hiddenfeed.errors import ConfigError, PermanentError, TransientError
from hiddenfeed.inventory import completion_gaps, load_document
from hiddenfeed.proof import Proof, finish, load_proof
from hiddenfeed.run import RunDocument
from producer.bootstrap import Surroundings, open_console, open_surroundings
from producer.console import Console
from producer.follow import follow
from producer.identity import identify, refuse_differences, run_id_of
from producer.prepare import prepare
from producer.publish import find_run, publish
from producer.recipe import make_recipe
from producer.report import plan_lines, proof_lines, tally_lines
from producer.submission import Submission, failures
from producer.tokens_file import read_manifests
from producer.workplace import workplace

_FAILURES_SHOWN = 10


def run(settings: Resolved, arguments: argparse.Namespace) -> int:
    """Prepare, submit and wait for the end; with --detach return once everything is queued."""
    return _make(settings, detach=settings.group(SubmitSettings).detach)


def submit(settings: Resolved, arguments: argparse.Namespace) -> int:
    """Prepare and submit."""
    return _make(settings, detach=True)


def wait(settings: Resolved, arguments: argparse.Namespace) -> int:
    """Take up a run from the store alone: queue what is missing and wait for the end."""
    around = open_surroundings(settings, create=False)
    return _attend(settings, around, load_document(around.store, arguments.target), detach=False)


def plan(settings: Resolved, arguments: argparse.Namespace) -> int:
    """Prepare into a temporary folder and print the numbers; needs neither Redis nor a store."""
    _end_like_interrupt()
    console = open_console(settings)
    recipe = make_recipe(settings.group(DataSettings), settings.group(PlanSettings), console.say)
    with workplace() as folder:
        prepared = prepare(recipe, folder, console)
    _results(console, [*tally_lines(prepared.tally), *plan_lines(recipe, prepared)])
    return 0


def _make(settings: Resolved, *, detach: bool) -> int:
    _end_like_interrupt()
    around = open_surroundings(settings, create=True)
    document = _find_or_prepare(settings, around)
    return _attend(settings, around, document, detach=detach)


def _find_or_prepare(settings: Resolved, around: Surroundings) -> RunDocument:
    """The run that the settings describe: the one in the store, else prepared and stored now."""
    data, console, store = settings.group(DataSettings), around.console, around.store
    recipe = make_recipe(data, settings.group(PlanSettings), console.say)
    console.progress(lambda: "hashing data and weights")
    identity = identify(recipe)
    run_id = data.run_id or run_id_of(recipe, identity)
    document = find_run(store, run_id)
    if document is not None:
        refuse_differences(document, identity)
        console.say("the run is prepared already", run_id=run_id)
        return document
    if data.run_id is not None:
        raise ConfigError(
            f"there is no run {run_id} in {store.url} to resume; leave out --run-id to start a new one"
        )
    with workplace() as folder:
        prepared = prepare(recipe, folder, console)
        for line in tally_lines(prepared.tally):
            console.say(line)
        document = keep_trying(
            lambda: publish(store, run_id, recipe, identity, prepared),
            wait=Event().wait,
            on_failure=lambda error, seconds: console.warn(f"waiting: {error}"),
        )
    console.say("the run is in the store", run_id=run_id, batches=document.plan.batches)
    return document


def _attend(settings: Resolved, around: Surroundings, document: RunDocument, *, detach: bool) -> int:
    """From a prepared run to its proof; returns the exit code."""
    run_id, store = document.run_id, around.store
    proof = load_proof(store, run_id)
    if proof is not None:
        gaps = completion_gaps(store, document)
        if not gaps:
            _results(around.console, [f"run {run_id}: nothing is left to do", *proof_lines(proof, store.url)])
            return 0
        around.console.warn(
            f"{len(gaps)} batches of a finished run are gone from the store and are extracted again"
        )
    submission = Submission(
        store,
        around.client,
        document,
        read_manifests(store, run_id),
        queue_settings=settings.group(QueueSettings),
        window=settings.group(SubmitSettings).queue_window,
    )
    try:
        retried = submission.open()
        if retried:
            around.console.say(f"{retried} jobs that failed before are tried again")
        if detach:
            return _leave(around, submission, document)
        return _see_through(around, submission, document)
    except KeyboardInterrupt:
        around.console.warn(
            f"run {run_id} goes on without this process; the same command, or `python -m producer wait {run_id}`, takes it up again"
        )
        raise


def _leave(around: Surroundings, submission: Submission, document: RunDocument) -> int:
    new = submission.enqueue_all()
    around.console.say(
        f"{new} of {document.plan.batches} batches queued; `python -m producer wait` sees to the end",
        run_id=document.run_id,
    )
    around.console.result(document.run_id)
    return 0


def _see_through(around: Surroundings, submission: Submission, document: RunDocument) -> int:
    console, run_id = around.console, document.run_id
    pause = Event()
    standing = follow(submission, around.client, document, console, pause.wait)
    if standing.state == "cancelled":
        raise PermanentError(f"run {run_id} was cancelled; run it again to go on")
    if standing.stuck:
        _say_failures(around, submission)
        raise PermanentError(
            f"{len(standing.failed)} of {document.plan.batches} batches of run {run_id} failed; mend the cause, and run "
            "it again to try them again"
        )
    proof = _prove(around, run_id)
    try:
        submission.close()
    except TransientError as error:
        console.warn(f"Redis was not told that the run is complete: {error}")
    _results(console, proof_lines(proof, around.store.url))
    return 0


def _prove(around: Surroundings, run_id: str) -> Proof:
    """The proof, written to the store; an outage of the store is waited out."""
    console = around.console
    return keep_trying(
        lambda: finish(
            around.store,
            run_id,
            progress=lambda done, total: console.progress(lambda: f"proving: {done} of {total} batches"),
        ),
        wait=Event().wait,
        on_failure=lambda error, seconds: console.warn(f"waiting: {error}"),
    )


def _say_failures(around: Surroundings, submission: Submission) -> None:
    """Why batches failed, one line each."""
    console = around.console
    reasons = failures(around.client, submission.run_id)
    reasons += [
        f"batch {batch} was extracted again and again and never arrived: do all roles have the same --store?"
        for batch in submission.lost
    ]
    for reason in reasons[:_FAILURES_SHOWN]:
        console.warn(reason)
    if len(reasons) > _FAILURES_SHOWN:
        console.warn(f"and {len(reasons) - _FAILURES_SHOWN} more")


def _results(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.result(line)


def _end_like_interrupt() -> None:
    """SIGTERM ends a command the way Ctrl-C does: temporary files are removed, and what to do next is said."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
