"""Settings of the two roles that work: extraction and upload."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class ExtractSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the GPU worker computes."""

    run: Annotated[
        str | None,
        Meta(
            description="serve this run only; else the oldest with work, the loaded model first",
            extra={"metavar": "run"},
        ),
    ] = None
    device: Annotated[
        str,
        Meta(description="where the model computes: auto, cpu, cuda or cuda:N", extra={"metavar": "device"}),
    ] = "auto"
    compute_dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32"],
        Meta(description="dtype of the forward pass; auto is the checkpoint's own"),
    ] = "auto"
    attention: Annotated[
        Literal["auto", "sdpa", "eager", "flash_attention_2", "flash_attention_3"],
        Meta(description="attention implementation"),
    ] = "auto"
    threads: Annotated[
        int,
        Meta(ge=0, le=1024, description="CPU threads of the forward pass; 0 takes as many as may be used"),
    ] = 0
    forward_tokens: Annotated[
        int,
        Meta(
            ge=0,
            description="padded tokens of one forward pass at most, planned micro-batches are cut to it; "
            "0 measures what fits into the device's memory, and takes 2048 per thread on a CPU",
            extra={"unit": "tokens"},
        ),
    ] = 0
    compile: Annotated[
        bool,
        Meta(
            description="compile the model's blocks with torch.compile: minutes at the start, then some percent faster on a GPU"
        ),
    ] = False
    allow_slow_kernels: Annotated[
        bool,
        Meta(
            description="run a hybrid model on a GPU though its fast kernels (flash-linear-attention, causal-conv1d, mamba-ssm) are missing"
        ),
    ] = False
    trust_remote_code: Annotated[bool, Meta(description="run model code that a checkpoint brings along")] = (
        False
    )
    model_path: Annotated[
        str | None,
        Meta(
            description="load the run's model from this folder instead of where the run says; its weights must be the same",
            extra={"metavar": "folder"},
        ),
    ] = None
    batches_in_flight: Annotated[
        int, Meta(ge=1, le=8, description="batches in flight: one read, one computed, one written")
    ] = 3
    upload_backlog_max: Annotated[
        int,
        Meta(
            ge=1,
            description="do not start batches while this many files wait for upload",
            extra={"live": True},
        ),
    ] = 1000
    upload_backlog_low_percent: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="once that many waited, start batches again when this share of it is left, or less",
            extra={"unit": "%", "live": True},
        ),
    ] = 80
    cache_dir: Annotated[
        str | None,
        Meta(
            description="folder for token files of runs; inside the spool when not set",
            extra={"metavar": "folder"},
        ),
    ] = None
    batch_timeout_seconds: Annotated[
        int, Meta(ge=10, description="a batch computing for longer is taken for hung", extra={"unit": "s"})
    ] = 3600


class UploadSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the uploader moves files."""

    upload_parallelism: Annotated[
        int,
        Meta(
            ge=1,
            le=5000,
            description="files, or parts of files, under way to the store over all uploaders of the fleet",
            extra={"live": True},
        ),
    ] = 64
    upload_process_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description="of those, the most that one uploader process takes; start more processes for more",
            extra={"live": True},
        ),
    ] = 128
    upload_timeout_seconds: Annotated[
        int, Meta(ge=10, description="an upload running for longer is taken for hung", extra={"unit": "s"})
    ] = 3600
    leftover_seconds: Annotated[
        int,
        Meta(
            ge=1,
            description="a finished file in the spool that no job speaks of is announced again after this",
            extra={"unit": "s"},
        ),
    ] = 60
    orphan_seconds: Annotated[
        int,
        Meta(
            ge=3600,
            description="an upload in parts that nobody went on with is given up after this",
            extra={"unit": "s"},
        ),
    ] = 86_400
