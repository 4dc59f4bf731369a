"""Wiring of the GPU worker: from settings to a worker that serves runs with one device."""

from __future__ import annotations

import importlib.util
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import redis
import torch

from common.cli import Command
from common.logs import get_logger, setup_logging
from common.queues import EXTRACT_FUNCTION
from common.redis_client import connect, make_client
from common.settings.catalogue import (
    ExtractSettings,
    LogSettings,
    QueueSettings,
    RedisSettings,
    SpoolSettings,
    StoreSettings,
)
from common.settings.combinations import check_lease
from common.settings.live import LiveSettings
from common.settings.resolve import Resolved
from common.spool import Spool
from common.worker import Worker, leave
from gpu_worker.admission import Admission
from gpu_worker.extract import Extractor
from gpu_worker.fleet import Asked, plan_fleet
from gpu_worker.host_heap import keep_freed_memory
from gpu_worker.model import resolve_device
from gpu_worker.pinned import PinnedRun
from gpu_worker.processors import processors
from gpu_worker.runs import RunChooser
from gpu_worker.service import RunService
from gpu_worker.supervisor import Supervisor
from gpu_worker.tokens import TokenCache
from hiddenfeed.errors import ConfigError, TransientError
from hiddenfeed.local_file import local_error
from hiddenfeed.options import StoreOptions
from hiddenfeed.store import Store, open_store

ROLE = "gpu_worker"

#: All settings this role has.
GROUPS = (
    RedisSettings,
    StoreSettings,
    StoreOptions,
    SpoolSettings,
    ExtractSettings,
    QueueSettings,
    LogSettings,
)
#: Inside the spool's folder; starts with a dot, so the spool takes it for no run.
_CACHE = ".tokens"
#: Attention implementation -> the package that it is in.
_ATTENTION_PACKAGES = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}


@dataclass(frozen=True)
class Place:
    """What a worker works with, all proven to be usable."""

    device: torch.device
    store: Store
    client: redis.Redis
    pinned: PinnedRun | None
    live: LiveSettings
    spool: Spool
    cache: Path


def serve(settings: Resolved) -> int:
    """Check everything as `ready` does, then serve until told to stop; returns the exit code."""
    place = open_place(settings)
    extract, client, spool, live = settings.group(ExtractSettings), place.client, place.spool, place.live
    live.start()
    spool.sweep()
    runs = RunService(place.store, TokenCache(place.cache), extract, place.device)
    lost = threading.Event()

    def device_lost() -> None:
        lost.set()
        worker.stop()

    extractor = Extractor(runs, spool, device_lost=device_lost)
    admission = Admission(client, spool, runs, lambda: live.group(ExtractSettings))
    pinned = place.pinned
    chooser = RunChooser(client, runs, pinned=extract.run)
    worker = Worker(
        redis=client,
        role=ROLE,
        queues=chooser.choose_queue,
        why_idle=chooser.why_idle,
        handlers={EXTRACT_FUNCTION: extractor.extract_batch},
        settings=settings.group(QueueSettings),
        slots=lambda: extract.batches_in_flight,
        may_take=lambda: (pinned.why_not() if pinned else None) or admission.why_not(),
        job_timeout_seconds=extract.batch_timeout_seconds,
    )
    get_logger(ROLE).info("serving", device=str(place.device), store=place.store.url, spool=str(spool.root))
    exit_code = worker.run()
    live.stop()
    # A new process gets the device back, if anything does.
    leave(TransientError.exit_code if lost.is_set() else exit_code)


def supervise(settings: Resolved, given: Asked) -> int:
    """One process per device until all have ended; returns the exit code. Raises ConfigError for a wrong list."""
    setup_logging(settings.group(LogSettings), "supervisor")
    workers = plan_fleet(
        given,
        cuda_devices=torch.cuda.device_count,
        processors=processors(),
        threads=settings.group(ExtractSettings).threads,
    )
    return Supervisor(workers).run()


def command() -> Command:
    """`python -m gpu_worker ready`"""
    return Command(
        "python -m gpu_worker ready",
        "Check device, store, Redis, spool and cache as a worker does at its start, and stop.",
        GROUPS,
        lambda settings, parsed: ready(settings),
    )


def ready(settings: Resolved) -> int:
    """Check everything that a worker checks at its start, say so, and return the exit code."""
    place = open_place(settings)
    place.client.close()
    print(f"ready: {place.device}, {place.store.url}, spool {place.spool.root}, cache {place.cache}")
    return 0


def open_place(settings: Resolved) -> Place:
    """Check settings, device, store, Redis, spool and cache, in this order.

    Raises ConfigError or TransientError, one sentence each, if one of them cannot be used.
    """
    setup_logging(settings.group(LogSettings), ROLE)
    extract = settings.group(ExtractSettings)
    check_lease(settings.group(QueueSettings))
    redis_client = make_client(settings.group(RedisSettings))
    pinned = PinnedRun(redis_client, extract.run) if extract.run is not None else None
    device = use_device(extract)
    check_attention(extract.attention)
    check_model_path(extract.model_path)
    store = open_store(settings.group(StoreSettings).store, settings.group(StoreOptions))
    store.check()
    connect(settings.group(RedisSettings)).close()
    live = LiveSettings(redis_client, settings)
    spool = Spool(settings.group(SpoolSettings), lambda: live.group(SpoolSettings))
    spool.check()
    cache = Path(extract.cache_dir).expanduser() if extract.cache_dir else spool.root / _CACHE
    _check_cache(cache)
    return Place(device, store, redis_client, pinned, live, spool, cache)


def use_device(settings: ExtractSettings) -> torch.device:
    """The device of the settings, with the CPU's threads set; raises ConfigError if it is not there."""
    torch.set_num_threads(settings.threads or processors())
    device = resolve_device(settings.device)
    if device.type == "cuda":
        # What asks for no device in particular must not open a context on another one.
        torch.cuda.set_device(device)
    else:
        keep_freed_memory()
    return device


def check_attention(name: str) -> None:
    """Raise ConfigError for an attention implementation that no installed package has."""
    package = _ATTENTION_PACKAGES.get(name)
    # transformers falls back on `kernels`, which fetches them.
    if package is not None and not any(map(importlib.util.find_spec, (package, "kernels"))):
        raise ConfigError(f"--attention {name} needs the package {package}, which is not installed")


def check_model_path(path: str | None) -> None:
    """Raise ConfigError for a `--model-path` that is no folder: what a hub would have under that name is not meant."""
    if path is not None and not Path(path).is_dir():
        raise ConfigError(
            f"--model-path {path} is not a folder{' but a file' if Path(path).is_file() else ''}"
        )


def _check_cache(folder: Path) -> None:
    """Make the folder of token files, and prove that it can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"probe")
    except OSError as error:
        raise local_error(error, f"--cache-dir {folder} cannot be written") from error
