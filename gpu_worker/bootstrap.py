"""Wiring of the GPU worker: from settings to a worker that serves runs with one device."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

from common.logs import get_logger, setup_logging
from common.queues import EXTRACT_FUNCTION
from common.redis_client import connect
from common.settings.catalogue import (
    ExtractSettings,
    LogSettings,
    QueueSettings,
    RedisSettings,
    SpoolSettings,
    StoreSettings,
)
from common.settings.live import LiveSettings
from common.settings.resolve import Resolved
from common.spool import Spool
from common.worker import Worker, leave
from gpu_worker.admission import Admission
from gpu_worker.extract import Extractor
from gpu_worker.fleet import Asked, plan_fleet
from gpu_worker.model import resolve_device
from gpu_worker.processors import processors
from gpu_worker.runs import RunChooser
from gpu_worker.service import RunService
from gpu_worker.supervisor import Supervisor
from gpu_worker.tokens import TokenCache
from hiddenfeed.errors import TransientError
from hiddenfeed.options import StoreOptions
from hiddenfeed.store import open_store

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


def serve(settings: Resolved) -> int:
    """Check device, store, spool and Redis, then serve until told to stop; returns the exit code.

    Raises ConfigError or TransientError, one sentence each, if one of them cannot be used.
    """
    setup_logging(settings.group(LogSettings), ROLE)
    extract = settings.group(ExtractSettings)
    device = use_device(extract)
    store = open_store(settings.group(StoreSettings).store, settings.group(StoreOptions))
    store.check()
    client = connect(settings.group(RedisSettings))
    live = LiveSettings(client, settings).start()
    spool = Spool(settings.group(SpoolSettings), lambda: live.group(SpoolSettings))
    spool.check()
    spool.sweep()
    cache = TokenCache(Path(extract.cache_dir).expanduser() if extract.cache_dir else spool.root / _CACHE)
    runs = RunService(store, cache, extract, device)
    lost = threading.Event()

    def device_lost() -> None:
        lost.set()
        worker.stop()

    extractor = Extractor(runs, spool, device_lost=device_lost)
    worker = Worker(
        redis=client,
        role=ROLE,
        queues=RunChooser(client, runs, pinned=extract.run).choose_queue,
        handlers={EXTRACT_FUNCTION: extractor.extract_batch},
        settings=settings.group(QueueSettings),
        slots=lambda: extract.batches_in_flight,
        may_take=Admission(client, spool, runs, lambda: live.group(ExtractSettings)).why_not,
        job_timeout_seconds=extract.batch_timeout_seconds,
    )
    get_logger(ROLE).info("serving", device=str(device), store=store.url, spool=str(spool.root))
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


def use_device(settings: ExtractSettings) -> torch.device:
    """The device of the settings, with the CPU's threads set; raises ConfigError if it is not there."""
    torch.set_num_threads(settings.threads or processors())
    device = resolve_device(settings.device)
    if device.type == "cuda":
        # What asks for no device in particular must not open a context on another one.
        torch.cuda.set_device(device)
    return device
