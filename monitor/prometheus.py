"""The snapshot for Prometheus, in base units and with its usual names. What is not known is left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from common.checks import CHECKS, Extreme
from monitor.views import RunView, Snapshot

__all__ = ["CONTENT_TYPE_LATEST", "exposition"]

_PREFIX = "hiddenfeed_"
_RUN_STATES = (
    "waiting", "running", "uploading", "proving", "stalled", "paused", "cancelled", "complete",
)  # fmt: skip
_PROCESS_STATES = ("busy", "idle", "waiting", "silent")

#: A label's values and the number.
Sample = tuple[tuple[str, ...], float | None]


def exposition(snapshot: Snapshot) -> bytes:
    """The whole text, as `CONTENT_TYPE_LATEST` says."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(snapshot))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        yield _gauge("up", "1 if Redis could be read.", (), [((), float(not snapshot.redis_error))])
        yield _gauge(
            "store_up",
            "1 if the store could be read, or none was given.",
            (),
            [((), float(not snapshot.store_error))],
        )
        if snapshot.redis_error:
            return
        yield from _runs(snapshot.runs)
        yield from _run_states(snapshot.runs)
        yield from _checks(snapshot.runs)
        yield from _workers(snapshot.runs)
        yield from _uploaders(snapshot.runs)
        yield from _queues(snapshot)
        yield from _processes(snapshot)
        yield from _spool(snapshot)


def _runs(runs: Iterable[RunView]) -> Iterator[Metric]:
    runs = list(runs)

    def each(value: Any) -> list[Sample]:
        return [((run.run_id,), value(run)) for run in runs]

    yield _counter("run_batches", "Batches that the store holds.", ("run",), each(lambda run: run.batches))
    yield _counter("run_samples", "Samples that the store holds.", ("run",), each(lambda run: run.samples))
    yield _counter("run_tokens", "Tokens that the store holds.", ("run",), each(lambda run: run.tokens))
    yield _counter(
        "run_stored_bytes", "Bytes that the store holds.", ("run",), each(lambda run: run.size_bytes)
    )
    yield _counter(
        "run_set_aside_samples",
        "Samples that could not be extracted.",
        ("run",),
        each(lambda run: run.set_aside),
    )
    yield _gauge("run_planned_batches", "Batches of the run.", ("run",), each(lambda run: run.batches_total))
    yield _gauge("run_planned_tokens", "Tokens of the run.", ("run",), each(lambda run: run.tokens_total))
    yield _gauge("run_planned_samples", "Samples of the run.", ("run",), each(lambda run: run.samples_total))
    yield _gauge(
        "run_progress_ratio", "Share of the tokens that is stored.", ("run",), each(lambda run: run.done)
    )
    for name, value in (
        ("", lambda run: run.remaining_seconds),
        ("_low", lambda run: run.remaining_low_seconds),
        ("_high", lambda run: run.remaining_high_seconds),
    ):
        yield _gauge(
            f"run_remaining{name}_seconds",
            "Time until the last batch is stored, and its range.",
            ("run",),
            each(value),
        )
    yield _gauge(
        "run_proved", "1 if the store holds the proof of completeness.", ("run",),
        each(lambda run: None if run.proved is None else float(run.proved)),
    )  # fmt: skip


def _run_states(runs: Iterable[RunView]) -> Iterator[Metric]:
    runs = list(runs)
    yield _gauge(
        "run_jobs", "Batches on the extraction queue, by state.", ("run", "state"),
        [
            ((run.run_id, state), number)
            for run in runs
            for state, number in (
                ("queued", run.queued), ("started", run.started), ("retrying", run.retrying), ("failed", run.failed)
            )
        ],
    )  # fmt: skip
    yield _gauge(
        "run_state", "1 for the state the run is in.", ("run", "state"),
        [((run.run_id, state), float(run.state == state)) for run in runs for state in _RUN_STATES],
    )  # fmt: skip


def _checks(runs: Iterable[RunView]) -> Iterator[Metric]:
    runs = list(runs)

    def each(value: Any) -> list[Sample]:
        return [((run.run_id,), value(run)) for run in runs]

    def of_states(value: Any) -> list[Sample]:
        return [((run.run_id, state.state), value(state)) for run in runs for state in run.checks.states]

    yield _counter(
        "run_checked_batches", "Batches of which every number was checked.", ("run",), each(lambda run: run.checks.batches)
    )  # fmt: skip
    yield _counter(
        "run_quarantined_batches",
        "Batches without states.",
        ("run",),
        each(lambda run: run.quarantined_batches),
    )
    yield _counter(
        "run_halvings", "Forward passes that were halved because memory ran out.", ("run",), each(lambda run: run.halvings)
    )  # fmt: skip
    yield _counter(
        "run_failed_check_samples", "Samples set aside, by the check that they failed.", ("run", "check"),
        [((run.run_id, check), run.checks.failed.get(check, 0)) for run in runs for check in CHECKS],
    )  # fmt: skip
    for name, what, field in (
        ("canary", "a sample and the same computed alone", "canary"),
        ("selftest", "a model and its untruncated form", "selftest"),
    ):
        yield _gauge(
            f"run_{name}_min_cosine", f"Least cosine so far of {what}.", ("run",),
            each(lambda run, field=field: _value(getattr(run.checks, f"{field}_cosine"))),
        )  # fmt: skip
        yield _gauge(
            f"run_{name}_max_error_ratio", f"Largest relative error so far of {what}.", ("run",),
            each(lambda run, field=field: _value(getattr(run.checks, f"{field}_error"))),
        )  # fmt: skip
    labels = ("run", "state")
    yield _gauge(
        "run_min_norm",
        "Smallest norm so far of a token that is not the first of its sample.",
        labels,
        of_states(lambda at: at.norm_low.value),
    )
    yield _gauge(
        "run_max_norm",
        "Largest norm so far of a token that is not the first of its sample.",
        labels,
        of_states(lambda at: at.norm_high.value),
    )
    yield _gauge(
        "run_max_zero_ratio", "Largest share of zeros in a batch so far.", labels, of_states(lambda at: at.zero_share.value)
    )  # fmt: skip


