"""How much of the device's speed does the worker deliver?

`efficiency` is tokens per second of the running worker (queue, reading tokens, forward passes, taps,
checks, batch files, announcements) divided by tokens per second of bare forward passes of the same
truncated model over the same micro-batches. Every round is bare, worker, bare, in one process: the worker
is held against the mean of the two, so that a machine that drifts disturbs both alike, and the two against
each other, which is what the machine's noise makes of a ratio that should be 1. Medians of the rounds are reported.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import redis
import torch

from benchmarks.extraction_account import Account, CountedWorker
from benchmarks.extraction_results import Round, describe, shares, speeds
from benchmarks.extraction_run import FULL, QUICK, Scale, put_model_run, record_of, token_bytes
from benchmarks.other_ways import OtherWays
from benchmarks.progress import doing
from benchmarks.random_model import random_qwen3
from common.messages import BatchReport
from common.queues import (
    EXTRACT_FUNCTION,
    drop_queue,
    enqueue,
    extract_queue_name,
    extract_request,
    queue_counts,
    upload_queue_name,
)
from common.run_state import register_run
from common.settings.catalogue import ExtractSettings, QueueSettings, SpoolSettings
from common.spool import Spool
from common.worker import JobContext, Worker
from gpu_worker.demo_model import default_folder, demo_model
from gpu_worker.extract import Extractor
from gpu_worker.host_heap import keep_freed_memory
from gpu_worker.micro_batch import MicroBatch, pack
from gpu_worker.model import resolve_device
from gpu_worker.runs import RunChooser
from gpu_worker.service import RunService
from gpu_worker.tokens import TokenCache
from hiddenfeed.store.directory import DirectoryStore
from standalone.servers import start_redis

__all__ = ["describe", "measure_models", "run"]

#: Longest wait for one round of the worker.
_ROUND_SECONDS = 600.0
ResultT = TypeVar("ResultT")

#: Other ways get every so many-th sample: they are slow.
_EVERY = 6


def run(*, quick: bool, device: str = "auto") -> dict[str, Any]:
    """Measure every model; `efficiency` is the smallest of theirs."""
    scale = QUICK if quick else FULL
    models = {} if quick else {"smollm2-135m": demo_model(default_folder())}
    with tempfile.TemporaryDirectory(prefix="hfbench-") as name:
        folder = Path(name)
        models["qwen3-8x512"] = random_qwen3(folder / "qwen3")
        found = measure_models(folder, models, scale, device)
    return {"efficiency": min(each["efficiency"] for each in found.values()), "models": found}


def measure_models(
    folder: Path, models: dict[str, Path], scale: Scale, device: str
) -> dict[str, dict[str, Any]]:
    """Measure checkpoints, one after the other, with a Redis of their own; everything is left in `folder`."""
    if resolve_device(device).type == "cpu":
        # As in a worker's process; bare passes profit alike.
        keep_freed_memory()
    server = start_redis(folder / "redis")
    try:
        with redis.Redis.from_url(server.url) as client:
            found = {}
            for model, path in models.items():
                doing(f"{model}: a first round, which is not counted")
                found[model] = Measurement(folder / model, client, path, scale, device).measure()
            return found
    finally:
        server.stop()


def as_in_a_job(call: Callable[[], ResultT]) -> ResultT:
    """Call in a new thread, as every job of the worker has one, while this one waits.

    OpenMP has threads of its own for each thread that computes. While all of them are no more than there are processors
    they wait for each other spinning, which beside other work of the machine makes a pass take twice as long; where there
    are more, they sleep. The main thread has loaded and tested the model, so passes of a job are of the second kind.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


