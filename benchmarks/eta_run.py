"""Real runs on this machine for the benchmark of the time left: GPU workers and an uploader as processes, real Redis."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
from transformers import AutoConfig

from benchmarks.eta_fleet import Look
from benchmarks.planned_run import RunSpec, mixed_lengths, put_run
from benchmarks.random_model import random_qwen3
from common.messages import ExtractBatch
from common.processors import allowed_processors
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
#: As on a single machine: a process that died is noticed before a fifth of the run is done.
_LEASE_SECONDS, _HEARTBEAT_SECONDS = 15, 3


@dataclass(frozen=True)
class Crew:
    """Who works on the run, and when one of them is killed and another one comes, as shares of the tokens stored."""

    workers: int = 1
    dies: float = 2.0
    joins: float = 2.0


def real_run(crew: Crew) -> tuple[RunRecord, list[Look]]:
    """The run as it was registered, and a look after each arrival; raises TimeoutError for one that does not end."""
    with tempfile.TemporaryDirectory(prefix="hfbench-") as name:
        folder = Path(name)
        server = start_redis(folder / "redis")
        try:
            with redis.Redis.from_url(server.url) as client:
                return _watched(folder, client, server.url, crew)
        finally:
            server.stop()


def _watched(folder: Path, client: redis.Redis, url: str, crew: Crew) -> tuple[RunRecord, list[Look]]:
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
        "HIDDENFEED_LEASE_SECONDS": str(_LEASE_SECONDS),
        "HIDDENFEED_HEARTBEAT_SECONDS": str(_HEARTBEAT_SECONDS),
        # All of them share the processors.
        "HIDDENFEED_THREADS": str(max(1, allowed_processors() // crew.workers)),
    }
    with ExitStack() as stack:

        def start(role: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(_process(role, settings, folder / f"{role}.log"))

        start("uploader")
        return record, _looks(client, record, crew, [start("gpu_worker") for _ in range(crew.workers)], start)


@contextmanager
def _process(role: str, settings: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A role at work, asked to end at the end."""
    with (
        log.open("ab") as output,
        subprocess.Popen(
            [sys.executable, "-m", role], env=os.environ | settings, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _looks(
    client: redis.Redis,
    record: RunRecord,
    crew: Crew,
    workers: list[subprocess.Popen[bytes]],
    start: Callable[[str], subprocess.Popen[bytes]],
) -> list[Look]:
    looks: list[Look] = []
    pause, deadline = threading.Event(), time.monotonic() + _MOST_SECONDS
    while not looks or looks[-1].progress.batches < record.batches:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the run did not end within {_MOST_SECONDS:.0f} s")
        pause.wait(_LOOK_SECONDS)
        progress = read_progress(client, record.run_id)
        done = progress.tokens / record.tokens
        if done >= crew.dies and workers[0].poll() is None:
            workers[0].kill()
        if done >= crew.joins and len(workers) == crew.workers:
            workers.append(start("gpu_worker"))
        if progress.batches > (looks[-1].progress.batches if looks else 0):
            looks.append(Look(time.time(), progress, _living(client)))
    return looks


def _living(client: redis.Redis) -> tuple[str, ...]:
    """GPU workers that the monitor would count."""
    latest = time.time() - _LEASE_SECONDS
    return tuple(
        worker.name
        for worker in list_workers(client)
        if worker.role == "gpu_worker" and worker.last_heartbeat >= latest
    )


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
