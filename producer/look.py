"""`status`, `runs`, `retry-failed`, `pause`, `resume` and `cancel`: looking at runs and changing their state."""

from __future__ import annotations

import argparse

import redis

from common.queues import cancel_jobs, extract_queue_name, queue_counts
from common.redis_client import make_client
from common.run_state import RunStateName, get_run, pause_run, read_progress, set_run_state
from common.run_state import list_runs as list_known
from common.settings.catalogue import QueueSettings, RedisSettings, StoreSettings
from common.settings.resolve import Resolved
from hiddenfeed.errors import TransientError
from hiddenfeed.inventory import load_document, take_inventory
from hiddenfeed.layout import check_run_id
from hiddenfeed.options import StoreOptions
from hiddenfeed.proof import load_proof
from hiddenfeed.run_list import list_runs
from hiddenfeed.shell import say
from hiddenfeed.store import Store, open_store
from hiddenfeed.words import count_text, size_text
from producer.bootstrap import open_console, open_surroundings
from producer.failed import failures, retry_failed
from producer.report import proof_lines
from producer.tokens_file import read_manifests


def status(settings: Resolved, arguments: argparse.Namespace) -> int:
    """A run as the store has it, and what Redis adds where it is there."""
    open_console(settings)
    store = _store(settings)
    document = load_document(store, arguments.target)
    inventory, proof, planned = (
        take_inventory(store, document),
        load_proof(store, document.run_id),
        document.plan,
    )
    left = planned.batches - len(inventory.done)
    say(f"run        {document.run_id}, made {document.created_at}")
    say(
        f"model      {document.model}, taps {', '.join(map(str, document.identity.taps))} as {document.identity.dtype}"
    )
    say(
        f"rows       {planned.rows:,}: {count_text(planned.samples, 'sample')}, {planned.skipped:,} skipped; "
        f"{count_text(planned.tokens, 'token')}"
    )
    say(
        f"batches    {len(inventory.files):,} of {planned.batches:,} stored ({size_text(inventory.size_bytes)}), "
        f"{len(inventory.set_aside):,} quarantined, {left:,} missing"
    )
    if proof is not None and not left:
        say(*proof_lines(proof, store.url))
        return 0
    if not left:
        say("proof      not written yet; `python -m producer wait` writes it")
    client = make_client(settings.group(RedisSettings))
    try:
        for line in _queue_lines(client, document.run_id):
            say(line)
    except TransientError as error:
        say(f"queue      {error}")
    return 0


def runs(settings: Resolved, arguments: argparse.Namespace) -> int:
    """The runs of the store, with their state where Redis knows it."""
    open_console(settings)
    store = _store(settings)
    store.check()
    try:
        known = {record.run_id: record for record in list_known(make_client(settings.group(RedisSettings)))}
    except TransientError as error:
        say(f"without states: {error}")
        known = {}
    stored = list_runs(store)
    for line in stored:
        state = (
            "complete"
            if line.complete
            else known[line.run_id].state
            if line.run_id in known
            else "not submitted"
        )
        say(
            f"{line.run_id}  {state}  {line.stored:,} of {count_text(line.batches, 'batch', 'batches')}  "
            f"{size_text(line.size_bytes)}  {line.model}"
        )
    if not stored:
        say(f"no runs in {store.url}")
    return 0


def retry(settings: Resolved, arguments: argparse.Namespace) -> int:
    """Failed jobs of a run back on their queues."""
    around = open_surroundings(settings, create=False)
    run_id = load_document(around.store, arguments.target).run_id
    reasons = failures(around.client, run_id)
    manifests = read_manifests(around.store, run_id)
    count = retry_failed(around.client, run_id, manifests, settings.group(QueueSettings))
    for reason in reasons:
        around.console.say(reason)
    around.console.result(f"{count_text(count, 'failed job')} of run {run_id} will be tried again")
    return 0


def pause(settings: Resolved, arguments: argparse.Namespace) -> int:
    """Workers finish what they have and take no more of the run."""
    return _change(
        settings, arguments.target, "paused", "workers finish the batches they have; `resume` goes on"
    )


def resume(settings: Resolved, arguments: argparse.Namespace) -> int:
    """Workers take batches of the run again."""
    return _change(
        settings, arguments.target, "active", "a run that was cancelled needs `wait` to be queued again"
    )


def cancel(settings: Resolved, arguments: argparse.Namespace) -> int:
    """Take the run off its queue. What is stored stays, and the run can be taken up again."""
    code = _change(
        settings, arguments.target, "cancelled", "what is stored stays; `run` or `wait` takes it up again"
    )
    cancel_jobs(make_client(settings.group(RedisSettings)), extract_queue_name(arguments.target))
    return code


def _change(settings: Resolved, run_id: str, state: RunStateName, hint: str) -> int:
    console = open_console(settings)
    client = make_client(settings.group(RedisSettings))
    if state == "cancelled":
        record = set_run_state(client, check_run_id(run_id), state)
    else:
        record = pause_run(client, check_run_id(run_id), paused=state == "paused")
    console.result(f"run {record.run_id} is {record.state}: {hint}")
    return 0


def _store(settings: Resolved) -> Store:
    return open_store(settings.group(StoreSettings).store, settings.group(StoreOptions))


def _queue_lines(client: redis.Redis, run_id: str) -> list[str]:
    record = get_run(client, run_id)
    if record is None:
        return ["queue      not submitted to this Redis; `python -m producer wait` does that"]
    counts, progress = queue_counts(client, extract_queue_name(run_id)), read_progress(client, run_id)
    lines = [
        f"queue      {record.state}: {counts.queued:,} queued, {counts.started:,} running, {counts.scheduled:,} to be tried again, "
        f"{counts.failed:,} failed"
    ]
    for worker in progress.workers:
        rate = worker.tokens_per_second
        lines.append(
            f"worker     {worker.worker} on {worker.device}: {count_text(worker.batches, 'batch', 'batches')}, "
            f"{'-' if rate is None else f'{rate:,.0f}'} tokens/s"
        )
    return lines + [f"failed     {reason}" for reason in failures(client, run_id)]
