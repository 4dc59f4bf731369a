"""Gathers what the end report says, and writes report.json and report.html beside the proof."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import redis

from common.checks import state_names
from common.history import Point, read_history
from common.redis_client import translated
from common.run_state import Progress, read_progress
from hiddenfeed.errors import TransientError
from hiddenfeed.index_file import QUARANTINE_SCHEMA
from hiddenfeed.layout import quarantine_key, report_key, report_page_key, skipped_key
from hiddenfeed.plan_file import SKIPPED_SCHEMA, parse_table
from hiddenfeed.proof import Proof
from hiddenfeed.run import RunDocument
from hiddenfeed.store import Store
from producer.end_report import make_report
from producer.end_report_page import render_report

#: Reasons that are told; and the largest table whose reasons are counted.
_MOST_REASONS, _MOST_BYTES = 10, 64 * 2**20


def write_report(store: Store, client: redis.Redis, document: RunDocument, proof: Proof) -> None:
    """Write both files; without Redis, what it would have told is missing in them. Raises HiddenfeedError."""
    run_id, identity = document.run_id, document.identity
    try:
        with translated(client):
            progress: Progress | None = read_progress(
                client, run_id, state_names(identity.taps, identity.final_state)
            )
            points = read_history(client, run_id)
    except TransientError:
        progress, points = None, list[Point]()
    report = make_report(
        document,
        proof,
        store.url,
        progress,
        points,
        _reasons(store, skipped_key(run_id), SKIPPED_SCHEMA, proof.skipped),
        _reasons(store, quarantine_key(run_id), QUARANTINE_SCHEMA, proof.quarantined),
    )
    store.write(report_key(run_id), msgspec.json.format(msgspec.json.encode(report)))
    store.write(report_page_key(run_id), render_report(report).encode())


def _reasons(store: Store, key: str, schema: pa.Schema, rows: int) -> dict[str, int]:
    """The most frequent reasons in a table and how often each stands there."""
    info = store.head(key) if rows else None
    if info is None:
        return {}
    if info.size_bytes > _MOST_BYTES:
        return {f"see {key}": rows}
    counted = pc.value_counts(
        parse_table(store.read(key), key, schema)["reason"].combine_chunks()
    ).to_pylist()
    counted.sort(key=lambda each: (-each["counts"], each["values"]))
    told = {each["values"]: each["counts"] for each in counted[:_MOST_REASONS]}
    more = rows - sum(told.values())
    return told | ({"for other reasons": more} if more > 0 else {})
