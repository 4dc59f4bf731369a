"""A complete little run made up on the spot: run.json, tokens.parquet, skipped.parquet and batch files.

No model is involved: states are seeded random numbers, so every byte is known beforehand.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from hiddenfeed.batch_file import BatchFacts, BatchLayout, encode_header
from hiddenfeed.checksum import ALGORITHM, checksum_of
from hiddenfeed.layout import (
    batch_key,
    quarantine_note_key,
    run_document_key,
    skipped_key,
    tokens_key,
)
from hiddenfeed.plan_file import SKIPPED_SCHEMA, TOKENS_SCHEMA
from hiddenfeed.proof import QuarantineNote
from hiddenfeed.run import InputFile, PlanSummary, RunDocument, RunIdentity, StoredFile, fingerprint
from hiddenfeed.store.base import Store
from hiddenfeed.taps import describe


@dataclass(frozen=True)
class SyntheticSample:
    """One planned sample with what its file must say."""

    sample_id: str
    source_row: int
    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8]
    #: [n, K, H] as stored.
    raw: npt.NDArray[Any]
    #: [n, H] as stored.
    raw_final: npt.NDArray[Any]


@dataclass(frozen=True)
class SyntheticRun:
    """A run in memory; `write` puts any part of it into a store."""

    document: RunDocument
    #: Samples by batch, in file order.
    batches: tuple[tuple[SyntheticSample, ...], ...]
    tokens_file: bytes
    skipped_file: bytes

    @property
    def run_id(self) -> str:
        return self.document.run_id

    def key(self, batch_id: int) -> str:
        return batch_key(self.run_id, batch_id)

    def samples(self) -> list[SyntheticSample]:
        return [sample for batch in self.batches for sample in batch]

    def layout(self, batch_id: int) -> BatchLayout:
        samples = self.batches[batch_id]
        tokens = sum(len(sample.input_ids) for sample in samples)
        return BatchLayout(BatchFacts.of_run(self.document, batch_id, tokens=tokens, samples=len(samples)))

    def tensors(self, batch_id: int) -> dict[str, npt.NDArray[Any]]:
        """Every tensor of the file, by name."""
        return batch_tensors(self.layout(batch_id), self.batches[batch_id])

    def batch_file(self, batch_id: int) -> bytes:
        """The whole file."""
        return encode_batch(self.layout(batch_id), self.tensors(batch_id))

    def note(self, batch_id: int, reason: str = "hidden states are not finite") -> bytes:
        rows = tuple(sample.source_row for sample in self.batches[batch_id])
        note = QuarantineNote(run_id=self.run_id, batch_id=batch_id, reason=reason, source_rows=rows)
        return msgspec.json.encode(note)

    def prepare(self, store: Store) -> None:
        """What the producer stores before the first batch."""
        store.write(tokens_key(self.run_id), self.tokens_file)
        store.write(skipped_key(self.run_id), self.skipped_file)
        store.write(run_document_key(self.run_id), msgspec.json.encode(self.document), if_absent=True)

    def write(
        self, store: Store, *, batches: Collection[int] | None = None, quarantined: Collection[int] = ()
    ) -> None:
        """The prepared run, the files of `batches` (all that are not quarantined by default) and the notes."""
        self.prepare(store)
        everything = set(range(len(self.batches))) - set(quarantined)
        for batch in sorted(everything if batches is None else batches):
            store.write(self.key(batch), self.batch_file(batch))
        for batch in quarantined:
            store.write(quarantine_note_key(self.run_id, batch), self.note(batch))


def synthetic_run(
    *,
    name: str = "little",
    batches: int = 3,
    samples_per_batch: int = 4,
    longest: int = 7,
    skipped: int = 2,
    taps: tuple[int, ...] = (0, 2, 3),
    num_blocks: int = 3,
    hidden_size: int = 8,
    dtype: str = "bfloat16",
    final_state: str = "none",
    seed: int = 0,
) -> SyntheticRun:
    """A run whose rows 0..rows-1 are dealt at random into batches and skipped.parquet."""
    random = np.random.default_rng(seed)
    rows = batches * samples_per_batch + skipped
    dealt = random.permutation(rows).tolist()
    shape = (len(taps), hidden_size)
    planned = tuple(
        tuple(_sample(random, row, longest, shape, dtype) for row in dealt[start : start + samples_per_batch])
        for start in range(0, batches * samples_per_batch, samples_per_batch)
    )
    tokens_file = encode_plan(planned)
    skipped_file = encode_skipped(dealt[batches * samples_per_batch :])
    identity = _identity(taps, dtype, final_state, seed)
    mark = fingerprint(identity)
    run_id = f"{name}-{mark}"
    lengths = [len(sample.input_ids) for batch in planned for sample in batch]
    document = RunDocument(
        run_id=run_id,
        fingerprint=mark,
        identity=identity,
        created_at="2026-01-01T00:00:00Z",
        model="example/tiny",
        hidden_size=hidden_size,
        num_blocks=num_blocks,
        taps_spec=",".join(map(str, taps)),
        taps_meaning=describe(taps, num_blocks),
        plan=PlanSummary(
            rows=rows,
            samples=len(lengths),
            skipped=skipped,
            tokens=sum(lengths),
            padded_tokens=sum(lengths),
            loss_tokens=int(sum(sample.loss_mask.sum() for batch in planned for sample in batch)),
            longest=max(lengths, default=0),
            micro_batches=batches,
            batches=batches,
        ),
        tokens=_stored(tokens_key(run_id), tokens_file),
        skipped=_stored(skipped_key(run_id), skipped_file),
        versions={"hiddenfeed": "0"},
        settings={},
    )
    return SyntheticRun(document, planned, tokens_file, skipped_file)


def encode_plan(batches: Sequence[Sequence[SyntheticSample]]) -> bytes:
    """tokens.parquet: one row group per batch."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, TOKENS_SCHEMA) as writer:
        for batch in batches:
            columns = [
                pa.array([sample.sample_id for sample in batch], pa.string()),
                pa.array([sample.source_row for sample in batch], pa.int64()),
                pa.array([sample.input_ids for sample in batch], pa.list_(pa.int32())),
                pa.array([sample.loss_mask for sample in batch], pa.list_(pa.uint8())),
                pa.array([0 for _ in batch], pa.int32()),
            ]
            writer.write_table(pa.table(columns, schema=TOKENS_SCHEMA), row_group_size=max(1, len(batch)))
    return sink.getvalue()


