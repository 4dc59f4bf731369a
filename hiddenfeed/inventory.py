"""What the store holds of a run: its document, its batch files and its quarantine notes, by listing."""

from __future__ import annotations

from dataclasses import dataclass

from hiddenfeed.errors import DataError, MissingObjectError
from hiddenfeed.layout import (
    batch_key,
    batches_prefix,
    parse_batch_key,
    parse_quarantine_note_key,
    quarantine_note_key,
    quarantine_prefix,
    run_document_key,
)
from hiddenfeed.run import RunDocument, decode_run_document
from hiddenfeed.store.base import ObjectInfo, Store
from hiddenfeed.words import count_text


@dataclass(frozen=True)
class Inventory:
    """Batch files and quarantine notes that are there, by batch id, each in increasing order."""

    files: dict[int, ObjectInfo]
    notes: dict[int, ObjectInfo]

    @property
    def done(self) -> set[int]:
        """Batches that have a file or, in its place, a note."""
        return self.files.keys() | self.notes.keys()

    @property
    def set_aside(self) -> set[int]:
        """Batches that only have a note. A note beside a file says nothing: the batch was extracted after all."""
        return self.notes.keys() - self.files.keys()

    @property
    def size_bytes(self) -> int:
        """Bytes of all batch files."""
        return sum(info.size_bytes for info in self.files.values())

    def gaps(self, batches: int) -> list[int]:
        """Batches of `0..batches - 1` that have neither a file nor a note, in order."""
        done = self.done
        return [batch for batch in range(batches) if batch not in done]


def load_document(store: Store, run_id: str) -> RunDocument:
    """The run's document; raises DataError if there is no such run or the document is not its own.

    Where the whole store is not there, the store's own error says so.
    """
    key = run_document_key(run_id)
    try:
        document = decode_run_document(store.read(key), key)
    except MissingObjectError:
        store.check()
        raise DataError(f"there is no run {run_id} in {store.url}: {key} is missing") from None
    if document.run_id != run_id:
        raise DataError(f"{key} is the document of another run, {document.run_id}")
    return document


def take_inventory(store: Store, document: RunDocument) -> Inventory:
    """Lists the run's batch files and notes; raises DataError for one that is not of the plan."""
    return Inventory(
        _listed(store, document, batches_prefix(document.run_id)),
        _listed(store, document, quarantine_prefix(document.run_id)),
    )


def completion_gaps(store: Store, document: RunDocument) -> list[int]:
    """Ids of the batches that are still to be extracted, in order; empty when the run can be proved."""
    return take_inventory(store, document).gaps(document.plan.batches)


def place_of(store: Store, document: RunDocument, key: str) -> int:
    """The batch whose file or note is called `key`; raises DataError for a name that the plan has not."""
    run_id, batches = document.run_id, document.plan.batches
    for parse, key_of in ((parse_batch_key, batch_key), (parse_quarantine_note_key, quarantine_note_key)):
        parsed = parse(key)
        if parsed is None or parsed[0] != run_id or key_of(*parsed) != key:
            continue
        if parsed[1] >= batches:
            raise DataError(
                f"{key} does not belong there: the run has {count_text(batches, 'batch', 'batches')}, counted from 0; {way_out(store, run_id)}"
            )
        return parsed[1]
    raise DataError(f"{key} does not belong there: it has not the name of a batch; {way_out(store, run_id)}")


def way_out(store: Store, run_id: str) -> str:
    """What to do about an object that is not of a run."""
    return f"`hiddenfeed tidy {store.url.rstrip('/')}/{run_id}` shows and removes what is not of the run"


def _listed(store: Store, document: RunDocument, prefix: str) -> dict[int, ObjectInfo]:
    found = {place_of(store, document, info.key): info for info in store.list(prefix)}
    return dict(sorted(found.items()))
