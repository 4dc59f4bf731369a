"""Rows of tables that several faces show."""

from __future__ import annotations

from collections.abc import Sequence

from hiddenfeed.words import size_rate_text, size_text
from monitor.views import DeviceView, ProcessView, UploaderView
from monitor.words import ago, rate, share

UPLOADER_HEAD = ("uploader", "files", "size", "rate", "each file", "duplicates", "last")
STAGES = ("read", "forward", "stall", "write")
#: A worker that did its last batch within this time is missed when it is gone.
MISSED_SECONDS = 3600.0
_NEED = {"silent": 0, "gone": 1, "waiting": 2, "idle": 3}


def uploader_row(uploader: UploaderView) -> tuple[str, ...]:
    """Cells under `UPLOADER_HEAD`."""
    return (
        uploader.uploader,
        f"{uploader.files:,}",
        size_text(uploader.size_bytes),
        size_rate_text(uploader.bytes_per_second),
        size_rate_text(uploader.transfer_bytes_per_second),
        f"{uploader.duplicates:,}",
        ago(uploader.last_seconds_ago),
    )


def device_text(worker: DeviceView) -> str:
    """`cuda:0, NVIDIA H200`"""
    return ", ".join(filter(None, (worker.device, worker.kind)))


def batches_text(job_ids: Sequence[str]) -> str:
    """`7-9, 12` of ids such as `extract-demo-000007`."""
    numbers = [job_id.rpartition("-")[2] for job_id in job_ids]
    if not all(number.isascii() and number.isdigit() for number in numbers):
        return ", ".join(numbers)
    runs: list[list[int]] = []
    for number in sorted({int(number) for number in numbers}):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def short_name(process: str) -> str:
    """`node7-4711-3fa9` of `gpu_worker-node7-4711-3fa9`, where the place says which role it is."""
    for role in ("gpu_worker-", "uploader-"):
        if process.startswith(role) and len(process) > len(role):
            return process[len(role) :]
    return process


def host_of(process: str) -> str:
    """`node-7` of `gpu_worker-node-7-4711-3fa9`, as processes are named; the whole name of any other."""
    return short_name(process).rsplit("-", 2)[0]


def need(row: DeviceView | ProcessView) -> int:
    """How much it needs a look, 0 first; who has been gone for long needs none."""
    if (
        isinstance(row, DeviceView)
        and row.state == "gone"
        and (row.last_seconds_ago or 0.0) >= MISSED_SECONDS
    ):
        return len(_NEED) + 1
    return _NEED.get(row.state, len(_NEED))


def bare_rate(per_second: float | None) -> str:
    """`1,020`, where the head of the column names the unit."""
    return rate(per_second, "").removesuffix(" /s")


def busy_share(worker: DeviceView) -> str:
    """`95%`; `-` where it is not known."""
    return "-" if worker.busy is None else share(worker.busy)


def stage_shares(worker: DeviceView) -> tuple[str, ...]:
    """In the order of `STAGES`."""
    return tuple(share(worker.stages[stage]) for stage in STAGES)
