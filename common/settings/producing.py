"""Settings of the producer: data, plan, forecast, submission."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hiddenfeed.options import MIB


class DataSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run is made of."""

    data: Annotated[
        str,
        Meta(
            description="rows: a file, pattern or folder, s3://bucket/key, - for standard input, or a dataset of the hub; "
            "JSON lines, JSON arrays, Parquet or Arrow",
            extra={"required": True, "metavar": "data"},
        ),
    ] = ""
    data_format: Annotated[
        Literal["auto", "messages", "conversations", "input_ids", "prompt", "text"],
        Meta(description="the one kind of rows to take; auto tells each row's by its columns"),
    ] = "auto"
    columns: Annotated[
        str,
        Meta(
            description="columns with names of your own, e.g. messages=chat,id=uuid; id= numbers rows that have ids",
            extra={"metavar": "what=column"},
        ),
    ] = ""
    model: Annotated[
        str,
        Meta(
            description="the model: its name on the hub, or a folder",
            extra={"required": True, "metavar": "model"},
        ),
    ] = ""
    model_revision: Annotated[
        str | None,
        Meta(
            description="revision of the model on the hub; the newest when not set, from then on that one",
            extra={"metavar": "revision"},
        ),
    ] = None
    name: Annotated[
        str | None,
        Meta(
            description="start of the run's id; made from model and data when not set",
            extra={"metavar": "name"},
        ),
    ] = None
    run_id: Annotated[
        str | None,
        Meta(
            description="resume exactly this run; refused if anything that matters differs",
            extra={"metavar": "run"},
        ),
    ] = None
    taps: Annotated[
        str,
        Meta(
            description="states to keep: 0,15,30 (those after so many blocks), blocks:1,15 (outputs of these blocks), "
            "vllm:…, hf:… (numbered as there), eagle3, dflash or dflash:K (K taps), draft:FOLDER (what that draft model reads)",
            extra={"metavar": "taps"},
        ),
    ] = "dflash"
    final_state: Annotated[
        Literal["none", "pre", "post"],
        Meta(
            description="also keep the last state, for the language-model head: before (pre) or after (post) the final norm"
        ),
    ] = "none"
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"], Meta(description="dtype of the stored states")
    ] = "bfloat16"
    chat_template: Annotated[
        str | None,
        Meta(description="Jinja file in place of the tokenizer's own template", extra={"metavar": "file"}),
    ] = None
    loss_mask: Annotated[
        str,
        Meta(
            pattern="^(assistant|last-turn|all|template:.+)$",
            description="which tokens the model is trained to predict: the assistant's, those of its last turn, all, or "
            "what a Jinja file that makes the same text marks with {% generation %}",
            extra={"choices": ("assistant", "last-turn", "all", "template:FILE")},
        ),
    ] = "assistant"
    max_length: Annotated[int, Meta(ge=1, description="longest sample", extra={"unit": "tokens"})] = 4096
    overlength: Annotated[
        Literal["truncate", "drop"],
        Meta(description="samples above --max-length lose their end, or are skipped"),
    ] = "truncate"
    min_length: Annotated[
        int, Meta(ge=1, description="shortest sample; those below are skipped", extra={"unit": "tokens"})
    ] = 1
    min_loss_tokens: Annotated[
        int,
        Meta(
            ge=1,
            description="fewest tokens to be predicted in a sample, after truncation; those with fewer are skipped",
            extra={"unit": "tokens"},
        ),
    ] = 1
    duplicates: Annotated[
        Literal["keep", "drop"],
        Meta(
            description="samples whose tokens and loss mask an earlier one has too; where two have one id, the second is "
            "skipped in any case"
        ),
    ] = "keep"


class PlanSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How samples become micro-batches and batches."""

    micro_batch_tokens: Annotated[
        int,
        Meta(
            ge=1,
            description="padded tokens of one micro-batch at most; fewer where a file would hold less than four of them",
            extra={"unit": "tokens"},
        ),
    ] = 16384
    target_file_bytes: Annotated[
        int, Meta(ge=1, description="about the size of a batch file", extra={"unit": "bytes"})
    ] = 512 * MIB
    seed: Annotated[int, Meta(ge=0, description="seed with which micro-batches are dealt into batches")] = 0
    prepare_processes: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="processes that tokenise; 0 is one per core, at most 8, each with its share of the cores; "
            "the result is the same",
        ),
    ] = 0


class ForecastSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a plan's hours and bandwidth are reckoned with; a run does not depend on them."""

    gpus: Annotated[int, Meta(ge=1, description="GPUs that are to compute the run")] = 4
    tokens_per_second: Annotated[
        float,
        Meta(
            gt=0,
            description="what one GPU computes; 10,000 is about an H200 with a model of 27 B, "
            "and `python -m producer status RUN` says what a worker does",
            extra={"unit": "tokens/s"},
        ),
    ] = 10_000.0
    upload_bandwidth_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="what all hosts together can upload in a second; 0 is enough to keep up",
            extra={"unit": "bytes/s"},
        ),
    ] = 0


class SubmitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a plan gets onto the queue."""

    queue_window: Annotated[
        int, Meta(ge=1, description="batches queued at a time; each takes 2 kB of Redis's memory")
    ] = 1000
    detach: Annotated[
        bool, Meta(description="return once one window is queued, without waiting for the end")
    ] = False
