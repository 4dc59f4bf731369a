"""Rows of tables that several faces show."""

from __future__ import annotations

from common.check_words import extreme_text
from common.checks import StateRange
from hiddenfeed.words import size_rate_text, size_text
from monitor.views import DeviceView, UploaderView
from monitor.words import ago, rate, share

UPLOADER_HEAD = ("uploader", "files", "size", "rate", "each file", "duplicates", "last")
STATE_HEAD = ("state", "smallest norm", "largest norm", "most zeros")
STAGES = ("read", "forward", "stall", "write")


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


def state_row(state: StateRange) -> tuple[str, ...]:
    """Cells under `STATE_HEAD`."""
    return (
        state.state,
        extreme_text(state.norm_low),
        extreme_text(state.norm_high),
        extreme_text(state.zero_share, ".2%"),
    )


def bare_rate(per_second: float | None) -> str:
    """`1,020`, where the head of the column names the unit."""
    return rate(per_second, "").removesuffix(" /s")


def busy_share(worker: DeviceView) -> str:
    """`95%`; `-` where it is not known."""
    return "-" if worker.busy is None else share(worker.busy)


def stage_shares(worker: DeviceView) -> tuple[str, ...]:
    """In the order of `STAGES`."""
    return tuple(share(worker.stages[stage]) for stage in STAGES)
