"""Preparation: rows to tokens.parquet and skipped.parquet on local disk, in memory that does not grow with the tokens.

Two passes. The first tokenises rows in order and spills the samples to a file; then the plan is
made from their lengths; the second writes them batch by batch.
"""

from __future__ import annotations

import errno
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hiddenfeed.errors import ConfigError
from hiddenfeed.options import MIB
from hiddenfeed.run import PlanSummary
from hiddenfeed.skipped import SkipReason
from hiddenfeed.words import count_text, duration_text
from producer.console import Console
from producer.crew import Crew, crew_size
from producer.plan import Plan, make_plan
from producer.recipe import Recipe
from producer.rows import RawRow, SkippedRow
from producer.samples import Sample
from producer.sources import RowReader
from producer.spill import Spill
from producer.tally import Tally
from producer.tokens_file import SkippedFile, write_tokens_file

#: Rows are tokenised by the handful: enough for the tokenizer's threads, little enough to bound memory.
_CHUNK_ROWS = 512
_CHUNK_BYTES = 4 * MIB
#: After so many rows it is said if more than this share of them was refused by the chat template.
_WARN_AFTER, _WARN_SHARE = 200, 0.2


@dataclass(frozen=True)
class Prepared:
    """The two files on local disk, and what is in them."""

    tokens_path: Path
    skipped_path: Path
    plan: Plan
    tally: Tally

    @property
    def summary(self) -> PlanSummary:
        """The plan in numbers."""
        return PlanSummary(
            rows=self.tally.rows,
            samples=self.tally.samples,
            skipped=self.tally.skipped,
            tokens=self.plan.tokens,
            padded_tokens=self.plan.padded_tokens,
            loss_tokens=self.tally.loss_tokens,
            longest=self.plan.longest,
            micro_batches=self.plan.micro_batches,
            batches=self.plan.batches,
        )


def prepare(recipe: Recipe, folder: Path, console: Console) -> Prepared:
    """Tokenise, plan and write into `folder`, which is the caller's to remove.

    Raises ConfigError if the data cannot be read, changes meanwhile, or leaves no sample, and if the
    disk under `folder` is full.
    """
    tokens_path, skipped_path = folder / "tokens.parquet", folder / "skipped.parquet"
    with _disk_full(folder), Spill(folder) as spill:
        with SkippedFile(skipped_path) as skipped:
            tally = _tokenise(recipe, spill.append, skipped.append, console)
        recipe.check_unchanged()
        if not tally.samples:
            raise ConfigError(_nothing_left(recipe, tally))
        spill.flush()
        plan = make_plan(spill.lengths, recipe.limits)
        for written in write_tokens_file(tokens_path, plan, spill):
            console.progress(
                f"writing the plan: {{}} of {count_text(plan.batches, 'batch', 'batches')}".format, written
            )
    return Prepared(tokens_path, skipped_path, plan, tally)


def survey(recipe: Recipe, console: Console) -> tuple[Plan, Tally]:
    """The plan alone: rows are tokenised and only their lengths kept, so nothing is written.

    Raises ConfigError as `prepare` does.
    """
    lengths = array("q")
    tally = _tokenise(recipe, lambda sample: lengths.append(len(sample.ids)), lambda skipped: None, console)
    recipe.check_unchanged()
    if not tally.samples:
        raise ConfigError(_nothing_left(recipe, tally))
    return make_plan(np.frombuffer(lengths, np.int64), recipe.limits), tally


def _tokenise(
    recipe: Recipe,
    keep: Callable[[Sample], object],
    leave_out: Callable[[SkippedRow], object],
    console: Console,
) -> Tally:
    """The first pass: every row is kept or left out."""
    tally = Tally()
    duplicates = recipe.duplicates()
    reader = RowReader(recipe.files, recipe.columns, console.say)
    total, begun = sum(size for size, _ in recipe.file_states), time.monotonic()
    places: deque[int] = deque()
    with Crew(recipe.sample_parts, crew_size(recipe.plan.prepare_processes, total)) as crew:
        for rows, made in crew.make(_noted(_chunks(reader), reader, places)):
            done = places.popleft() / max(1, total)
            for row, one in zip(rows, made, strict=True):
                result = duplicates.check(row.file, one)
                if isinstance(result, SkippedRow):
                    leave_out(result)
                    tally.skip(result)
                else:
                    keep(result)
                    for missing in tally.add(result, row.file):
                        _warn_of_missing(missing, console)
            if tally.rows >= _WARN_AFTER > tally.rows - len(rows):
                _warn_of_refusals(tally, console)
            console.progress(_progress, tally, done, time.monotonic() - begun)
    return tally


def _warn_of_refusals(tally: Tally, console: Console) -> None:
    """Say early that a template and the data do not go together, before hours go into the rest of the rows."""
    refused = tally.causes["no loss mask"] + tally.causes["not rendered"]
    if refused > tally.rows * _WARN_SHARE:
        console.warn(f"{refused:,} of the first {tally.rows:,} rows get no loss mask: {tally.reasons()[0]}")


def _warn_of_missing(missing: SkipReason, console: Console) -> None:
    """Say once of each kind what is in the rows and not in the samples."""
    console.warn(
        f"the chat template does not show {missing.reason} of row {missing.source_row} of {missing.file}; the sample is "
        "kept without it, and how many are is said at the end"
    )


def _progress(tally: Tally, done: float, seconds: float) -> str:
    left = f", about {duration_text(seconds / done - seconds)} left" if done > 0 and seconds > 1 else ""
    return (
        f"preparing: {done:.0%}, {count_text(tally.rows, 'row')}, {count_text(tally.tokens, 'token')}, "
        f"{tally.rows / max(seconds, 1e-3):,.0f} rows/s{left}"
    )


def _noted(chunks: Iterator[list[RawRow]], reader: RowReader, places: deque[int]) -> Iterator[list[RawRow]]:
    """The chunks; how far the reader was behind each goes to `places`, as it is ahead of those that are done."""
    for chunk in chunks:
        places.append(reader.bytes_read)
        yield chunk


def _chunks(reader: RowReader) -> Iterator[list[RawRow]]:
    chunk: list[RawRow] = []
    begun = reader.bytes_read
    for row in reader:
        chunk.append(row)
        if len(chunk) >= _CHUNK_ROWS or reader.bytes_read - begun >= _CHUNK_BYTES:
            yield chunk
            chunk, begun = [], reader.bytes_read
    if chunk:
        yield chunk


def _nothing_left(recipe: Recipe, tally: Tally) -> str:
    if not tally.rows:
        return f"{recipe.data.data} has no rows"
    return f"{recipe.data.data}: no sample is left of {count_text(tally.rows, 'row')}; mostly: {tally.reasons()[0]}"


@contextmanager
def _disk_full(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ConfigError(f"the disk under {folder} is full; set TMPDIR to a folder with more room") from None
