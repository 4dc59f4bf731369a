"""Reading a run: samples by position or id, batch files one after the other, before and after its end.

A run is read from its store alone. Once it is complete, index.parquet says where everything is; before,
the plan and a listing do, and what is stored so far is what there is to read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hiddenfeed.batch_file import (
    BatchHeader,
    decode_header,
    read_rows,
    tensor_arrays,
)
from hiddenfeed.batch_heads import BatchHead, BatchHeads
from hiddenfeed.errors import ConfigError, DataError
from hiddenfeed.evidence import check_facts
from hiddenfeed.inventory import load_document
from hiddenfeed.layout import check_run_id
from hiddenfeed.options import StoreOptions
from hiddenfeed.proof import Proof
from hiddenfeed.run import RunDocument
from hiddenfeed.run_index import Indexer, RunIndex
from hiddenfeed.samples import Batch, Sample
from hiddenfeed.store import Store, open_store
from hiddenfeed.store_flags import environment_options
from hiddenfeed.words import count_text

__all__ = ["Batch", "RunInfo", "RunReader", "Sample", "open_run", "split_run_url"]

#: Tokens, masks and offsets of batch files read before: about 200 kB for a file of 2 GB.
_HEADS_KEPT_BYTES = 256 * 1024 * 1024


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a few numbers."""

    run_id: str
    url: str
    model: str
    num_blocks: int
    hidden_size: int
    taps: tuple[int, ...]
    taps_meaning: str
    dtype: str
    final_norm: str
    complete: bool
    #: Planned and stored batches, samples and tokens.
    batches: int
    batches_stored: int
    batches_quarantined: int
    samples: int
    samples_stored: int
    tokens: int
    tokens_stored: int
    #: Input rows that were not planned.
    skipped: int
    #: Bytes of all batch files.
    size_bytes: int


def split_run_url(url: str) -> tuple[str, str]:
    """(root of the store, run id) of a run's URL; raises ConfigError if it does not end in a run's id."""
    root, slash, run_id = url.rstrip("/").rpartition("/")
    try:
        check_run_id(run_id)
    except DataError:
        root = ":/"
    if root.endswith(":/"):
        raise ConfigError(
            f"{url!r} is not the URL of a run: that ends in the run's id, s3://bucket/prefix/<run id>"
        )
    return root or slash or ".", run_id


def open_run(url: str, run_id: str | None = None, options: StoreOptions | None = None) -> RunReader:
    """The run at `url`, or the run `run_id` of the store at `url`.

    Without `options` S3 is reached as the environment says (`HIDDENFEED_S3_ENDPOINT` and the like, as for the
    command `hiddenfeed`). Raises ConfigError for a URL that is none and a store that refuses us, DataError if there is no
    such run.
    """
    root, name = split_run_url(url) if run_id is None else (url, run_id)
    reopen = partial(open_store, root, environment_options(os.environ) if options is None else options)
    return RunReader(reopen(), name, reopen=reopen)


