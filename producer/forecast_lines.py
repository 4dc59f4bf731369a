"""What `plan` says of plans and forecasts, as lines of text; decides nothing and reads nothing."""

from __future__ import annotations

from dataclasses import dataclass

from hiddenfeed.batch_layout import bytes_per_token
from hiddenfeed.options import StoreOptions
from hiddenfeed.sizes import shown_size
from hiddenfeed.words import count_text, duration_text, size_text
from producer.forecast import DOCUMENTS, Load, Machines, forecast, put_requests
from producer.plan import Plan


@dataclass(frozen=True)
class Kept:
    """What is stored of every token; `str` says it."""

    taps: int
    hidden_size: int
    dtype: str
    final_state: str

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in a batch file."""
        return bytes_per_token(
            taps=self.taps,
            hidden_size=self.hidden_size,
            dtype=self.dtype,
            final=self.final_state != "none",
        )

    def __str__(self) -> str:
        final = "" if self.final_state == "none" else " and the final state"
        return f"{count_text(self.taps, 'tap')} × {self.hidden_size} × {self.dtype}{final} ({self.bytes_per_token:,} bytes a token)"


def plan_lines(plan: Plan, micro_batch_tokens: int) -> list[str]:
    """The forward passes."""
    return [
        f"{count_text(plan.micro_batches, 'micro-batch', 'micro-batches')} of at most {micro_batch_tokens:,} tokens, {plan.waste:.2%} padding, "
        f"longest sample {count_text(plan.longest, 'token')}"
    ]


def size_lines(load: Load, kept: Kept, options: StoreOptions) -> list[str]:
    """What goes into the store, in S3 with its `options`."""
    smallest = min(size for size, _ in load.file_sizes)
    requests = put_requests(load, options.multipart_threshold_bytes, options.multipart_part_bytes)
    sizes = size_text(smallest)
    if size_text(load.largest_file) != sizes:
        sizes += f" to {size_text(load.largest_file)}"
    return [
        f"{count_text(load.samples, 'sample')}, {count_text(load.tokens, 'token')}, {load.tokens / load.samples:,.1f} each; {kept}",
        f"{_decimal(load.size_bytes)} ({size_text(load.size_bytes)}) in {count_text(load.files, 'batch file')} of {sizes}, "
        f"and {DOCUMENTS} documents; {count_text(requests, 'PUT request')} to S3",
    ]


def forecast_lines(load: Load, machines: Machines) -> list[str]:
    """Hours, bandwidth and spool."""
    found, gpus = forecast(load, machines), machines.gpus
    lines = [
        f"{duration_text(found.compute_seconds)} of computing on {count_text(gpus, 'GPU')} at {machines.tokens_per_second:,.0f} tokens/s each "
        "(--gpus, --tokens-per-second)",
        f"upload: {_decimal(found.upload_needed)}/s ({8 * found.upload_needed / 1e9:,.1f} Gbit/s) keeps up, "
        f"{_decimal(found.upload_needed / gpus)}/s for each GPU",
    ]
    if machines.upload_bytes_per_second is not None and not found.upload_keeps_up:
        lines.append(
            f"upload at {_decimal(machines.upload_bytes_per_second)}/s is slower: {duration_text(found.seconds)} until all is stored"
        )
    cap = "" if found.upload_keeps_up else "; a smaller --spool-cap-bytes makes GPUs wait instead"
    lines.append(
        f"spool: at most {size_text(found.peak_spool)} in all, {machines.batches_in_flight + 1} files of "
        f"{shown_size(load.largest_file)} for each GPU{'' if found.upload_keeps_up else ' and what piles up'}{cap}"
    )
    return lines


def _decimal(size: float) -> str:
    """`950.0 GB`: in the powers of ten that links and bills are counted in."""
    units = ["B", "kB", "MB", "GB", "TB", "PB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.1f} {units[0]}"
