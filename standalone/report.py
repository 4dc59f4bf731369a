"""What is said when a run is complete: the proof, the rates, the time, where it is and how to read it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.run_state import Progress
from hiddenfeed.options import StoreOptions
from hiddenfeed.proof import Proof
from hiddenfeed.skipped import SkipReason
from hiddenfeed.store_flags import ENVIRONMENT_PREFIX
from hiddenfeed.words import count_text, duration_text, size_rate_text, size_text

_WIDTH = 10
#: What it takes to read from a store in S3, keys apart.
_TO_READ = ("s3_endpoint", "s3_region", "s3_profile", "s3_role_arn", "s3_addressing", "s3_ca_bundle")
_TRAINER = Path(__file__).parents[1] / "examples" / "train_drafter.py"
#: Reasons of skipped rows that are named.
_REASONS_SHOWN = 5


def proof_lines(proof: Proof, reasons: Sequence[SkipReason] = ()) -> list[str]:
    """Rows, files and bytes, as complete.json says, and why rows were skipped."""
    skipped = [str(reason) for reason in reasons[:_REASONS_SHOWN]]
    if len(reasons) > _REASONS_SHOWN:
        others = sum(reason.rows for reason in reasons[_REASONS_SHOWN:])
        skipped.append(f"{others:,} for {count_text(len(reasons) - _REASONS_SHOWN, 'other reason')}")
    if proof.skipped:
        skipped.append(f"each row with its reason: {proof.run_id}/skipped.parquet")
    return [
        row(
            "rows",
            f"{proof.rows:,} = {proof.stored:,} stored + {proof.skipped:,} skipped + {proof.quarantined:,} quarantined",
        ),
        *(row("skipped" if number == 0 else "", text) for number, text in enumerate(skipped)),
        row(
            "files",
            f"{count_text(proof.batches, 'batch file')}, {count_text(proof.tokens, 'token')}, {size_text(proof.size_bytes)}",
        ),
        row("proof", f"{proof.run_id}/complete.json, computed from the store alone"),
    ]


def rate_lines(progress: Progress) -> list[str]:
    """What each GPU worker and uploader did, and how fast: over the clock, as the monitor says, and at work."""
    lines = []
    for worker in progress.workers:
        padding = f", {worker.padding:.1%} padding" if worker.padded_tokens else ""
        busy = "" if worker.busy is None else f" ({worker.busy:.0%} of the time in the model)"
        lines.append(
            f"{worker.worker}: {count_text(worker.batches, 'batch', 'batches')}, {count_text(worker.tokens, 'token')}, "
            f"{_per_second(worker.tokens_per_second)} tokens/s{busy}{padding} "
            f"({worker.device})"
        )
    for uploader in progress.uploaders:
        overall = uploader.bytes_per_second
        over_the_clock = "" if overall is None else f"{size_rate_text(overall)}, "
        lines.append(
            f"{uploader.uploader}: {count_text(uploader.files, 'file')}, {size_text(uploader.bytes)}, "
            f"{over_the_clock}{size_rate_text(uploader.transfer_bytes_per_second)} each file"
        )
    return [row("rates" if number == 0 else "", line) for number, line in enumerate(lines)]


def time_line(parts: Mapping[str, float]) -> str:
    """Seconds per part and in all."""
    shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts.items())
    return row("time", f"{duration_text(sum(parts.values()))}: {shown}")


def place_lines(url: str, home: Path | None, options: StoreOptions) -> list[str]:
    """Where the run is and commands that read it; `home` if its servers are needed for that, `options` of S3 if not."""
    python, quoted = shown_python(), shlex.quote(url)
    trainer = shlex.quote(shown_path(_TRAINER))
    if home is None:
        python = " ".join([*_environment(options), python])
        return [
            row("where", url),
            row("read", f"{python} -m hiddenfeed show {quoted}"),
            row("", f"{python} -m hiddenfeed sample {quoted} --position 0"),
            row("train", f"{python} {trainer} {quoted}"),
        ]
    inside = f"{python} -m standalone exec --home {shlex.quote(shown_path(home))} -- python"
    return [
        row("where", f"{url}, in the S3 server of {shown_path(home)}"),
        row("read", f"{inside} -m hiddenfeed show {quoted}"),
        row("", f"{inside} -m hiddenfeed sample {quoted} --position 0"),
        row("train", f"{inside} {trainer} {quoted}"),
        row("look", f"{python} -m standalone serve --home {shlex.quote(shown_path(home))}"),
    ]


def _environment(options: StoreOptions) -> list[str]:
    """What a command that reads must be told of S3, as words before it."""
    given = {name: (getattr(options, name), getattr(StoreOptions(), name)) for name in _TO_READ}
    return [
        f"{ENVIRONMENT_PREFIX}{name.upper()}={shlex.quote(value)}"
        for name, (value, default) in given.items()
        if value != default
    ]


def shown_python() -> str:
    """This Python as a person would type it from here."""
    return shown_path(Path(sys.executable))


def shown_path(path: Path) -> str:
    """A path relative to the current folder if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def row(name: str, text: str) -> str:
    """A line of the report."""
    return f"  {name:{_WIDTH}} {text}"


def _per_second(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}"
