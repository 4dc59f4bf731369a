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
            extra={"required": True},
        ),
    ] = ""
    data_format: Annotated[
        Literal["auto", "messages", "conversations", "input_ids", "prompt", "text"],
        Meta(description="the one kind of rows to take; auto tells each row's by its columns"),
    ] = "auto"
    columns: Annotated[
        str,
        Meta(
            description="columns with names of your own, e.g. messages=chat,id=uuid; id= numbers rows that have ids"
        ),
    ] = ""
    model: Annotated[str, Meta(description="hub id or folder of the model", extra={"required": True})] = ""
    model_revision: Annotated[
        str | None, Meta(description="hub revision; the newest when not set, then pinned")
    ] = None
    name: Annotated[
        str | None, Meta(description="start of the run's id; made from model and data when not set")
    ] = None
    run_id: Annotated[
        str | None, Meta(description="resume exactly this run; refused if anything that matters differs")
    ] = None
    taps: Annotated[
        str,
        Meta(
            description="what to keep: canonical numbers '0,15,30' (states after t blocks), 'blocks:…', 'vllm:…', 'hf:…', 'eagle3', 'dflash[:k]', 'draft:PATH'"
        ),
    ] = "dflash"
    final_state: Annotated[
        Literal["none", "pre", "post"],
        Meta(description="also keep the state for the language-model head, before or after the final norm"),
    ] = "none"
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"], Meta(description="dtype of the stored states")
    ] = "bfloat16"
    chat_template: Annotated[
        str | None, Meta(description="Jinja file in place of the tokenizer's own template")
    ] = None
    loss_mask: Annotated[
        str,
        Meta(
            pattern="^(assistant|last-turn|all|template:.+)$",
            description="which tokens the model is trained to predict: the assistant's, its last-turn, all, or template:FILE, "
            "a Jinja file that makes the same text and marks them with {% generation %}",
        ),
    ] = "assistant"
    max_length: Annotated[
        int, Meta(ge=1, description="longest sample in tokens", extra={"unit": "tokens"})
    ] = 4096
    overlength: Annotated[Literal["truncate", "drop"], Meta(description="what happens to longer ones")] = (
        "truncate"
    )
    min_length: Annotated[
        int, Meta(ge=1, description="shortest sample in tokens", extra={"unit": "tokens"})
    ] = 1
    min_loss_tokens: Annotated[
        int,
        Meta(
            ge=1,
            description="fewest tokens to be predicted in a sample, after truncation",
            extra={"unit": "tokens"},
        ),
    ] = 1
    duplicates: Annotated[
        Literal["keep", "drop"],
        Meta(
            description="samples whose tokens and loss mask an earlier one has too; the second of one id is always skipped"
        ),
    ] = "keep"


class PlanSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How samples become micro-batches and batches."""

    micro_batch_tokens: Annotated[
        int,
        Meta(
            ge=1,
            description="padded tokens of one forward pass at most; fewer where a file would hold less than four",
            extra={"unit": "tokens"},
        ),
    ] = 16384
    target_file_bytes: Annotated[
        int, Meta(ge=1, description="size of a batch file, about", extra={"unit": "bytes"})
    ] = 512 * MIB
    seed: Annotated[int, Meta(ge=0, description="seed of the deal of micro-batches into batches")] = 0
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
            "and `status` says what a worker does",
            extra={"unit": "tokens"},
        ),
    ] = 10_000.0
    upload_bandwidth_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="bytes a second that all hosts together can upload; 0 is enough to keep up",
            extra={"unit": "bytes"},
        ),
    ] = 0


class SubmitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a plan gets onto the queue."""

    queue_window: Annotated[
        int, Meta(ge=1, description="manifests queued at a time, 2 kB of Redis's memory each")
    ] = 1000
    detach: Annotated[
        bool, Meta(description="return once one window is queued, without waiting for the end")
    ] = False
