"""The snapshot for pages: no larger than people can read, however large the fleet is. What is left out is counted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from monitor.rows import need
from monitor.views import (
    DeviceView,
    FailureView,
    HostView,
    ProcessView,
    RunView,
    Snapshot,
    UploadQueueView,
)
from monitor.words import cut

MOST_WORKERS, MOST_UPLOADERS, MOST_PROCESSES, MOST_QUEUES, MOST_HOSTS = 48, 24, 48, 24, 150

#: Characters of a reason in a view that is sent again and again; the snapshot has more.
_LONGEST_TEXT = 500

RowT = TypeVar("RowT", DeviceView, ProcessView)


def trimmed(snapshot: Snapshot) -> Snapshot:
    """The same with the rows that are looked at first, and how many more there are."""
    return msgspec.structs.replace(
        snapshot,
        runs=tuple(map(_run, snapshot.runs)),
        processes=_first(snapshot.processes, MOST_PROCESSES),
        more_processes=max(0, len(snapshot.processes) - MOST_PROCESSES),
        uploads=_busiest(snapshot.uploads),
        more_uploads=max(0, len(snapshot.uploads) - MOST_QUEUES),
    )


def _run(run: RunView) -> RunView:
    return msgspec.structs.replace(
        run,
        failures=_brief(run.failures),
        retries=_brief(run.retries),
        workers=_first(run.workers, MOST_WORKERS),
        more_workers=max(0, len(run.workers) - MOST_WORKERS),
        hosts=_troubled(run.hosts),
        more_hosts=max(0, len(run.hosts) - MOST_HOSTS),
        uploaders=run.uploaders[:MOST_UPLOADERS],
        more_uploaders=max(0, len(run.uploaders) - MOST_UPLOADERS),
    )


def _first(rows: tuple[RowT, ...], most: int) -> tuple[RowT, ...]:
    """In their own order if all fit; else those that need a look come first, then those at work."""
    if len(rows) <= most:
        return rows
    return tuple(sorted(rows, key=need)[:most])


def _troubled(hosts: tuple[HostView, ...]) -> tuple[HostView, ...]:
    if len(hosts) <= MOST_HOSTS:
        return hosts
    return tuple(sorted(hosts, key=lambda host: not host.states.strip("b"))[:MOST_HOSTS])


def _busiest(queues: Sequence[UploadQueueView]) -> tuple[UploadQueueView, ...]:
    most = list(queues)
    if len(queues) > MOST_QUEUES:
        most.sort(key=lambda queue: (-queue.failed, -queue.queued - queue.started - queue.retrying))
    return tuple(
        msgspec.structs.replace(queue, failures=_brief(queue.failures), retries=_brief(queue.retries))
        for queue in most[:MOST_QUEUES]
    )


def _brief(failures: Sequence[FailureView]) -> tuple[FailureView, ...]:
    return tuple(
        msgspec.structs.replace(
            each, description=cut(each.description, _LONGEST_TEXT), error=cut(each.error, _LONGEST_TEXT)
        )
        for each in failures
    )
