"""How much of the device's speed does the worker deliver?

`efficiency` is tokens per second of the running worker (queue, reading tokens, forward passes, taps,
checks, batch files, announcements) divided by tokens per second of bare forward passes of the same
truncated model over the same micro-batches. Both alternate in one process, round by round, so that
a noisy machine disturbs both alike; the medians of the rounds are reported.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import torch

from benchmarks.planned_run import RunSpec, mixed_lengths, put_run
from common.hub import quiet_libraries
from common.messages import BatchReport, ExtractBatch
from common.queues import (
    EXTRACT_FUNCTION,
    drop_queue,
    enqueue,
    extract_queue_name,
    extract_request,
    queue_counts,
    upload_queue_name,
)
from common.run_state import RunRecord, register_run
from common.settings.catalogue import ExtractSettings, QueueSettings, SpoolSettings
from common.spool import Spool
from common.weights import weights_identity
from common.worker import JobContext, Worker
from gpu_worker.demo_model import default_folder, demo_model
from gpu_worker.extract import Extractor
from gpu_worker.micro_batch import MicroBatch, pack
from gpu_worker.model import resolve_device
from gpu_worker.runs import RunChooser
from gpu_worker.service import RunService
from gpu_worker.tokens import TokenCache
from hiddenfeed.batch_file import bytes_per_token
from hiddenfeed.run import RunDocument
from hiddenfeed.store.directory import DirectoryStore
from hiddenfeed.taps import parse_taps
from standalone.servers import start_redis

#: Longest wait for one round of the worker.
_ROUND_SECONDS = 600.0


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    rounds: int
    #: Batches of the run that one round takes; a plan has 16 or more, which would make small ones.
    batches: int
    samples: int
    mean_tokens: int
    longest: int
    micro_batch_tokens: int
    batch_tokens: int
    #: As in the settings.
    taps: str = "dflash"


QUICK = Scale(
    rounds=5,
    batches=4,
    samples=640,
    mean_tokens=150,
    longest=1024,
    micro_batch_tokens=1024,
    batch_tokens=8192,
)
FULL = Scale(
    rounds=9,
    batches=6,
    samples=960,
    mean_tokens=200,
    longest=2048,
    micro_batch_tokens=2048,
    batch_tokens=16384,
)


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
    server = start_redis(folder / "redis")
    try:
        with redis.Redis.from_url(server.url) as client:
            return {
                model: Measurement(folder / model, client, path, scale, device).measure()
                for model, path in models.items()
            }
    finally:
        server.stop()


def describe(results: dict[str, Any]) -> list[str]:
    """The results for people."""
    lines = []
    for model, found in results["models"].items():
        span = f"{found['efficiency_min']:.3f} to {found['efficiency_max']:.3f}"
        fastest = f"fastest against fastest {found['efficiency_of_fastest']:.3f}"
        lines += [
            f"{model} on {found['device']} ({found['dtype']}, {found['threads']} threads):",
            f"  efficiency     {found['efficiency']:.3f} (rounds {span}; {fastest})",
            f"  worker         {found['worker_tokens_per_second']:,.0f} tokens/s",
            f"  bare forward   {found['bare_tokens_per_second']:,.0f} tokens/s",
            f"  padding        {found['padding_waste']:.2%} of what the device saw",
            f"  of the worker's time: forward {found['forward_share']:.1%}, "
            f"between forward passes {found['stall_share']:.2%}",
        ]
    return lines


class Measurement:
    """One model: a run of it, a worker that serves it, and the same micro-batches without the worker."""

    def __init__(self, folder: Path, client: redis.Redis, model: Path, scale: Scale, device: str) -> None:
        self._client, self._scale = client, scale
        store = DirectoryStore(folder / "store")
        store.check(create=True)
        self._document, manifests = _put(store, model, scale)
        self._manifests = manifests[: scale.batches]
        settings = SpoolSettings(spool="bench", spool_dir=str(folder / "spool"), spool_free_bytes=0)
        self._spool = Spool(settings)
        self._extract = ExtractSettings(device=device)
        self._service = RunService(store, TokenCache(folder / "cache"), self._extract, resolve_device(device))
        self._reports: list[BatchReport] = []

    def measure(self) -> dict[str, Any]:
        """All rounds; a first one of each kind warms up and is dropped."""
        self._service.prepare(self._document.run_id)
        bare = self._bare_passes()
        register_run(self._client, _record(self._document))
        worker, thread = self._start_worker()
        try:
            self._worker_round()
            self._bare_round(bare)
            self._reports.clear()
            rounds = [
                self._round(bare, worker_first=bool(number % 2)) for number in range(self._scale.rounds)
            ]
        finally:
            worker.stop()
            thread.join()
            drop_queue(self._client, upload_queue_name(self._spool.name))
            self._service.close()
        return self._summary(bare, [worker for worker, _ in rounds], [forward for _, forward in rounds])

    def _round(self, bare: Sequence[MicroBatch], *, worker_first: bool) -> tuple[float, float]:
        """(worker, bare) seconds; the order alternates, so that none profits from what the other warmed up."""
        if worker_first:
            whole = self._worker_round()
            return whole, self._bare_round(bare)
        forward = self._bare_round(bare)
        return self._worker_round(), forward

    def _start_worker(self) -> tuple[Worker, threading.Thread]:
        extractor = Extractor(self._service, self._spool)

        def handle(payload: Any, context: JobContext) -> BatchReport:
            report = extractor.extract_batch(payload, context)
            self._reports.append(report)
            return report

        worker = Worker(
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
        while queue_counts(self._client, uploads).queued < len(self._manifests):
            if time.perf_counter() > deadline:
                raise TimeoutError(f"the worker did not finish {len(self._manifests)} batches")
            # Rarely: looking takes the processor away from what is measured.
            pause.wait(0.05)
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
        with self._service.use(self._document.run_id) as served, torch.inference_mode():
            model = served.engine.model
            ids = [micro_batch.ids.to(model.device) for micro_batch in passes]
            begin = time.perf_counter()
            for each in ids:
                model.parts.decoder(input_ids=each, use_cache=False)
            if model.device.type == "cuda":
                torch.cuda.synchronize(model.device)
            return time.perf_counter() - begin

    def _summary(
        self, passes: Sequence[MicroBatch], worker: Sequence[float], bare: Sequence[float]
    ) -> dict[str, Any]:
        identity = self._document.identity
        tokens = sum(manifest.tokens_total for manifest in self._manifests)
        padded = sum(micro_batch.ids.numel() for micro_batch in passes)
        ratios = [forward / whole for whole, forward in zip(worker, bare, strict=True)]
        total = sum(worker)
        return {
            "efficiency": statistics.median(ratios),
            "efficiency_min": min(ratios),
            "efficiency_max": max(ratios),
            "efficiency_of_fastest": min(bare) / min(worker),
            "worker_tokens_per_second": tokens / statistics.median(worker),
            "bare_tokens_per_second": tokens / statistics.median(bare),
            "padding_waste": 1 - tokens / padded,
            "states_gb_per_second": tokens * _token_bytes(self._document) / statistics.median(worker) / 1e9,
            "forward_share": sum(report.forward_seconds for report in self._reports) / total,
            "stall_share": sum(report.stall_seconds for report in self._reports) / total,
            "rounds": len(ratios),
            "batches": len(self._manifests),
            "micro_batches": len(passes),
            "samples": sum(manifest.samples for manifest in self._manifests),
            "tokens": tokens,
            "taps": list(identity.taps),
            "dtype": identity.dtype,
            "device": self._reports[0].device,
            "threads": torch.get_num_threads(),
        }


def _token_bytes(document: RunDocument) -> int:
    identity = document.identity
    return bytes_per_token(
        taps=len(identity.taps), hidden_size=document.hidden_size, dtype=identity.dtype, final=False
    )


def _put(store: DirectoryStore, model: Path, scale: Scale) -> tuple[RunDocument, list[ExtractBatch]]:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model)
    spec = RunSpec(
        model=str(model),
        model_identity=weights_identity(model),
        hidden_size=config.hidden_size,
        num_blocks=config.num_hidden_layers,
        vocabulary=config.vocab_size,
        taps=parse_taps(scale.taps, config.num_hidden_layers).taps,
        micro_batch_tokens=scale.micro_batch_tokens,
        batch_tokens=scale.batch_tokens,
    )
    return put_run(store, spec, mixed_lengths(scale.samples, scale.mean_tokens, scale.longest))


def _record(document: RunDocument) -> RunRecord:
    plan = document.plan
    return RunRecord(
        run_id=document.run_id,
        model=document.model,
        samples=plan.samples,
        tokens=plan.tokens,
        batches=plan.batches,
        submitted_at=0.0,
    )


def random_qwen3(folder: Path, *, blocks: int = 8, hidden_size: int = 512, device: str = "cpu") -> Path:
    """A Qwen3 with random bfloat16 weights, made on `device`."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=32000,
        hidden_size=hidden_size,
        num_hidden_layers=blocks,
        num_attention_heads=hidden_size // 64,
        num_key_value_heads=hidden_size // 128,
        head_dim=64,
        intermediate_size=3 * hidden_size,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    quiet_libraries()
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = Qwen3ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder
