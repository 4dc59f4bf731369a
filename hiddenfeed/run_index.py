"""Where each readable sample of a run is: out of index.parquet once the run is complete, out of plan and listing before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hiddenfeed.batch_file import BatchFacts, BatchLayout, read_header
from hiddenfeed.errors import DataError
from hiddenfeed.evidence import read_whole, stored_part
from hiddenfeed.index_file import INDEX_SCHEMA, index_table
from hiddenfeed.inventory import take_inventory
from hiddenfeed.layout import index_key, parse_batch_key
from hiddenfeed.parallel import map_bounded
from hiddenfeed.plan_file import PlanFile, PlannedBatch, parse_table
from hiddenfeed.proof import Proof, load_proof
from hiddenfeed.run import RunDocument
from hiddenfeed.store.base import ObjectInfo, Store


@dataclass(frozen=True)
class IndexEntry:
    """Where one sample is."""

    sample_id: str
    batch_id: int
    #: Place in the file's `sample_index`.
    place: int
    #: First token in the file, and number of tokens.
    first: int
    length: int


@dataclass(frozen=True)
class RunIndex:
    """A state of a run as a reader sees it; never changed, only replaced."""

    run_id: str
    #: Columns of index.parquet, in the order of files and within them.
    table: pa.Table
    #: Batch files that are there.
    files: Mapping[int, ObjectInfo]
    #: Batches with a note in place of a file.
    quarantined: int
    #: complete.json; None while the run goes on.
    proof: Proof | None

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def batch_ids(self) -> list[int]:
        """Batches of the index, in order."""
        return [int(batch) for batch in np.unique(self._batch_column)]

    def entry(self, position: int) -> IndexEntry:
        """The sample at a position of 0..len-1."""
        row = {name: self.table[name][position].as_py() for name in INDEX_SCHEMA.names}
        return IndexEntry(
            row["sample_id"], row["batch_id"], row["position"], row["token_offset"], row["length"]
        )

    def position_of(self, sample_id: str) -> int:
        """Position of a sample; raises DataError if there is none of that id, or more than one."""
        position = self._positions.get(sample_id)
        if position is None:
            raise DataError(f"run {self.run_id} has no stored sample {sample_id!r}")
        if position < 0:
            raise DataError(f"run {self.run_id} has more than one sample {sample_id!r}; ask by position")
        return position

    def file(self, batch_id: int) -> ObjectInfo:
        """The batch's file; raises DataError if it is not there."""
        info = self.files.get(batch_id)
        if info is None:
            since = "any more, though the run was complete" if self.proof else ""
            raise DataError(f"batch {batch_id} of run {self.run_id} is not stored {since}".rstrip())
        return info

    def planned(self, batch_id: int) -> PlannedBatch:
        """Who is in a batch."""
        first, last = np.searchsorted(self._batch_column, [batch_id, batch_id + 1])
        part = self.table.slice(int(first), int(last - first))
        return PlannedBatch(
            batch_id,
            part["sample_id"].combine_chunks(),
            part["source_row"].to_numpy(),
            part["length"].to_numpy().astype(np.int64),
        )

    @cached_property
    def _batch_column(self) -> npt.NDArray[np.int32]:
        column: npt.NDArray[np.int32] = self.table["batch_id"].to_numpy()
        return column

    @cached_property
    def _positions(self) -> dict[str, int]:
        """Position by id; -1 for an id that more than one sample has."""
        positions: dict[str, int] = {}
        for position, sample_id in enumerate(self.table["sample_id"].to_pylist()):
            positions[sample_id] = -1 if sample_id in positions else position
        return positions


class Indexer:
    """Makes the index of a run, as often as asked; what it has read of the plan it keeps."""

    def __init__(self, store: Store, document: RunDocument) -> None:
        self._store, self._document = store, document
        self._plan: PlanFile | None = None
        self._planned: dict[int, PlannedBatch] = {}

    def look(self) -> RunIndex:
        """The run as it is now; raises DataError for files that are not the run's. For one thread at a time."""
        store, document = self._store, self._document
        proof = load_proof(store, document.run_id)
        inventory = take_inventory(store, document)
        if proof is None:
            table, files = self._partial(inventory.files), inventory.files
        else:
            table = self._complete(proof)
            # A batch that was extracted after the proof is not in its index yet.
            proved = {parsed[1] for parsed in (parse_batch_key(file.key) for file in proof.files) if parsed}
            files = {batch: info for batch, info in inventory.files.items() if batch in proved}
        return RunIndex(document.run_id, table, files, len(inventory.set_aside), proof)

    def _complete(self, proof: Proof) -> pa.Table:
        key = index_key(proof.run_id)
        file = next((file for file in proof.files if file.key == key), None)
        if file is None:
            raise DataError(f"the proof of run {proof.run_id} does not name {key}")
        return parse_table(read_whole(self._store, file), key, INDEX_SCHEMA)

    def _partial(self, files: Mapping[int, ObjectInfo]) -> pa.Table:
        if self._plan is None:
            self._plan = PlanFile(self._store, self._document.run_id)
        new = [batch for batch in files if batch not in self._planned]
        found = map_bounded(lambda batch: self._stored(files[batch], batch), new)
        self._planned.update(zip(new, found, strict=True))
        return index_table(self._document.run_id, (self._planned[batch] for batch in files))

    def _stored(self, info: ObjectInfo, batch: int) -> PlannedBatch:
        """The samples that a batch file holds; one that lacks some is of another size than planned."""
        assert self._plan is not None
        planned = self._plan.batch(batch)
        facts = BatchFacts.of_run(self._document, batch, tokens=planned.tokens, samples=planned.samples)
        if BatchLayout(facts).file_size == info.size_bytes:
            return planned
        return stored_part(planned, read_header(self._store, info)[0], info.key)
