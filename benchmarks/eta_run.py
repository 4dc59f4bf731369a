"""A real run on this machine for the benchmark of the time left: one GPU worker and one uploader in threads, real Redis."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import redis
from transformers import AutoConfig

from benchmarks.eta_fleet import Look
from benchmarks.planned_run import RunSpec, mixed_lengths, put_run
from benchmarks.random_model import random_qwen3
from common.messages import ExtractBatch
from common.queues import EXTRACT_FUNCTION, UPLOAD_FUNCTION, enqueue, extract_request, upload_queue_name
from common.run_state import RunRecord, read_progress, register_run
from common.settings.catalogue import ExtractSettings, QueueSettings, SpoolSettings
from common.spool import Spool
from common.weights import weights_identity
from common.worker import Worker
from common.worker.presence import list_workers
from gpu_worker.extract import Extractor
from gpu_worker.model import resolve_device
from gpu_worker.runs import RunChooser
from gpu_worker.service import RunService
from gpu_worker.tokens import TokenCache
from hiddenfeed.run import RunDocument
from hiddenfeed.store.directory import DirectoryStore
from hiddenfeed.taps import parse_taps
from standalone.servers import start_redis
from uploader.upload import FileUploader

#: A hundred and more batches, so that a twentieth of them is a few.
_SAMPLES, _MEAN_TOKENS, _LONGEST, _BATCH_TOKENS = 4000, 160, 1024, 4096
_LOOK_SECONDS, _MOST_SECONDS = 0.2, 1200.0


def real_run() -> tuple[RunRecord, list[Look]]:
    """The run as it was registered, and a look after each arrival."""
    with tempfile.TemporaryDirectory(prefix="hfbench-") as name:
        folder = Path(name)
        server = start_redis(folder / "redis")
        try:
            with redis.Redis.from_url(server.url) as client:
                return _watched(folder, client)
        finally:
            server.stop()


def _watched(folder: Path, client: redis.Redis) -> tuple[RunRecord, list[Look]]:
    store = DirectoryStore(folder / "store")
    store.check(create=True)
    document, manifests = _put(store, random_qwen3(folder / "model"))
    record = _record(document, manifests)
    register_run(client, record)
    enqueue(client, [extract_request(manifest) for manifest in manifests], QueueSettings())
    spool = Spool(SpoolSettings(spool="bench", spool_dir=str(folder / "spool"), spool_free_bytes=0))
    extract = ExtractSettings(device="auto")
    service = RunService(store, TokenCache(folder / "cache"), extract, resolve_device(extract.device))
    workers = [
        _worker(client, "gpu_worker", RunChooser(client, service).choose_queue, EXTRACT_FUNCTION,
                Extractor(service, spool).extract_batch),
        _worker(client, "uploader", lambda current: upload_queue_name(spool.name), UPLOAD_FUNCTION,
                FileUploader(store, spool).upload_file),
    ]  # fmt: skip
    threads = [threading.Thread(target=worker.run, name=worker.name) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        return record, _looks(client, record)
    finally:
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()
        service.close()


def _worker(client: redis.Redis, role: str, queues: Any, function: str, handler: Any) -> Worker:
    return Worker(
        redis=client, role=role, queues=queues, handlers={function: handler}, settings=QueueSettings(),
        slots=lambda: 3,
    )  # fmt: skip


def _looks(client: redis.Redis, record: RunRecord) -> list[Look]:
    looks: list[Look] = []
    pause, deadline = threading.Event(), time.monotonic() + _MOST_SECONDS
    while not looks or looks[-1].progress.batches < record.batches:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the run did not end within {_MOST_SECONDS:.0f} s")
        pause.wait(_LOOK_SECONDS)
        progress = read_progress(client, record.run_id)
        if progress.batches > (looks[-1].progress.batches if looks else 0):
            living = tuple(worker.name for worker in list_workers(client) if worker.role == "gpu_worker")
            looks.append(Look(time.time(), progress, living))
    return looks


def _put(store: DirectoryStore, model: Path) -> tuple[RunDocument, list[ExtractBatch]]:
    config = AutoConfig.from_pretrained(model)
    spec = RunSpec(
        model=str(model),
        model_identity=weights_identity(model),
        hidden_size=config.hidden_size,
        num_blocks=config.num_hidden_layers,
        vocabulary=config.vocab_size,
        taps=parse_taps("dflash", config.num_hidden_layers).taps,
        micro_batch_tokens=1024,
        batch_tokens=_BATCH_TOKENS,
    )
    return put_run(store, spec, mixed_lengths(_SAMPLES, _MEAN_TOKENS, _LONGEST))


def _record(document: RunDocument, manifests: list[ExtractBatch]) -> RunRecord:
    plan = document.plan
    return RunRecord(
        run_id=document.run_id,
        model=document.model,
        samples=plan.samples,
        tokens=plan.tokens,
        batches=plan.batches,
        squares=sum(manifest.squares or 0 for manifest in manifests),
        submitted_at=time.time(),
    )