class RunReader:
    """What is stored of one run. Safe to use from several threads, and by forked or spawned processes.

    A map-style data set for `torch.utils.data` as well: `len(run)`, `run[position]`.
    """

    def __init__(self, store: Store, run_id: str, *, reopen: Callable[[], Store] | None = None) -> None:
        """Reads the run's document and index; raises DataError if there is no such run.

        `reopen` opens the store again in a process that this one starts, where a connection of ours must
        not be used. Without it the reader belongs to one process.
        """
        self.document: RunDocument = load_document(store, run_id)
        self._reopen = reopen
        self._use(store)
        self._index = self._indexer.look()

    def _use(self, store: Store) -> None:
        self._store, self._process = store, os.getpid()
        self._indexer = Indexer(store, self.document)
        self._heads = BatchHeads(store, _HEADS_KEPT_BYTES)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._reopen is None:
            raise TypeError("a RunReader made of a store stays in its process; open the run with open_run")
        return _reopened, (self._reopen, self.run_id, len(self))

    @property
    def store(self) -> Store:
        """The store, opened anew in a process that was forked since."""
        if self._reopen is not None and self._process != os.getpid():
            self._use(self._reopen())
        return self._store

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.document.run_id

    @property
    def proof(self) -> Proof | None:
        """complete.json, as of the last `refresh`; None while the run goes on."""
        return self._index.proof

    def refresh(self) -> int:
        """Look again at what is stored; returns how many samples can be read. Positions may change."""
        store = self.store
        with self._lock:
            self._index = self._indexer.look()
            self._heads = BatchHeads(store, _HEADS_KEPT_BYTES)
            return len(self._index)

    def __len__(self) -> int:
        """Samples that can be read."""
        return len(self._index)

    @property
    def index(self) -> pa.Table:
        """One row per readable sample, in the order of positions; columns of index.parquet."""
        return self._index.table

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """int64 [samples]: tokens of each readable sample, by position."""
        lengths: npt.NDArray[np.int64] = self._index.table["length"].to_numpy().astype(np.int64)
        return lengths

    @property
    def sample_ids(self) -> list[str]:
        """Ids of all readable samples, by position."""
        ids: list[str] = self._index.table["sample_id"].to_pylist()
        return ids

    @property
    def batch_ids(self) -> list[int]:
        """Batches that can be read, in order."""
        return list(self._index.batch_ids)

    def info(self) -> RunInfo:
        """The run in a few numbers, as of the last `refresh`."""
        document, identity, plan = self.document, self.document.identity, self.document.plan
        index = self._index
        return RunInfo(
            run_id=document.run_id,
            url=f"{self.store.url.rstrip('/')}/{document.run_id}",
            model=document.model,
            num_blocks=document.num_blocks,
            hidden_size=document.hidden_size,
            taps=identity.taps,
            taps_meaning=document.taps_meaning,
            dtype=identity.dtype,
            final_norm=identity.final_state,
            complete=index.proof is not None,
            batches=plan.batches,
            batches_stored=len(index.files),
            batches_quarantined=index.quarantined,
            samples=plan.samples,
            samples_stored=len(index),
            tokens=plan.tokens,
            tokens_stored=int(self.lengths.sum()),
            skipped=plan.skipped,
            size_bytes=sum(info.size_bytes for info in index.files.values()),
        )

    def position_of(self, sample_id: str) -> int:
        """Position of a sample; raises DataError if there is none of that id, or more than one."""
        return self._index.position_of(sample_id)

    def read(self, sample: str | int) -> Sample:
        """The sample of this id or at this position: one ranged read, two with a final state.

        Raises DataError for an unknown id or a damaged file, IndexError for a position outside
        0..len-1.
        """
        store, index = self.store, self._index
        position = index.position_of(sample) if isinstance(sample, str) else int(sample)
        if not 0 <= position < len(index):
            raise IndexError(f"run {self.run_id} has no sample {position}: {len(index)} can be read")
        entry = index.entry(position)
        head = self._head(index, entry.batch_id)
        key = head.key
        layout, first, length = head.header.layout, entry.first, entry.length
        bounds = tuple(int(offset) for offset in head.tensors["offsets"][entry.place : entry.place + 2])
        if bounds != (first, first + length):
            raise DataError(f"{key} does not hold sample {entry.sample_id!r} where the index says")
        final = layout.final_states
        tokens = slice(first, first + length)
        return Sample(
            sample_id=entry.sample_id,
            source_row=int(head.tensors["sample_index"][entry.place]),
            input_ids=head.tensors["input_ids"][tokens],
            loss_mask=head.tensors["loss_mask"][tokens],
            taps=layout.facts.taps,
            dtype=layout.facts.dtype,
            raw=read_rows(store, key, layout.states, first, length),
            final_norm=layout.facts.final_norm,
            raw_final=None if final is None else read_rows(store, key, final, first, length),
            computed=head.header.computed,
        )

    def __getitem__(self, sample: str | int) -> Sample:
        """See `read`."""
        return self.read(sample)

    def __iter__(self) -> Iterator[Sample]:
        """All samples by position, a whole batch file in memory at a time."""
        for batch in self.iter_batches():
            yield from batch

    def read_batch(self, batch_id: int) -> Batch:
        """One batch file whole; raises DataError if it is not stored or not what the plan says."""
        index = self._index
        key = index.file(batch_id).key
        data = self.store.read(key)
        header = decode_header(data, key)
        if len(data) != header.layout.file_size:
            raise DataError(f"{key} is {len(data)} bytes long, and its header says {header.layout.file_size}")
        planned = index.planned(batch_id)
        check_facts(self.document, planned, header, key)
        return Batch(header.facts, planned.sample_ids, tensor_arrays(data, header.layout))

    def iter_batches(self) -> Iterator[Batch]:
        """All stored batch files in order, one in memory at a time."""
        for batch_id in self.batch_ids:
            yield self.read_batch(batch_id)

    def _head(self, index: RunIndex, batch_id: int) -> BatchHead:
        """Everything of a batch file but its states."""

        def check(header: BatchHeader) -> None:
            check_facts(self.document, index.planned(batch_id), header, index.file(batch_id).key)

        return self._heads.get(batch_id, index.file(batch_id), check)


def _reopened(reopen: Callable[[], Store], run_id: str, samples: int) -> RunReader:
    """A reader that was sent here from another process; raises DataError if its positions mean other samples now."""
    reader = RunReader(reopen(), run_id, reopen=reopen)
    if len(reader) != samples:
        raise DataError(
            f"run {run_id} had {count_text(samples, 'sample')} when its reader was sent to this process and has {len(reader)} now; "
            "wait until the run is complete"
        )
    return reader
