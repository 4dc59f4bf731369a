"""The runs of a store, by one listing of it."""

from __future__ import annotations

from collections import Counter

import msgspec

from hiddenfeed.inventory import load_document
from hiddenfeed.layout import complete_key, parse_batch_key, run_document_key
from hiddenfeed.store.base import Store


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a store, by its document and its files' names."""

    run_id: str
    model: str
    #: Planned batches, and batch files that are there.
    batches: int
    stored: int
    #: Bytes of the batch files.
    size_bytes: int
    complete: bool


def list_runs(store: Store) -> list[RunLine]:
    """All runs in the store, by id. Raises DataError for a run document that cannot be read."""
    keys: set[str] = set()
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for info in store.list(""):
        parsed = parse_batch_key(info.key)
        if parsed is not None:
            files[parsed[0]] += 1
            sizes[parsed[0]] += info.size_bytes
        elif info.key.count("/") == 1:
            keys.add(info.key)
    runs = []
    for run_id in sorted(key.partition("/")[0] for key in keys if key.endswith("/run.json")):
        if run_document_key(run_id) in keys:
            document = load_document(store, run_id)
            runs.append(
                RunLine(
                    run_id=run_id,
                    model=document.model,
                    batches=document.plan.batches,
                    stored=files[run_id],
                    size_bytes=sizes[run_id],
                    complete=complete_key(run_id) in keys,
                )
            )
    return runs
