"""A run made on the spot: random tokens of given lengths, planned as the producer plans, put into a store."""

from __future__ import annotations

import io
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from common.messages import ExtractBatch
from hiddenfeed.checksum import checksum_of
from hiddenfeed.layout import run_document_key, skipped_key, tokens_key
from hiddenfeed.plan_file import SKIPPED_SCHEMA, TOKENS_SCHEMA, TOKENS_WRITING
from hiddenfeed.run import InputFile, PlanSummary, RunDocument, RunIdentity, StoredFile, fingerprint
from hiddenfeed.store import Store
from hiddenfeed.taps import describe
from producer.plan import Plan, PlanLimits, make_plan


@dataclass(frozen=True)
class RunSpec:
    """What the run is made of."""

    #: Hub id or folder; and as in the identity, `weights:<hash>` for a folder.
    model: str
    model_identity: str
    hidden_size: int
    num_blocks: int
    #: Token ids are drawn below it.
    vocabulary: int
    taps: tuple[int, ...]
    final_state: str = "none"
    dtype: str = "bfloat16"
    micro_batch_tokens: int = 2048
    batch_tokens: int = 16384
    seed: int = 0


def put_run(
    store: Store, spec: RunSpec, lengths: npt.NDArray[np.int64]
) -> tuple[RunDocument, list[ExtractBatch]]:
    """Write tokens.parquet, skipped.parquet and run.json; returns the document and a manifest per batch."""
    limits = PlanLimits(spec.micro_batch_tokens, spec.batch_tokens, spec.hidden_size, spec.seed)
    plan = make_plan(lengths, limits)
    identity = _identity(spec, lengths)
    run_id = f"bench-{fingerprint(identity)}"
    tokens, manifests = _tokens_file(plan, spec, run_id)
    skipped = io.BytesIO()
    pq.write_table(SKIPPED_SCHEMA.empty_table(), skipped)
    document = RunDocument(
        run_id=run_id,
        fingerprint=fingerprint(identity),
        identity=identity,
        created_at="2026-01-01T00:00:00Z",
        model=spec.model,
        hidden_size=spec.hidden_size,
        num_blocks=spec.num_blocks,
        taps_spec=",".join(map(str, spec.taps)),
        taps_meaning=describe(spec.taps, spec.num_blocks),
        plan=_summary(plan),
        tokens=_put(store, tokens_key(run_id), tokens),
        skipped=_put(store, skipped_key(run_id), skipped.getvalue()),
        versions={},
        settings={},
    )
    store.write(run_document_key(run_id), msgspec.json.encode(document))
    return document, manifests


def mixed_lengths(samples: int, mean: int, longest: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """int64 [samples], log-normal as conversations are, 4 to `longest` tokens."""
    random = np.random.default_rng(seed)
    drawn = random.lognormal(np.log(mean) - 0.32, 0.8, samples)
    return np.clip(drawn, 4, longest).astype(np.int64)


def _tokens_file(plan: Plan, spec: RunSpec, run_id: str) -> tuple[bytes, list[ExtractBatch]]:
    random = np.random.default_rng(spec.seed)
    sink, manifests = io.BytesIO(), []
    with pq.ParquetWriter(sink, TOKENS_SCHEMA, **TOKENS_WRITING) as writer:
        for batch_id in range(plan.batches):
            batch = plan.batch(batch_id)
            offsets = np.concatenate([[0], np.cumsum(plan.lengths[batch.samples])]).astype(np.int32)
            ids = random.integers(0, spec.vocabulary, batch.tokens).astype(np.int32)
            mask = random.integers(0, 2, batch.tokens).astype(np.uint8)
            columns = [
                pa.array([f"sample-{row}" for row in batch.samples.tolist()], pa.string()),
                pa.array(batch.samples, pa.int64()),
                pa.ListArray.from_arrays(offsets, ids),
                pa.ListArray.from_arrays(offsets, mask),
                pa.array(batch.micro_batches, pa.int32()),
            ]
            table = pa.table(dict(zip(TOKENS_SCHEMA.names, columns, strict=True))).cast(TOKENS_SCHEMA)
            writer.write_table(table, row_group_size=table.num_rows)
            manifests.append(
                ExtractBatch(
                    run_id=run_id,
                    batch_id=batch_id,
                    tokens=tokens_key(run_id),
                    row_group=batch_id,
                    samples=len(batch.samples),
                    tokens_total=batch.tokens,
                    longest=batch.longest,
                    squares=batch.squares,
                )
            )
    return sink.getvalue(), manifests


def _identity(spec: RunSpec, lengths: npt.NDArray[np.int64]) -> RunIdentity:
    made_of = checksum_of(lengths.tobytes())
    return RunIdentity(
        data=(InputFile(name="random", size_bytes=int(lengths.sum()), blake2b=made_of),),
        model=spec.model_identity,
        model_revision=None,
        tokenizer="",
        chat_template="",
        loss_mask="all",
        max_length=int(lengths.max()),
        overlength="truncate",
        min_length=1,
        taps=spec.taps,
        final_state=spec.final_state,
        dtype=spec.dtype,
        micro_batch_tokens=spec.micro_batch_tokens,
        target_file_bytes=spec.batch_tokens,
        seed=spec.seed,
    )


def _summary(plan: Plan) -> PlanSummary:
    return PlanSummary(
        rows=len(plan.lengths),
        samples=len(plan.lengths),
        skipped=0,
        tokens=plan.tokens,
        padded_tokens=plan.padded_tokens,
        loss_tokens=0,
        longest=plan.longest,
        micro_batches=plan.micro_batches,
        batches=plan.batches,
    )


def _put(store: Store, key: str, data: bytes) -> StoredFile:
    store.write(key, data)
    return StoredFile(key=key, size_bytes=len(data), checksum=checksum_of(data))
