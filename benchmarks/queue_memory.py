"""What queued batches take of Redis's memory: each of them, and all at most while a run goes through its window."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import redis

from benchmarks.planned_run import RunSpec, put_run
from benchmarks.queue_fleet import fleet, pause
from benchmarks.queue_jobs import EXTRACT_QUEUE, RUN_ID, manifests
from common.queues import drop_queue, enqueue, extract_request
from common.settings.catalogue import QueueSettings
from hiddenfeed.run import RunDocument
from hiddenfeed.store.memory import MemoryStore
from producer.submission import Submission

_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Window:
    """Bytes above an empty database while a run of `batches` was submitted `window` at a time and worked off."""

    batches: int
    window: int
    peak_bytes: int
    #: While the first half of the batches was still to be queued.
    peak_bytes_first_half: int


def bytes_per_queued_batch(url: str, batches: int) -> float:
    """Of batches that are all queued at once."""
    settings = QueueSettings()
    requests = [extract_request(manifest) for manifest in manifests(batches)]
    with redis.Redis.from_url(url) as client:
        # The scripts take memory once.
        enqueue(client, requests[:1], settings)
        drop_queue(client, EXTRACT_QUEUE)
        empty = data_bytes(client)
        enqueue(client, requests, settings)
        taken = data_bytes(client) - empty
        drop_queue(client, EXTRACT_QUEUE)
    return taken / batches


def measure_window(url: str, batches: int, window: int, settings: QueueSettings) -> Window:
    """The producer's own submission, with workers that end what it queues."""
    submission_store, document = _document(batches)
    with (
        redis.Redis.from_url(url) as client,
        fleet(url, "extract", settings, workers=1, slots=3),
        fleet(url, "upload", settings, workers=1, slots=3),
    ):
        empty = data_bytes(client)
        submission = Submission(
            submission_store, client, document, manifests(batches), queue_settings=settings, window=window
        )
        submission.open()
        peak = first_half = 0
        while True:
            standing = submission.step()
            peak = max(peak, data_bytes(client) - empty)
            if standing.pending >= batches / 2:
                first_half = peak
            if not standing.pending and standing.progress.batches >= batches:
                return Window(batches, window, peak, first_half)
            pause(_LOOK_SECONDS)


def data_bytes(client: redis.Redis) -> int:
    """What the server has allocated, but for the buffers of its clients and of its log."""
    memory = client.info("memory")
    return int(memory["used_memory"]) - int(memory["mem_clients_normal"]) - int(memory["mem_aof_buffer"])


def _document(batches: int) -> tuple[MemoryStore, RunDocument]:
    """A store that lacks every batch of a run of that many; the run's data is of no interest here."""
    store = MemoryStore()
    spec = RunSpec(
        model="benchmark",
        model_identity="benchmark",
        hidden_size=8,
        num_blocks=2,
        vocabulary=100,
        taps=(1, 2),
    )
    document, _ = put_run(store, spec, np.array([10], dtype=np.int64))
    plan = msgspec.structs.replace(document.plan, batches=batches)
    return store, msgspec.structs.replace(document, run_id=RUN_ID, plan=plan)
