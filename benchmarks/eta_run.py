"""A real run on this machine for the benchmark of the time left: a GPU worker and an uploader as processes, real Redis."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis
from transformers import AutoConfig

from benchmarks.eta_fleet import Look
from benchmarks.planned_run import RunSpec, mixed_lengths, put_run
from benchmarks.random_model import random_qwen3
from common.messages import ExtractBatch
from common.queues import enqueue, extract_request
from common.run_state import RunRecord, read_progress, register_run
from common.settings.catalogue import QueueSettings
from common.weights import weights_identity
from common.worker.presence import list_workers
from hiddenfeed.run import RunDocument
from hiddenfeed.store.directory import DirectoryStore
from hiddenfeed.taps import parse_taps
from standalone.servers import start_redis

#: More than a hundred batches of more than a second: a twentieth of the run is well beyond its start.
_SAMPLES, _MEAN_TOKENS, _LONGEST, _BATCH_TOKENS, _BLOCKS = 5200, 160, 1024, 6144, 16
_LOOK_SECONDS, _MOST_SECONDS = 0.1, 1800.0
_END_SECONDS = 30.0


def real_run() -> tuple[RunRecord, list[Look]]:
    """The run as it was registered, and a look after each arrival; raises TimeoutError for one that does not end."""
    with tempfile.TemporaryDirectory(prefix="hfbench-") as name:
        folder = Path(name)
        server = start_redis(folder / "redis")
        try:
            with redis.Redis.from_url(server.url) as client:
                return _watched(folder, client, server.url)
        finally:
            server.stop()


def _watched(folder: Path, client: redis.Redis, url: str) -> tuple[RunRecord, list[Look]]:
    store = DirectoryStore(folder / "store")
    store.check(create=True)
    document, manifests = _put(store, random_qwen3(folder / "model", blocks=_BLOCKS))
    record = _record(document, manifests)
    register_run(client, record)
    enqueue(client, [extract_request(manifest) for manifest in manifests], QueueSettings())
    settings = {
        "HIDDENFEED_REDIS_URL": url,
        "HIDDENFEED_STORE": store.url,
        "HIDDENFEED_SPOOL": "bench",
        "HIDDENFEED_SPOOL_DIR": str(folder / "spool"),
        "HIDDENFEED_SPOOL_FREE_BYTES": "0",
    }
    with ExitStack() as stack:
        for role in ("gpu_worker", "uploader"):
            stack.enter_context(_process(role, settings, folder / f"{role}.log"))
        return record, _looks(client, record)


@contextmanager
def _process(role: str, settings: dict[str, str], log: Path) -> Iterator[None]:
    """A role at work, asked to end at the end."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-m", role], env=os.environ | settings, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


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
        taps=parse_taps("eagle3", config.num_hidden_layers).taps,
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
