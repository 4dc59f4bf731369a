"""What a run will take: bytes, files, requests, hours, bandwidth and spool, from the size of its plan. Pure.

A `Load` comes from a plan, or from a few numbers before there is any data; a `Forecast` comes from a
load and the machines that are to do it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hiddenfeed.batch_layout import HEADER_STEP_BYTES
from producer.plan import Plan, batch_count, batch_tokens

#: run.json, tokens.parquet, skipped.parquet, index.parquet, quarantine.parquet, complete.json
DOCUMENTS = 6
#: An entry of `offsets` and one of `sample_index`, int64 both.
_BYTES_PER_SAMPLE = 16
#: A file in parts takes a request to begin and one to end.
_MULTIPART_REQUESTS = 2


@dataclass(frozen=True)
class Load:
    """How much there is to compute and to store."""

    samples: int
    tokens: int
    #: Tokens of the forward passes; equal to `tokens` where padding is not known.
    padded_tokens: int
    #: Sizes of the batch files in bytes, each with how many files have it.
    file_sizes: tuple[tuple[int, int], ...]

    @property
    def files(self) -> int:
        """Number of batch files."""
        return sum(count for _, count in self.file_sizes)

    @property
    def size_bytes(self) -> int:
        """Bytes of all batch files."""
        return sum(size * count for size, count in self.file_sizes)

    @property
    def largest_file(self) -> int:
        """Bytes of the largest batch file."""
        return max(size for size, _ in self.file_sizes)


@dataclass(frozen=True)
class Machines:
    """Who computes and uploads."""

    gpus: int
    #: Of one GPU, padding included.
    tokens_per_second: float
    #: Batches that one GPU worker has in hand, each with its whole file in the spool.
    batches_in_flight: int
    #: Of all hosts together in bytes; None if it keeps up.
    upload_bytes_per_second: float | None = None


@dataclass(frozen=True)
class Forecast:
    """What the load takes on the machines."""

    compute_seconds: float
    #: Until everything is in the store.
    seconds: float
    #: Bytes a second that all hosts together must upload, lest GPUs wait.
    upload_needed: float
    #: Bytes in all spools together at most, if no cap were there.
    peak_spool: int

    @property
    def upload_keeps_up(self) -> bool:
        """False if the upload, not the GPUs, decides how long it takes."""
        return self.seconds <= self.compute_seconds


def load_of_plan(plan: Plan, per_token: int) -> Load:
    """The load of a plan whose batch files take `per_token` bytes a token."""
    tokens = np.add.reduceat(plan.lengths[plan.order], plan.micro_starts[plan.batch_starts[:-1]])
    samples = np.diff(plan.micro_starts[plan.batch_starts])
    sizes = np.array([file_bytes(*facts, per_token) for facts in zip(tokens, samples, strict=True)])
    distinct, counts = np.unique(sizes, return_counts=True)
    return Load(
        samples=len(plan.lengths),
        tokens=plan.tokens,
        padded_tokens=plan.padded_tokens,
        file_sizes=tuple(zip(distinct.tolist(), counts.tolist(), strict=True)),
    )


def load_of_numbers(samples: int, tokens: int, per_token: int, target_file_bytes: int) -> Load:
    """The load of so many samples and tokens, without padding and in files of one size."""
    files = batch_count(tokens, samples, batch_tokens(target_file_bytes, per_token))
    size = file_bytes(-(-tokens // files), -(-samples // files), per_token)
    return Load(samples, tokens, tokens, ((size, files),))


def file_bytes(tokens: int, samples: int, per_token: int) -> int:
    """Bytes of a batch file whose header takes one step, as it does for up to about 30 taps."""
    return HEADER_STEP_BYTES + int(tokens) * per_token + _BYTES_PER_SAMPLE * int(samples) + 8


def mean_tokens(total_bytes: int, samples: int, per_token: int) -> float:
    """Tokens of each of `samples` that `total_bytes` of states amount to."""
    return total_bytes / samples / per_token


def put_requests(load: Load, threshold: int, part: int) -> int:
    """PUT and POST requests to S3 if none is repeated: files above `threshold` bytes go in parts of `part`."""
    requests = DOCUMENTS
    for size, count in load.file_sizes:
        requests += count * (1 if size <= threshold else -(-size // part) + _MULTIPART_REQUESTS)
    return requests


def forecast(load: Load, machines: Machines) -> Forecast:
    """Hours, bandwidth and spool of the load on the machines.

    With an upload that keeps up, each GPU has its batches in flight in the spool and one more file on its
    way. With a slower one, what is computed and not yet uploaded piles up until the computing ends.
    """
    compute = load.padded_tokens / (machines.tokens_per_second * machines.gpus)
    needed = load.size_bytes / compute
    have = machines.upload_bytes_per_second or needed
    in_hand = machines.gpus * (machines.batches_in_flight + 1) * load.largest_file
    backlog = load.size_bytes * max(0.0, 1 - have / needed)
    return Forecast(
        compute_seconds=compute,
        seconds=max(compute, load.size_bytes / have),
        upload_needed=needed,
        peak_spool=min(load.size_bytes, in_hand + int(backlog)),
    )
