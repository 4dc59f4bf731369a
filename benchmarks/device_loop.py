"""Is the device ever idle for the worker's sake? The whole worker around a device that only takes time.

`busy_fraction` is the share of the time from the first forward pass to the last in which the device
computed, over many files: queue, reading tokens, packing, checks, the canary, batch files, checksums
and announcements are the worker's own. The same is measured with a slow disk, with a process beside
that reads every file as an uploader does, and with parts of the worker taken away.
"""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
import torch

from benchmarks.emulated_device import EmulatedDevice, EmulatedLoop, EmulatedModel
from benchmarks.planned_run import RunSpec, mixed_lengths, put_run
from benchmarks.progress import doing
from benchmarks.scratch import scratch
from benchmarks.surroundings import AtOnce, Reader, SlowSpool, Used
from common.messages import BatchReport, ExtractBatch, UploadFile
from common.queues import EXTRACT_FUNCTION, enqueue, extract_queue_name, extract_request
from common.settings.catalogue import ExtractSettings, QueueSettings, SpoolSettings
from common.spool import Spool
from common.worker import JobContext, Worker
from gpu_worker.engine import Engine, engine_key
from gpu_worker.extract import Extractor
from gpu_worker.service import RunService
from gpu_worker.taps import Selection
from gpu_worker.tokens import TokenCache, TokenFile
from hiddenfeed.errors import DataError
from hiddenfeed.run import RunDocument
from hiddenfeed.store.directory import DirectoryStore
from standalone.servers import start_redis

#: A 27B model of 64 blocks on one H200: what a token is and how many there are in a second.
TAPS, BLOCKS, HIDDEN, TOKENS_PER_SECOND = (2, 17, 32, 47, 62), 64, 5120, 10_000
_VOCABULARY = 100_000
_DISK_BYTES_PER_SECOND = 0.6e9
#: Longest wait for one file.
_SECONDS = 60.0


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    files: int
    file_tokens: int
    micro_batch_tokens: int


#: Files of 400 MB, and of 100 MB.
FULL = Scale(files=32, file_tokens=7812, micro_batch_tokens=2048)
QUICK = Scale(files=16, file_tokens=1953, micro_batch_tokens=512)


@dataclass(frozen=True)
class Variant:
    """What is other than in the worker as it is."""

    disk_bytes_per_second: float | None = None
    uploader: bool = False
    writer_thread: bool = True
    batches_in_flight: int = field(default_factory=lambda: ExtractSettings().batches_in_flight)


VARIANTS = {
    "busy_fraction": Variant(),
    "busy_fraction_slow_disk": Variant(disk_bytes_per_second=_DISK_BYTES_PER_SECOND),
    "busy_fraction_with_uploader": Variant(uploader=True),
    "busy_fraction_one_batch_at_a_time": Variant(batches_in_flight=1),
    "busy_fraction_without_writer_thread": Variant(writer_thread=False, batches_in_flight=1),
}


def run(*, quick: bool) -> dict[str, Any]:
    """Measure every variant."""
    scale = QUICK if quick else FULL
    with scratch(8 * scale.file_tokens * len(TAPS) * HIDDEN * 2) as folder:
        store = DirectoryStore(folder / "store")
        store.check(create=True)
        document, manifests = _put(store, scale)
        server = start_redis(folder / "redis")
        try:
            with redis.Redis.from_url(server.url) as client:
                found = {}
                for variant, what in VARIANTS.items():
                    doing(variant)
                    measurement = _Measurement(folder / variant, client, store, document, what)
                    found[variant] = measurement.measure(manifests)
        finally:
            server.stop()
    results: dict[str, Any] = {variant: each.pop("busy_fraction") for variant, each in found.items()}
    return {**results, **found["busy_fraction"], "files": len(manifests), "variants": found}


def describe(results: dict[str, Any]) -> list[str]:
    """The results for people."""
    lines = [
        f"{results['files']} files of {results['file_bytes'] / 1e6:.0f} MB at {results['states_gb_per_second']:.2f} GB/s:"
    ]
    for variant in VARIANTS:
        found = results["variants"][variant]
        words = variant.removeprefix("busy_fraction").replace("_", " ").strip() or "the worker as it is"
        lines.append(
            f"  {words:26} device busy {results[variant]:7.2%}, longest gap {found['longest_gap_ms']:4.0f} ms, "
            f"{found['cpu_cores']:.2f} cores, {found['cpu_cores_in_kernel']:.2f} of them in the kernel"
        )
    lines.append(
        f"  host buffers {results['ring_bytes'] / 1e9:.2f} GB, the process {results['host_memory_bytes'] / 1e9:.2f} GB at most"
    )
    return lines


