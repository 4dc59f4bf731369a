"""The tokens of a run on local disk: fetched once, verified, shared by the processes of a host.

`<cache>/<run_id>/tokens.parquet`. While a batch is computed no store is asked; one row group, read
with Arrow's own threads, is one batch.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.logs import get_logger
from common.messages import ExtractBatch
from hiddenfeed.checksum import file_checksum, parse
from hiddenfeed.errors import (
    ConfigError,
    DataError,
    HiddenfeedError,
    MissingObjectError,
    PermanentError,
    TransientError,
)
from hiddenfeed.plan_file import TOKENS_SCHEMA
from hiddenfeed.run import RunDocument
from hiddenfeed.store.base import Store
from hiddenfeed.words import count_text

log = get_logger("tokens")

#: Token files of runs that nobody used for this long are removed when another run's is fetched.
KEEP_SECONDS = 7 * 24 * 3600
_FILE, _LOCK = "tokens.parquet", "lock"


@dataclass(frozen=True)
class TokenBatch:
    """The samples of one batch, in file order: micro-batch by micro-batch, longest first in each."""

    batch_id: int
    #: int64 [S], row of each sample in the input.
    source_rows: npt.NDArray[np.int64]
    #: int32 [T], samples one behind the other.
    input_ids: npt.NDArray[np.int32]
    #: uint8 [T].
    loss_mask: npt.NDArray[np.uint8]
    #: int64 [S + 1], first token of each sample, and T.
    offsets: npt.NDArray[np.int64]
    #: int64 [M + 1], first sample of each micro-batch, and S.
    micro_batches: npt.NDArray[np.int64]

    @property
    def samples(self) -> int:
        """S."""
        return len(self.source_rows)

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.input_ids)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """int64 [S], tokens of each sample."""
        return np.diff(self.offsets)

    def take(self, places: Sequence[int]) -> TokenBatch:
        """The batch with the samples at `places` only, which are in order; micro-batches stay together."""
        chosen = np.asarray(places, np.int64)
        lengths = self.lengths[chosen]
        tokens = np.isin(np.repeat(np.arange(self.samples), self.lengths), chosen)
        micro = np.searchsorted(self.micro_batches, chosen, side="right")
        return TokenBatch(
            batch_id=self.batch_id,
            source_rows=self.source_rows[chosen],
            input_ids=self.input_ids[tokens],
            loss_mask=self.loss_mask[tokens],
            offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]),
            micro_batches=np.concatenate([[0], np.flatnonzero(np.diff(micro)) + 1, [len(chosen)]]),
        )

    def sample_of_token(self, token: int) -> int:
        """The sample that token row `token` belongs to."""
        return int(np.searchsorted(self.offsets, token, side="right")) - 1


class TokenFile:
    """tokens.parquet of one run, on local disk. Safe to use from several threads."""

    def __init__(self, path: Path, mend: Callable[[], None] | None = None) -> None:
        """Opens the file; raises DataError if it is no plan.

        `mend` puts a whole file in the place of one that was damaged since; what it raises is a TransientError of `read`.
        """
        self.path, self._mend = path, mend
        self._lock = threading.Lock()
        self._file = _open_plan(path)

    @property
    def batches(self) -> int:
        """Number of planned batches."""
        return int(self._file.num_row_groups)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def read(self, message: ExtractBatch) -> TokenBatch:
        """The batch of a message.

        Raises PermanentError if the message is not the plan's: the batch itself is sound, and its true
        message may still come. Raises DataError for rows that make no batch.
        """
        if message.row_group != message.batch_id or not message.batch_id < self.batches:
            raise PermanentError(
                f"the message is of batch {message.batch_id}, row group {message.row_group}, "
                f"and the run has {count_text(self.batches, 'batch', 'batches')}"
            )
        batch = self.batch(message.row_group)
        longest = int(batch.lengths.max())
        found = (batch.samples, batch.tokens, longest)
        promised = (message.samples, message.tokens_total, message.longest)
        if found != promised:
            raise PermanentError(
                f"batch {message.batch_id}: the manifest promises {count_text(promised[0], 'sample')}, "
                f"{count_text(promised[1], 'token')} and {promised[2]} as the longest, and the tokens file holds {found[0]}, {found[1]} and {found[2]}"
            )
        return batch

    def source_rows(self, row_group: int) -> tuple[int, ...]:
        """Rows in the input of the samples of a batch, in file order; raises DataError if they cannot be read."""
        rows: list[int] = self._read(row_group, ["source_row"])["source_row"].to_pylist()
        return tuple(rows)

    def batch(self, row_group: int) -> TokenBatch:
        """Batch `row_group`; raises DataError for rows that make no batch."""
        table = self._read(row_group, ["source_row", "input_ids", "loss_mask", "micro_batch"])
        return _batch_of(table, row_group)

    def _read(self, row_group: int, columns: list[str]) -> pa.Table:
        if not 0 <= row_group < self.batches:
            raise DataError(f"{self.path} has no row group {row_group}: it holds {self.batches}")
        with self._lock:
            try:
                return self._rows(row_group, columns)
            except DataError as error:
                if self._mend is None:
                    raise
                log.warning("tokens cannot be read, so the file is looked at", reason=str(error))
            # The run is proven to be readable in the store: a batch is not at fault for what a disk does to a copy.
            self._mend_copy()
            self._file.close()
            self._file = _open_plan(self.path)
            return self._rows(row_group, columns)

    def _mend_copy(self) -> None:
        """Whatever keeps the copy from being mended may pass, and says nothing against a batch."""
        assert self._mend is not None
        try:
            self._mend()
        except TransientError:
            raise
        except (HiddenfeedError, OSError) as error:
            raise TransientError(f"{self.path} is damaged, and cannot be fetched again: {error}") from error

    def _rows(self, row_group: int, columns: list[str]) -> pa.Table:
        with _parquet_errors(self.path):
            return self._file.read_row_group(row_group, columns=columns, use_threads=False)


def _open_plan(path: Path) -> pq.ParquetFile:
    # Not mapped: reading a mapped file that somebody cuts short kills the process.
    with _parquet_errors(path):
        file = pq.ParquetFile(path, memory_map=False, pre_buffer=False, page_checksum_verification=True)
        schema = file.schema_arrow
    for column in TOKENS_SCHEMA:
        if schema.get_field_index(column.name) < 0 or not schema.field(column.name).type.equals(column.type):
            file.close()
            raise DataError(f"{path} must have a column {column.name} of {column.type}")
    return file


def _batch_of(table: pa.Table, batch_id: int) -> TokenBatch:
    if not table.num_rows or any(column.null_count for column in table.columns):
        raise DataError(f"batch {batch_id} of the tokens file is empty or has rows with missing values")
    lengths = pc.list_value_length(table["input_ids"]).combine_chunks().to_numpy(zero_copy_only=False)
    masks = pc.list_value_length(table["loss_mask"]).combine_chunks().to_numpy(zero_copy_only=False)
    micro = table["micro_batch"].combine_chunks().to_numpy(zero_copy_only=False)
    if not np.array_equal(lengths, masks) or lengths.min() < 1:
        raise DataError(f"batch {batch_id}: a sample has no tokens, or not one mask entry per token")
    steps = np.diff(micro)
    if micro[0] != 0 or not np.isin(steps, (0, 1)).all():
        raise DataError(f"batch {batch_id}: its rows are not ordered by micro-batch")
    starts = np.flatnonzero(steps) + 1
    return TokenBatch(
        batch_id=batch_id,
        source_rows=table["source_row"].combine_chunks().to_numpy(zero_copy_only=False),
        input_ids=table["input_ids"].combine_chunks().flatten().to_numpy(zero_copy_only=False),
        loss_mask=table["loss_mask"].combine_chunks().flatten().to_numpy(zero_copy_only=False),
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]),
        micro_batches=np.concatenate([[0], starts, [len(micro)]]).astype(np.int64),
    )


class TokenCache:
    """The folder of token files. Every process of the host may use it at the same time."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, store: Store, document: RunDocument) -> TokenFile:
        """The run's token file, fetched from `store` unless it is there already; again, should it be damaged while in use.

        Raises TransientError when the store is away, DataError if what it holds is not what the run
        document says, and ConfigError if the folder cannot be written.
        """
        path = self.root / document.run_id / _FILE

        def make_whole() -> None:
            with self._locked(path.parent):
                self._make_whole(store, document, path)

        with self._locked(path.parent):
            self._make_whole(store, document, path)
            os.utime(path.parent)
            opened = TokenFile(path, make_whole)
        if opened.batches != document.plan.batches:
            opened.close()
            raise DataError(
                f"{document.tokens.key} holds {count_text(opened.batches, 'batch', 'batches')} and the run {document.plan.batches}"
            )
        return opened

    def _make_whole(self, store: Store, document: RunDocument, path: Path) -> None:
        if not _is_whole(path, document):
            self._fetch(store, document, path)

    def _fetch(self, store: Store, document: RunDocument, path: Path) -> None:
        self._forget_unused(keep=path.parent)
        arriving = path.with_name(f"{_FILE}.arriving")
        try:
            store.download(document.tokens.key, arriving)
        except MissingObjectError:
            raise DataError(f"{document.tokens.key} is missing from {store.url}") from None
        if not _is_whole(arriving, document):
            arriving.unlink()
            raise DataError(
                f"{document.tokens.key} in {store.url} is not the file that the run was planned with"
            )
        arriving.replace(path)
        log.info("tokens fetched", run=document.run_id, bytes=document.tokens.size_bytes)

    def _forget_unused(self, keep: Path) -> None:
        """Remove old token files. A process that still reads one keeps it until it closes it."""
        for folder in self.root.iterdir():
            if folder.is_dir() and folder != keep and time.time() - folder.stat().st_mtime > KEEP_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def _locked(self, folder: Path) -> Iterator[None]:
        """One process fetches; the others wait for it."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o660)
        except OSError as error:
            raise ConfigError(f"cache folder {folder} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _is_whole(path: Path, document: RunDocument) -> bool:
    """Whether the file is the one that the run was planned with, and can be read."""
    expected = document.tokens
    algorithm, _ = parse(expected.checksum)
    try:
        if not path.is_file() or path.stat().st_size != expected.size_bytes:
            return False
        return file_checksum(path, algorithm) == expected.checksum
    except OSError as error:
        # A broken sector, or taken away just now.
        log.warning("tokens cannot be read", path=str(path), reason=error.strerror or str(error))
        return False


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} is not a parquet file that can be read: {str(error).splitlines()[0]}"
        ) from None
