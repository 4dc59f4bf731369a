"""Results of the extraction benchmark: ratios of its rounds, and lines for people."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.extraction_account import Spent
from common.messages import BatchReport


@dataclass(frozen=True)
class Round:
    """Seconds of bare forward passes, of the worker, and of bare forward passes again."""

    before: float
    worker: float
    after: float
    #: Of the processors, over all threads of this process.
    bare_cpu: float
    worker_cpu: float
    #: By the worker, beside forward passes.
    spent: Spent

    @property
    def bare(self) -> float:
        """Of the two."""
        return (self.before + self.after) / 2


def speeds(rounds: Sequence[Round], tokens: int, token_bytes: int) -> dict[str, float]:
    """Of rounds over `tokens` real tokens, each of `token_bytes` in a file."""
    worker, bare = [each.worker for each in rounds], [each.bare for each in rounds]
    ratios, noise = (
        [each.bare / each.worker for each in rounds],
        [each.before / each.after for each in rounds],
    )
    fastest = min(min(each.before, each.after) for each in rounds)
    return {
        "efficiency": statistics.median(ratios),
        "efficiency_min": min(ratios),
        "efficiency_max": max(ratios),
        "efficiency_of_fastest": fastest / min(worker),
        "cpu_efficiency": sum(each.bare_cpu for each in rounds) / sum(each.worker_cpu for each in rounds),
        "noise": statistics.median(noise),
        "noise_min": min(noise),
        "noise_max": max(noise),
        "worker_tokens_per_second": tokens / statistics.median(worker),
        "bare_tokens_per_second": tokens / statistics.median(bare),
        "states_gb_per_second": tokens * token_bytes / statistics.median(worker) / 1e9,
    }


def shares(rounds: Sequence[Round], reports: Sequence[BatchReport]) -> dict[str, float]:
    """What of the worker's time, and of its processors' seconds, went where; `reports` are those of all rounds."""
    total, cpu = sum(each.worker for each in rounds), sum(each.worker_cpu for each in rounds)
    return {
        "forward_share": sum(report.forward_seconds for report in reports) / total,
        "stall_share": sum(report.stall_seconds for report in reports) / total,
        "canary_share": sum(each.spent.canary for each in rounds) / total,
        "beside_share": sum(each.spent.beside for each in rounds) / cpu,
        "writer_share": sum(each.spent.writer for each in rounds) / cpu,
    }


def describe(results: dict[str, Any]) -> list[str]:
    """The results for people."""
    lines = []
    for model, found in results["models"].items():
        span = f"{found['efficiency_min']:.3f} to {found['efficiency_max']:.3f}"
        fastest = f"fastest against fastest {found['efficiency_of_fastest']:.3f}"
        lines += [
            f"{model} on {found['device']} ({found['dtype']}, {found['threads']} threads):",
            f"  efficiency     {found['efficiency']:.3f} (rounds {span}; {fastest})",
            f"  of processors  {found['cpu_efficiency']:.3f}: seconds of bare passes over the worker's",
            f"  noise          {found['noise']:.3f} (rounds {found['noise_min']:.3f} to {found['noise_max']:.3f}): bare against bare",
            f"  worker         {found['worker_tokens_per_second']:,.0f} tokens/s",
            f"  bare forward   {found['bare_tokens_per_second']:,.0f} tokens/s",
            f"  padding        {found['padding_waste']:.2%} of what the device saw",
            f"  against one by one {found['vs_one_by_one']:.2f}, 16 unsorted {found['vs_unsorted_16']:.2f}, "
            f"a file for each sample {found['vs_per_sample_files']:.2f} times their tokens/s",
            f"  of the worker's time: forward {found['forward_share']:.1%}, of it the second pass over a sample "
            f"{found['canary_share']:.1%}; between forward passes {found['stall_share']:.2%}",
            f"  of its processors: outside forward passes {found['beside_share']:.1%}, of it the writer {found['writer_share']:.1%}",
        ]
    return lines
