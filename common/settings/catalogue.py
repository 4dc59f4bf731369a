"""Every setting of every role, declared once: type, default, unit, limits, help, live or not.

A group is a frozen struct. Flags (`--upload-parallelism`), environment names
(`HIDDENFEED_UPLOAD_PARALLELISM`), `--show-config` and docs/settings.md are made from it.
Store access is declared in `hiddenfeed.options`, because the library needs it too.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hiddenfeed.options import MIB, StoreOptions

GIB = 1024 * MIB


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The one Redis all roles share."""

    redis_url: Annotated[
        str,
        Meta(description="Redis URL; rediss:// for TLS, redis://:password@host:port/db for a password"),
    ] = "redis://127.0.0.1:6379/0"
    redis_ca_bundle: Annotated[str | None, Meta(description="file of CA certificates for rediss://")] = None


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where runs live."""

    store: Annotated[
        str, Meta(description="root of all runs: s3://bucket/prefix or a folder", extra={"required": True})
    ] = ""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a process says while it works."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="least important message shown")
    ] = "info"
    log_format: Annotated[
        Literal["auto", "human", "json"], Meta(description="auto is human on a terminal and json elsewhere")
    ] = "auto"


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How jobs are owned, taken over, tried again and given back."""

    lease_seconds: Annotated[
        int,
        Meta(ge=3, description="a job of a process silent for this long is taken over", extra={"unit": "s"}),
    ] = 45
    heartbeat_seconds: Annotated[
        int,
        Meta(
            ge=1,
            description="how often a process renews its leases; a third of the lease at most",
            extra={"unit": "s"},
        ),
    ] = 10
    maintenance_seconds: Annotated[
        int, Meta(ge=1, description="how often lapsed leases are looked for", extra={"unit": "s"})
    ] = 5
    poll_seconds: Annotated[
        int, Meta(ge=1, le=10, description="longest wait for one pop from a queue", extra={"unit": "s"})
    ] = 1
    grace_seconds: Annotated[
        int,
        Meta(
            ge=0,
            description="after SIGTERM, time for running jobs to finish before they are given back",
            extra={"unit": "s"},
        ),
    ] = 30
    job_attempts: Annotated[
        int, Meta(ge=1, description="attempts of a job that fails for no known reason")
    ] = 4
    job_takeovers: Annotated[
        int,
        Meta(
            ge=1,
            description="a job whose process died this often while it ran is failed, lest it kill them all",
        ),
    ] = 10
    retry_base_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="first delay before a transient failure is tried again; doubled each time",
            extra={"unit": "s"},
        ),
    ] = 1.0
    retry_max_seconds: Annotated[
        float,
        Meta(
            gt=0, description="longest delay before a transient failure is tried again", extra={"unit": "s"}
        ),
    ] = 60.0
    result_ttl_seconds: Annotated[
        int, Meta(ge=60, description="how long a finished job can be looked at", extra={"unit": "s"})
    ] = 24 * 3600
    finished_jobs_max: Annotated[
        int,
        Meta(
            ge=0,
            description="finished jobs of a queue that can be looked at; older ones are forgotten sooner",
        ),
    ] = 1000


class SpoolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The folder between a GPU worker and the uploaders of its host."""

    spool: Annotated[
        str,
        Meta(
            description="name of the spool, after which its upload queue is called; made up and kept in its folder when not set",
            pattern="^[A-Za-z0-9_-]{0,60}$",
        ),
    ] = ""
    spool_dir: Annotated[
        str, Meta(description="the spool's folder on local disk, shared by the roles of a host")
    ] = "spool"
    spool_cap_bytes: Annotated[
        int,
        Meta(
            ge=MIB, description="the spool never holds more than this", extra={"unit": "bytes", "live": True}
        ),
    ] = 50 * GIB
    spool_low_percent: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="a spool that was full lets batches be started again once it holds this share of its cap, or less",
            extra={"unit": "%", "live": True},
        ),
    ] = 80
    spool_free_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="disk space the spool leaves free for others",
            extra={"unit": "bytes", "live": True},
        ),
    ] = 2 * GIB


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


class ExtractSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the GPU worker computes."""

    run: Annotated[
        str | None, Meta(description="serve this run only; else the oldest with work, the loaded model first")
    ] = None
    device: Annotated[str, Meta(description="auto, cpu, cuda or cuda:N")] = "auto"
    compute_dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32"],
        Meta(description="dtype of the forward pass; auto is the checkpoint's own"),
    ] = "auto"
    attention: Annotated[
        Literal["auto", "sdpa", "eager", "flash_attention_2", "flash_attention_3"],
        Meta(description="attention implementation"),
    ] = "auto"
    threads: Annotated[
        int, Meta(ge=0, description="CPU threads of the forward pass; 0 takes as many as may be used")
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
            description="load the run's model from this folder instead of where the run says; its weights must be the same"
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
        str | None, Meta(description="folder for token files of runs; inside the spool when not set")
    ] = None
    batch_timeout_seconds: Annotated[
        int, Meta(ge=10, description="a batch computing for longer is taken for hung", extra={"unit": "s"})
    ] = 3600


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
        Literal["assistant", "last-turn", "all"],
        Meta(description="which tokens the model is trained to predict"),
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


class MonitorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the monitor answers."""

    monitor_host: Annotated[str, Meta(description="address the web page listens on")] = "127.0.0.1"
    monitor_port: Annotated[int, Meta(ge=0, le=65535, description="port of the web page")] = 8080
    refresh_seconds: Annotated[
        float, Meta(gt=0, description="how often the live view is renewed", extra={"unit": "s"})
    ] = 1.0
    monitor_token: Annotated[
        str | None,
        Meta(
            description="whoever has it may pause runs and change live settings from the page; nobody when not set",
            extra={"secret": True},
        ),
    ] = None
    dashboard_url: Annotated[
        str,
        Meta(
            pattern="^(https?://.*)?$",
            description="where people reach rq-dashboard, for the page's link; port 9181 of the page's host when not set",
        ),
    ] = ""


class HomeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where everything of a single machine is."""

    home: Annotated[
        str,
        Meta(description="folder for servers, spool and logs; the same home goes on with its run"),
    ] = "hiddenfeed-home"


class StandaloneSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything on one machine without Docker: where the run goes and how many processes work on it."""

    out: Annotated[
        str | None,
        Meta(
            description="where the run goes: s3://bucket/prefix (AWS, or the server of --s3-endpoint) or a folder; "
            "an S3 server inside the home when not set"
        ),
    ] = None
    uploaders: Annotated[int, Meta(ge=1, le=64, description="uploader processes")] = 2
    workers: Annotated[int, Meta(ge=1, le=64, description="GPU worker processes")] = 1
    devices: Annotated[
        str | None,
        Meta(
            description="one GPU worker on each of these: 0,1 or cuda:0,cuda:1 or all; in place of --workers"
        ),
    ] = None
    redis_port: Annotated[
        int, Meta(ge=0, le=65535, description="port of the Redis server inside the home; 0 takes a free one")
    ] = 0
    s3_port: Annotated[
        int, Meta(ge=0, le=65535, description="port of the S3 server inside the home; 0 takes a free one")
    ] = 0


class DashboardSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """rq-dashboard beside the monitor."""

    dashboard_host: Annotated[
        str, Meta(description="address rq-dashboard listens on; others than loopback need a password")
    ] = "127.0.0.1"
    dashboard_port: Annotated[int, Meta(ge=0, le=65535, description="port of rq-dashboard")] = 9181
    dashboard_user: Annotated[str, Meta(description="login of rq-dashboard")] = "hiddenfeed"
    dashboard_password: Annotated[
        str | None, Meta(description="password of rq-dashboard", extra={"secret": True})
    ] = None


ALL_GROUPS: tuple[type[msgspec.Struct], ...] = (
    RedisSettings,
    StoreSettings,
    StoreOptions,
    DataSettings,
    PlanSettings,
    ForecastSettings,
    SubmitSettings,
    QueueSettings,
    SpoolSettings,
    ExtractSettings,
    UploadSettings,
    MonitorSettings,
    HomeSettings,
    StandaloneSettings,
    DashboardSettings,
    LogSettings,
)