class Measurement:
    """One model: a run of it, a worker that serves it, and the same micro-batches without the worker."""

    def __init__(self, folder: Path, client: redis.Redis, model: Path, scale: Scale, device: str) -> None:
        self._client, self._scale, self._folder = client, scale, folder
        store = DirectoryStore(folder / "store")
        store.check(create=True)
        self._document, manifests = put_model_run(store, model, scale)
        self._manifests = manifests[: scale.batches]
        settings = SpoolSettings(spool="bench", spool_dir=str(folder / "spool"), spool_free_bytes=0)
        self._spool = Spool(settings)
        self._extract = ExtractSettings(device=device)
        self._service = RunService(store, TokenCache(folder / "cache"), self._extract, resolve_device(device))
        self._reports: list[BatchReport] = []
        self._extracted = threading.Semaphore(0)

    def measure(self) -> dict[str, Any]:
        """All rounds; a first one of each kind warms up and is dropped."""
        self._service.prepare(self._document.run_id)
        bare, others = self._bare_passes(), self._other_ways()
        register_run(self._client, record_of(self._document))
        with self._service.use(self._document.run_id) as served:
            account = Account(served.engine.loop)
        worker, thread = self._start_worker(account)
        try:
            self._worker_round()
            self._bare_round(bare)
            as_in_a_job(others.seconds)
            self._reports.clear()
            rounds, usual = [], []
            for number in range(self._scale.rounds):
                doing(f"round {number + 1} of {self._scale.rounds}")
                rounds.append(self._round(bare, account))
                usual.append(as_in_a_job(others.seconds))
        finally:
            worker.stop()
            thread.join()
            drop_queue(self._client, upload_queue_name(self._spool.name))
            self._service.close()
        return self._summary(bare, rounds) | self._against(
            [each.worker for each in rounds], usual, others.tokens
        )

    def _other_ways(self) -> OtherWays:
        """The ways of others over a few samples of every batch, in the order of the data."""
        samples = {}
        with self._service.use(self._document.run_id) as served:
            for manifest in self._manifests:
                batch = served.tokens.read(manifest)
                for sample in range(manifest.batch_id % _EVERY, batch.samples, _EVERY):
                    ids = batch.input_ids[batch.offsets[sample] : batch.offsets[sample + 1]]
                    samples[int(batch.source_rows[sample])] = ids
            source, taps = served.engine.key.source, served.document.identity.taps
        return OtherWays(source, taps, [samples[row] for row in sorted(samples)], self._folder / "others")

    def _against(
        self, worker: Sequence[float], others: Sequence[dict[str, float]], tokens: int
    ) -> dict[str, float]:
        """`vs_…`: tokens per second of the worker over those of another way, the median of the rounds."""
        rate = sum(manifest.tokens_total for manifest in self._manifests)
        return {
            f"vs_{name}": statistics.median(
                (rate / whole) / (tokens / seconds[name])
                for whole, seconds in zip(worker, others, strict=True)
            )
            for name in others[0]
        }

    def _round(self, bare: Sequence[MicroBatch], account: Account) -> Round:
        cpu = [time.process_time()]
        before, spent = self._bare_round(bare), account.spent()
        cpu.append(time.process_time())
        worker = self._worker_round()
        cpu.append(time.process_time())
        spent = account.spent() - spent
        after = self._bare_round(bare)
        cpu.append(time.process_time())
        bare_cpu = (cpu[1] - cpu[0] + cpu[3] - cpu[2]) / 2
        return Round(before, worker, after, bare_cpu, cpu[2] - cpu[1], spent)

    def _start_worker(self, account: Account) -> tuple[Worker, threading.Thread]:
        extractor = Extractor(self._service, self._spool)

        def handle(payload: Any, context: JobContext) -> BatchReport:
            report = extractor.extract_batch(payload, context)
            self._reports.append(report)
            self._extracted.release()
            return report

        worker = CountedWorker(
            account,
            redis=self._client,
            role="gpu_worker",
            queues=RunChooser(self._client, self._service).choose_queue,
            handlers={EXTRACT_FUNCTION: handle},
            settings=QueueSettings(),
            slots=lambda: self._extract.batches_in_flight,
        )
        thread = threading.Thread(target=worker.run, name="worker")
        thread.start()
        return worker, thread

    def _worker_round(self) -> float:
        """Seconds from putting all batches on the queue to the announcement of the last file."""
        uploads = upload_queue_name(self._spool.name)
        drop_queue(self._client, uploads)
        drop_queue(self._client, extract_queue_name(self._document.run_id))
        for file in self._spool.files():
            self._spool.remove(file.path)
        begin = time.perf_counter()
        enqueue(self._client, [extract_request(manifest) for manifest in self._manifests], QueueSettings())
        pause, deadline = threading.Event(), begin + _ROUND_SECONDS
        # Looking takes the processor away from what is measured: not before there is something to see.
        for _ in self._manifests:
            self._extracted.acquire(timeout=_ROUND_SECONDS)
        while queue_counts(self._client, uploads).queued < len(self._manifests):
            if time.perf_counter() > deadline:
                raise TimeoutError(f"the worker did not finish {len(self._manifests)} batches")
            pause.wait(0.005)
        return time.perf_counter() - begin

    def _bare_passes(self) -> list[MicroBatch]:
        """All micro-batches of the run, in order, ready for the device."""
        passes = []
        with self._service.use(self._document.run_id) as served:
            for manifest in self._manifests:
                batch = served.tokens.read(manifest)
                passes += [pack(batch, first, last) for first, last in served.engine.loop.passes(batch)]
        return passes

    def _bare_round(self, passes: Sequence[MicroBatch]) -> float:
        """Seconds of the forward passes alone, in the model as the worker uses it."""
        return as_in_a_job(lambda: self._bare_seconds(passes))

    def _bare_seconds(self, passes: Sequence[MicroBatch]) -> float:
        with self._service.use(self._document.run_id) as served, torch.inference_mode():
            model = served.engine.model
            ids = [micro_batch.ids.to(model.device) for micro_batch in passes]
            begin = time.perf_counter()
            for each in ids:
                model.parts.decoder(input_ids=each, use_cache=False)
            if model.device.type == "cuda":
                torch.cuda.synchronize(model.device)
            return time.perf_counter() - begin

    def _summary(self, passes: Sequence[MicroBatch], rounds: Sequence[Round]) -> dict[str, Any]:
        identity = self._document.identity
        tokens = sum(manifest.tokens_total for manifest in self._manifests)
        padded = sum(micro_batch.ids.numel() for micro_batch in passes)
        return {
            **speeds(rounds, tokens, token_bytes(self._document)),
            **shares(rounds, self._reports),
            "padding_waste": 1 - tokens / padded,
            "rounds": len(rounds),
            "batches": len(self._manifests),
            "micro_batches": len(passes),
            "samples": sum(manifest.samples for manifest in self._manifests),
            "tokens": tokens,
            "taps": list(identity.taps),
            "dtype": identity.dtype,
            "device": self._reports[0].device,
            "threads": torch.get_num_threads(),
        }
