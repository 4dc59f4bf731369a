"""What the extraction benchmark runs on: how much, and the run of a model that is made for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.planned_run import RunSpec, mixed_lengths, put_run
from common.messages import ExtractBatch
from common.run_state import RunRecord
from common.weights import weights_identity
from hiddenfeed.batch_file import bytes_per_token
from hiddenfeed.run import RunDocument
from hiddenfeed.store.directory import DirectoryStore
from hiddenfeed.taps import parse_taps


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    rounds: int
    #: Batches of the run that one round takes; a plan has 16 or more, which would make small ones.
    batches: int
    samples: int
    mean_tokens: int
    longest: int
    micro_batch_tokens: int
    batch_tokens: int
    #: As in the settings.
    taps: str = "dflash"


QUICK = Scale(
    rounds=5,
    batches=4,
    samples=640,
    mean_tokens=150,
    longest=1024,
    micro_batch_tokens=1024,
    batch_tokens=8192,
)
FULL = Scale(
    rounds=9,
    batches=6,
    samples=960,
    mean_tokens=200,
    longest=2048,
    micro_batch_tokens=2048,
    batch_tokens=16384,
)


def token_bytes(document: RunDocument) -> int:
    """Bytes of one token in a batch file of the run."""
    identity = document.identity
    return bytes_per_token(
        taps=len(identity.taps), hidden_size=document.hidden_size, dtype=identity.dtype, final=False
    )


def put_model_run(store: DirectoryStore, model: Path, scale: Scale) -> tuple[RunDocument, list[ExtractBatch]]:
    """A run of the checkpoint in a folder, planned and stored, with a manifest per batch."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model)
    spec = RunSpec(
        model=str(model),
        model_identity=weights_identity(model),
        hidden_size=config.hidden_size,
        num_blocks=config.num_hidden_layers,
        vocabulary=config.vocab_size,
        taps=parse_taps(scale.taps, config.num_hidden_layers).taps,
        micro_batch_tokens=scale.micro_batch_tokens,
        batch_tokens=scale.batch_tokens,
    )
    return put_run(store, spec, mixed_lengths(scale.samples, scale.mean_tokens, scale.longest))


def record_of(document: RunDocument) -> RunRecord:
    """The run as a producer would register it."""
    plan = document.plan
    return RunRecord(
        run_id=document.run_id,
        model=document.model,
        samples=plan.samples,
        tokens=plan.tokens,
        batches=plan.batches,
        submitted_at=0.0,
    )