def _value(extreme: Extreme | None) -> float | None:
    return None if extreme is None else extreme.value


def _workers(runs: Iterable[RunView]) -> Iterator[Metric]:
    workers = [((run.run_id, worker.worker, worker.device), worker) for run in runs for worker in run.workers]
    labels = ("run", "worker", "device")
    yield _gauge(
        "worker_info", "1, with the kind of device of a GPU worker.", (*labels, "kind"),
        [((*at, each.kind), 1.0) for at, each in workers],
    )  # fmt: skip
    yield _counter(
        "worker_batches",
        "Batches of a GPU worker that are stored.",
        labels,
        [(at, each.batches) for at, each in workers],
    )
    yield _counter(
        "worker_tokens",
        "Tokens of a GPU worker that are stored.",
        labels,
        [(at, each.tokens) for at, each in workers],
    )
    yield _gauge(
        "worker_padding_ratio",
        "Share of padding in what the device saw.",
        labels,
        [(at, each.padding) for at, each in workers],
    )
    yield _gauge(
        "worker_busy_ratio",
        "Share of the clock in which the device computed.",
        labels,
        [(at, each.busy) for at, each in workers],
    )
    yield _gauge(
        "worker_stage_ratio", "Share of a stage in the time of the worker's batches.", (*labels, "stage"),
        [((*at, stage), share) for at, each in workers for stage, share in each.stages.items()],
    )  # fmt: skip


def _uploaders(runs: Iterable[RunView]) -> Iterator[Metric]:
    uploaders = [((run.run_id, each.uploader), each) for run in runs for each in run.uploaders]
    labels = ("run", "uploader")
    yield _counter(
        "uploader_files",
        "Files that an uploader brought.",
        labels,
        [(at, each.files) for at, each in uploaders],
    )
    yield _counter(
        "uploader_bytes",
        "Bytes that an uploader stored.",
        labels,
        [(at, each.size_bytes) for at, each in uploaders],
    )
    yield _counter(
        "uploader_duplicates",
        "Files that the store had already.",
        labels,
        [(at, each.duplicates) for at, each in uploaders],
    )


def _queues(snapshot: Snapshot) -> Iterator[Metric]:
    yield _gauge(
        "upload_jobs", "Files on an upload queue, by state.", ("queue", "state"),
        [
            ((queue.name, state), number)
            for queue in snapshot.uploads
            for state, number in (
                ("queued", queue.queued), ("started", queue.started), ("retrying", queue.retrying), ("failed", queue.failed)
            )
        ],
    )  # fmt: skip


def _processes(snapshot: Snapshot) -> Iterator[Metric]:
    processes = snapshot.processes
    counts = {(each.role, state): 0 for each in processes for state in _PROCESS_STATES}
    counts |= {("gpu_worker", state): 0 for state in _PROCESS_STATES}
    counts |= {("uploader", state): 0 for state in _PROCESS_STATES}
    for each in processes:
        counts[each.role, each.state] += 1
    yield _gauge(
        "processes", "Processes that take jobs, by role and state.", ("role", "state"), sorted(counts.items())
    )
    labels = ("process", "role")
    yield _gauge(
        "process_heartbeat_age_seconds", "Time since a process was last heard of.", labels,
        [((each.name, each.role), each.heartbeat_seconds_ago) for each in processes],
    )  # fmt: skip
    yield _gauge(
        "process_running_jobs",
        "Jobs that a process has in hand.",
        labels,
        [((each.name, each.role), each.running) for each in processes],
    )
    yield _gauge(
        "process_slots",
        "Jobs that a process takes at a time.",
        labels,
        [((each.name, each.role), each.slots) for each in processes],
    )
    yield _counter(
        "process_finished_jobs",
        "Jobs that a process finished.",
        labels,
        [((each.name, each.role), each.finished) for each in processes],
    )
    yield _counter(
        "process_failed_jobs",
        "Jobs that failed in a process.",
        labels,
        [((each.name, each.role), each.failed) for each in processes],
    )


def _spool(snapshot: Snapshot) -> Iterator[Metric]:
    spool = snapshot.spool
    if spool is None:
        return
    for name, help_text, value in (
        ("spool_files", "Finished files in the spool.", spool.files),
        ("spool_bytes", "Bytes of finished files in the spool.", spool.size_bytes),
        ("spool_part_bytes", "Bytes of files that are being written.", spool.part_bytes),
        ("spool_cap_bytes", "What the spool holds at most.", spool.cap_bytes),
        ("spool_disk_free_bytes", "Free on the disk of the spool.", spool.disk_free_bytes),
        ("spool_used_ratio", "Share of the cap that is used.", spool.used),
    ):
        yield _gauge(name, help_text, ("spool",), [((spool.name,), value)])


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> Metric:
    family = GaugeMetricFamily(_PREFIX + name, text, labels=labels)
    for values, number in samples:
        if number is not None:
            family.add_metric(values, number)
    return family


def _counter(name: str, text: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, text, labels=labels)
    for values, number in samples:
        if number is not None:
            family.add_metric(values, number)
    return family
