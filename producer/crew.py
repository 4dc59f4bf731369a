"""Rows to samples on all cores: chunks of rows go to processes that parse, render and tokenise them, and come back in order.

A chunk is judged by itself, so any number of processes make the same samples. Plain rows go out and
samples come back; both are this program's own.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.queues import Queue

from common.processors import allowed_processors
from common.settings.catalogue import DataSettings
from hiddenfeed.errors import PermanentError
from producer.chat_template import ChatTemplate
from producer.columns import Columns
from producer.loss_spans import LossSpans, mode_of
from producer.parcel import MadeParcel, RowParcel, pack_made, pack_rows, unpack_made, unpack_rows
from producer.parse_row import parse_row
from producer.rows import RawRow, SkippedRow
from producer.samples import Sample, SampleMaker
from producer.tokenizer import Tokenizer

#: More processes than this would take more memory than they save time: beyond, each has several threads.
MAX_PROCESSES = 8
#: Chunks on their way for each process: one in work and one waiting.
_CHUNKS_EACH = 2

Made = list[Sample | SkippedRow]


@dataclass(frozen=True)
class SampleParts:
    """What samples are made with; can be sent to another process."""

    columns: Columns
    tokenizer: Tokenizer
    #: None for a model without a chat template.
    template: str | None
    vocab_size: int
    settings: DataSettings
    #: What marks what is to be predicted, where a template was given for that.
    marking: str | None = None

    def maker(self) -> SampleMaker:
        """A maker of samples; any number of them make the same."""
        spans, tokenizer = None, self.tokenizer
        if self.template is not None:
            template = ChatTemplate(self.template, tokenizer.special_tokens)
            marking = None if self.marking is None else ChatTemplate(self.marking, tokenizer.special_tokens)
            spans = LossSpans(
                template, tokenizer.turn_tokens(self.template), mode_of(self.settings.loss_mask), marking
            )
        return SampleMaker(tokenizer, spans, self.vocab_size, self.settings)


class Crew:
    """Some processes that make samples; a context manager. With one process they are made in this one."""

    def __init__(self, parts: SampleParts, processes: int) -> None:
        """Nothing is started before the first chunk."""
        self._parts, self._processes = parts, processes
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Crew:
        if self._processes > 1:
            threads = max(1, allowed_processors() // self._processes)
            # A fork would copy the threads' locks without the threads.
            context = multiprocessing.get_context("spawn")
            # A tokenizer is more than a pipe holds: with the arguments of a process it would be waited for without end
            # if that process is killed before it has read them.
            parts: Queue[SampleParts] = context.Queue()
            parts.cancel_join_thread()
            for _ in range(self._processes):
                parts.put(self._parts)
            self._pool = ProcessPoolExecutor(
                self._processes, context, initializer=_begin, initargs=(parts, threads)
            )
        return self

    def __exit__(self, *details: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def make(self, chunks: Iterable[list[RawRow]]) -> Iterator[tuple[list[RawRow], Made]]:
        """Every chunk with its samples, in the chunks' order.

        Raises ConfigError if there are conversations and no chat template, PermanentError if a process
        was killed.
        """
        if self._pool is None:
            maker = self._parts.maker()
            for chunk in chunks:
                yield chunk, _made(maker, self._parts.columns, chunk)
            return
        waiting: deque[tuple[list[RawRow], Future[MadeParcel]]] = deque()
        try:
            for chunk in chunks:
                waiting.append((chunk, _submitted(self._pool, chunk)))
                if len(waiting) > _CHUNKS_EACH * self._processes:
                    yield _ended(waiting)
            while waiting:
                yield _ended(waiting)
        except BrokenProcessPool:
            raise PermanentError(
                "a process that tokenises was killed, perhaps for want of memory; --prepare-processes 1 takes least"
            ) from None


def crew_size(wanted: int, data_bytes: int) -> int:
    """How many processes: as wanted, or for 0 one per core, up to MAX_PROCESSES, and one for little data."""
    if wanted:
        return wanted
    return min(MAX_PROCESSES, allowed_processors()) if data_bytes >= LITTLE_BYTES else 1


#: Less data than this is tokenised sooner than processes start.
LITTLE_BYTES = 8 * 1024 * 1024


def _submitted(pool: ProcessPoolExecutor, chunk: list[RawRow]) -> Future[MadeParcel]:
    parcel = pack_rows(chunk)
    try:
        return pool.submit(_make, parcel)
    except (OSError, ValueError) as error:
        # A pool that loses a process closes its pipes, which may be while the next process is started with them: they
        # are gone then, or their numbers are those of other files, which is no valid list of what to hand over.
        raise BrokenProcessPool(str(error)) from error


def _ended(waiting: deque[tuple[list[RawRow], Future[MadeParcel]]]) -> tuple[list[RawRow], Made]:
    chunk, future = waiting.popleft()
    return chunk, unpack_made(future.result())


def _made(maker: SampleMaker, columns: Columns, chunk: list[RawRow]) -> Made:
    return maker.make([parse_row(row, columns) for row in chunk])


# --- in the processes of the crew ---

_maker: SampleMaker
_columns: Columns


def _begin(parts_queue: Queue[SampleParts], threads: int) -> None:
    """What a process does first; from then on it ends when the one that started it does."""
    global _maker, _columns
    # Ctrl-C reaches all of a terminal's processes; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    parts = parts_queue.get()
    _maker, _columns = parts.maker(), parts.columns


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _make(parcel: RowParcel) -> MadeParcel:
    return pack_made(_made(_maker, _columns, unpack_rows(parcel)))
