"""What can be known to be wrong before anything is prepared: settings, files, devices, disk."""

from __future__ import annotations

import glob
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from common.settings.catalogue import (
    DataSettings,
    ExtractSettings,
    PlanSettings,
    QueueSettings,
    SpoolSettings,
    StandaloneSettings,
)
from common.settings.combinations import check_file_size, check_lease, check_lengths, check_names
from common.settings.resolve import Resolved
from common.spool import Spool
from hiddenfeed.batch_layout import bytes_per_token
from hiddenfeed.errors import ConfigError
from hiddenfeed.run import RunDocument
from hiddenfeed.words import size_text
from standalone.errand import run_all
from standalone.roles import Role, device_names
from standalone.signals import StopRequest

#: Settings of the GPU worker that only torch can judge.
_FOR_TORCH = ("device", "attention")


def check_settings(resolved: Resolved) -> None:
    """Raise ConfigError for what cannot work by itself; looks at settings and at files that they name."""
    data, extract = resolved.group(DataSettings), resolved.group(ExtractSettings)
    check_names(data)
    check_lengths(data)
    check_lease(resolved.group(QueueSettings))
    check_input(data.data)
    check_file_size(resolved.group(PlanSettings), resolved.group(SpoolSettings))
    device_names(resolved.group(StandaloneSettings))
    if resolved.sources["run"].startswith("flag"):
        raise ConfigError("--run is for GPU workers alone; --run-id resumes a run")
    if data.chat_template is not None and not Path(data.chat_template).expanduser().is_file():
        raise ConfigError(f"--chat-template: there is no file {data.chat_template}")
    if extract.model_path is not None and not Path(extract.model_path).expanduser().is_dir():
        raise ConfigError(f"--model-path: there is no folder {extract.model_path}")


def check_input(data: str) -> None:
    """Raise ConfigError for data that is not there, before anything is started for it.

    A pattern and a folder will do; what is in S3 or on the hub is the producer's to look for.
    """
    if data == "-":
        raise ConfigError("--data - is for `python -m producer`; here the rows must be in a file")
    elsewhere = data.startswith(("s3://", "hf://")) or re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", data)
    found = [data] if Path(data).exists() else glob.iglob(data, recursive=True)  # noqa: PTH207 - a pattern as the producer reads it
    paths = [Path(name) for name in found]
    if not paths and not elsewhere:
        raise ConfigError(f"--data: there is no file {data}")
    if paths and all(path.is_file() and not path.stat().st_size for path in paths):
        raise ConfigError(f"--data: {data} is empty")


def check_disk(plan: PlanSettings, spool: SpoolSettings, cache: Path) -> None:
    """Raise one of hiddenfeed's errors if spool or cache cannot be written, or no batch file would ever be let in."""
    place = Spool(spool)
    place.check()
    usage = place.usage()
    needed = spool.spool_free_bytes + plan.target_file_bytes
    # What waits there from before will go and make room.
    if usage.disk_free_bytes + usage.bytes + usage.part_bytes < needed:
        raise ConfigError(
            f"the disk of the spool {place.root} has {size_text(usage.disk_free_bytes)} free, and a batch file of "
            f"{size_text(plan.target_file_bytes)} beside --spool-free-bytes {size_text(spool.spool_free_bytes)} needs "
            f"{size_text(needed)}; free some, give another --spool-dir or smaller numbers"
        )
    try:
        cache.mkdir(parents=True, exist_ok=True)
        probe = cache / ".probe"
        probe.write_bytes(b"probe")
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"--cache-dir {cache} cannot be written: {error.strerror}") from None


def needs_torch(resolved: Resolved) -> bool:
    """Whether somebody asked for what only torch can say is there. To ask costs seconds, so it is not always done."""
    given = any(resolved.sources[name] != "default" for name in _FOR_TORCH)
    return given or resolved.group(StandaloneSettings).devices is not None


def named_devices(settings: StandaloneSettings, stop: StopRequest) -> StandaloneSettings:
    """The same settings with `--devices all` spelled out; raises ConfigError if there are none, Interrupted if asked."""
    if device_names(settings) != ["all"]:
        return settings
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    (answer,) = run_all([(command, os.environ)], stop)
    count = int(answer.output) if answer.code == 0 else 0
    if not count:
        raise ConfigError("--devices all: torch sees no CUDA device here")
    return msgspec.structs.replace(settings, devices=",".join(map(str, range(count))))


def disk_warning(document: RunDocument, place: Path) -> str:
    """Why the run's files do not fit onto the disk of `place`, as a sentence; empty if they do."""
    identity = document.identity
    per_token = bytes_per_token(
        taps=len(identity.taps),
        hidden_size=document.hidden_size,
        dtype=identity.dtype,
        final=identity.final_state != "none",
    )
    needed, free = document.plan.tokens * per_token, shutil.disk_usage(place).free
    if needed <= free:
        return ""
    return (
        f"the run's files need {size_text(needed)}, and the disk of {place} has {size_text(free)} free: "
        "it will stop and wait for room, so make some, or give --out"
    )


def check_workers(roles: Sequence[Role], stop: StopRequest) -> None:
    """Have every GPU worker check what it checks at its start, all at once; raises the first one's error.

    Raises Interrupted as soon as `stop` asks for it.
    """
    for answer in run_all([([*role.command, "ready"], role.environ) for role in roles], stop):
        if answer.code:
            raise answer.error("a GPU worker cannot start here")