def encode_skipped(rows: Sequence[int]) -> bytes:
    """skipped.parquet: these rows, all for the same reason."""
    columns = [
        pa.array(["data.jsonl"] * len(rows), pa.string()),
        pa.array(list(rows), pa.int64()),
        pa.array([None] * len(rows), pa.string()),
        pa.array(["the conversation is empty"] * len(rows), pa.string()),
    ]
    sink = io.BytesIO()
    pq.write_table(pa.table(columns, schema=SKIPPED_SCHEMA), sink)
    return sink.getvalue()


def batch_tensors(layout: BatchLayout, samples: Sequence[SyntheticSample]) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a batch file by name, in file order."""
    lengths = [len(sample.input_ids) for sample in samples]
    every = {
        "hidden_states": np.concatenate([sample.raw for sample in samples]),
        "final_hidden_states": np.concatenate([sample.raw_final for sample in samples]),
        "alignment": np.zeros(7, np.uint8),
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "sample_index": np.array([sample.source_row for sample in samples], np.int64),
        "input_ids": np.concatenate([sample.input_ids for sample in samples]),
        "loss_mask": np.concatenate([sample.loss_mask for sample in samples]),
    }
    every["alignment"] = every["alignment"][
        : next((place.shape[0] for place in layout.tensors if place.name == "alignment"), 0)
    ]
    return {place.name: every[place.name] for place in layout.tensors}


def encode_batch(
    layout: BatchLayout, tensors: dict[str, npt.NDArray[Any]], algorithm: str = ALGORITHM
) -> bytes:
    """The file of these tensors, header last known but first in place."""
    body = [tensors[place.name].tobytes() for place in layout.tensors]
    checksums = {
        place.name: checksum_of(data, algorithm) for place, data in zip(layout.tensors, body, strict=True)
    }
    return encode_header(layout, checksums, {"norm_median": "1.0"}, {"dtype": "float32"}) + b"".join(body)


def random_states(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """Finite states as stored: uint16 bits for bfloat16."""
    values = random.standard_normal(shape).astype(np.float32)
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return values.astype(dtype)


def _sample(
    random: np.random.Generator, row: int, longest: int, shape: tuple[int, int], dtype: str
) -> SyntheticSample:
    length = int(random.integers(1, longest + 1))
    return SyntheticSample(
        sample_id=f"sample-{row}",
        source_row=row,
        input_ids=random.integers(0, 1000, length, dtype=np.int32),
        loss_mask=random.integers(0, 2, length).astype(np.uint8),
        raw=random_states(random, (length, *shape), dtype),
        raw_final=random_states(random, (length, shape[1]), dtype),
    )


def _identity(taps: tuple[int, ...], dtype: str, final_state: str, seed: int) -> RunIdentity:
    return RunIdentity(
        data=(InputFile(name="data.jsonl", size_bytes=1, blake2b="00"),),
        model="example/tiny",
        model_revision="0123456789abcdef",
        tokenizer="00",
        chat_template="00",
        loss_mask="assistant",
        max_length=64,
        overlength="truncate",
        min_length=1,
        taps=taps,
        final_state=final_state,
        dtype=dtype,
        micro_batch_tokens=64,
        target_file_bytes=4096,
        seed=seed,
    )


def _stored(key: str, data: bytes) -> StoredFile:
    return StoredFile(key=key, size_bytes=len(data), checksum=checksum_of(data))