class _Measurement:
    """The run through one worker of a variant."""

    def __init__(
        self,
        folder: Path,
        client: redis.Redis,
        store: DirectoryStore,
        document: RunDocument,
        variant: Variant,
    ) -> None:
        """Everything that is made is in `folder`."""
        self._folder, self._client, self._document, self._variant = folder, client, document, variant
        self._device = EmulatedDevice(TOKENS_PER_SECOND)
        self._spool = _spool(folder, variant)
        self._service = _EmulatedService(store, TokenCache(folder / "cache"), self._device, variant)
        self._extractor = Extractor(self._service, self._spool)
        self._reader = Reader() if variant.uploader else None
        self._extracted = threading.Semaphore(0)
        #: Why batches were quarantined.
        self._reasons: list[str] = []

    def measure(self, manifests: list[ExtractBatch]) -> dict[str, Any]:
        """All batches; raises DataError if one of them cannot be extracted."""
        try:
            self._client.flushall()
            self._service.prepare(self._document.run_id)
            enqueue(self._client, [extract_request(manifest) for manifest in manifests], QueueSettings())
            wall, used = self._serve(len(manifests))
        finally:
            if self._reader is not None:
                self._reader.close()
        found = _figures(self._device, self._service.loop, manifests, wall)
        self._service.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        return {**found, **used}

    def _serve(self, batches: int) -> tuple[float, dict[str, Any]]:
        """Seconds until the worker has extracted all that is queued, and what the process took meanwhile."""
        worker = self._worker()
        thread = threading.Thread(target=worker.run, name="worker")
        used, begin = Used(), time.perf_counter()
        thread.start()
        try:
            for _ in range(batches):
                if not self._extracted.acquire(timeout=_SECONDS) or self._reasons:
                    raise DataError("; ".join(self._reasons) or "the worker did not finish its batches")
            return time.perf_counter() - begin, used.figures()
        finally:
            worker.stop()
            thread.join()

    def _worker(self) -> Worker:
        return Worker(
            redis=self._client,
            role="gpu_worker",
            queues=lambda _: extract_queue_name(self._document.run_id),
            handlers={EXTRACT_FUNCTION: self._extract},
            settings=QueueSettings(),
            slots=lambda: self._variant.batches_in_flight,
        )

    def _extract(self, payload: Any, context: JobContext) -> BatchReport:
        """The worker's handler; the file then goes as it would with an uploader, or at once."""
        report = self._extractor.extract_batch(payload, context)
        upload = context.follow_ups[0].payload
        assert isinstance(upload, UploadFile)
        self._reasons.extend(filter(None, [(report.guards or {}).get("reason")]))
        if self._reader is None:
            self._spool.remove(upload.path)
        else:
            self._reader.take(self._spool.resolve(upload.path))
        self._extracted.release()
        return report


def _figures(
    device: EmulatedDevice, loop: EmulatedLoop, manifests: list[ExtractBatch], wall: float
) -> dict[str, Any]:
    tokens = sum(manifest.tokens_total for manifest in manifests)
    token_bytes = len(TAPS) * HIDDEN * 2
    return {
        "busy_fraction": device.busy_fraction(),
        "longest_gap_ms": device.longest_gap() * 1000,
        "tokens_per_second": tokens / wall,
        "states_gb_per_second": tokens * token_bytes / wall / 1e9,
        "file_bytes": tokens * token_bytes / len(manifests),
        "ring_bytes": loop.ring_bytes,
    }


def _put(store: DirectoryStore, scale: Scale) -> tuple[RunDocument, list[ExtractBatch]]:
    mean, longest = 300, scale.micro_batch_tokens
    samples = scale.files * scale.file_tokens // mean
    spec = RunSpec(
        model="emulated",
        model_identity="emulated",
        hidden_size=HIDDEN,
        num_blocks=BLOCKS,
        vocabulary=_VOCABULARY,
        taps=TAPS,
        micro_batch_tokens=scale.micro_batch_tokens,
        batch_tokens=scale.file_tokens,
    )
    return put_run(store, spec, mixed_lengths(samples, mean, longest))


class _EmulatedService(RunService):
    """The run in service, with the emulated device in place of a model."""

    def __init__(
        self, store: DirectoryStore, cache: TokenCache, device: EmulatedDevice, variant: Variant
    ) -> None:
        super().__init__(store, cache, ExtractSettings(), torch.device("cpu"))
        self._emulated, self._variant = device, variant

    @property
    def loop(self) -> EmulatedLoop:
        """The loop of the run in service."""
        assert self._engine is not None
        assert isinstance(self._engine.loop, EmulatedLoop)
        return self._engine.loop

    def _engine_for(self, document: RunDocument, tokens: TokenFile) -> Engine:
        model = EmulatedModel(Selection(TAPS), HIDDEN, _VOCABULARY)
        loop = EmulatedLoop(
            model,
            self._emulated,
            document.identity.micro_batch_tokens,
            None if self._variant.writer_thread else AtOnce(),
        )
        key = engine_key(document, ExtractSettings(), torch.device("cpu"))
        self._engine = Engine(key, model, loop, loop.baseline)
        return self._engine


def _spool(folder: Path, variant: Variant) -> Spool:
    settings = SpoolSettings(spool="bench", spool_dir=str(folder / "spool"), spool_free_bytes=0)
    if variant.disk_bytes_per_second is None:
        return Spool(settings)
    return SlowSpool(settings, variant.disk_bytes_per_second)
