"""The runs of a store, shortly: asked of each are a few objects, and of one that goes on the names of its batches."""

from __future__ import annotations

import msgspec

from hiddenfeed.errors import DataError
from hiddenfeed.inventory import load_document
from hiddenfeed.layout import batches_prefix, check_run_id, parse_batch_key, run_document_key
from hiddenfeed.parallel import map_bounded
from hiddenfeed.proof import load_proof
from hiddenfeed.store.base import Store


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a store, by its document and its proof or its files' names."""

    run_id: str
    model: str
    #: Planned batches, and batch files that are there; of a complete run those that its proof names.
    batches: int
    stored: int
    #: Bytes of the batch files.
    size_bytes: int
    complete: bool


def list_runs(store: Store) -> list[RunLine]:
    """All runs in the store, by id. Raises DataError for a run document or a proof that cannot be read."""
    found = map_bounded(lambda run_id: _line(store, run_id), _ids(store))
    return [line for line in found if line is not None]


def _ids(store: Store) -> list[str]:
    return [name for name in store.folders() if _is_run_id(name)]


def _is_run_id(name: str) -> bool:
    try:
        check_run_id(name)
    except DataError:
        return False
    return True


def _line(store: Store, run_id: str) -> RunLine | None:
    """The run; None for a folder that holds none, or one that is not published yet."""
    if store.head(run_document_key(run_id)) is None:
        return None
    document, proof = load_document(store, run_id), load_proof(store, run_id)
    if proof is None:
        infos = [info for info in store.list(batches_prefix(run_id)) if parse_batch_key(info.key)]
        stored, size_bytes = len(infos), sum(info.size_bytes for info in infos)
    else:
        stored, size_bytes = proof.batches, proof.size_bytes
    return RunLine(
        run_id=run_id,
        model=document.model,
        batches=document.plan.batches,
        stored=stored,
        size_bytes=size_bytes,
        complete=proof is not None,
    )
