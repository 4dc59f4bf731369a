"""What the command line says of runs and samples, as lines of text; decides nothing and reads nothing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import numpy as np

from hiddenfeed.reader import RunInfo
from hiddenfeed.run_list import RunLine
from hiddenfeed.samples import Sample
from hiddenfeed.skipped import SkipReason
from hiddenfeed.tidy import Stray
from hiddenfeed.verify import Verification
from hiddenfeed.words import count_text, size_text

#: Reasons of skipped rows that are named.
_REASONS_SHOWN = 5


def run_lines(info: RunInfo, reasons: Sequence[SkipReason] = ()) -> list[str]:
    """A run: what it is, how far it is, why rows were skipped, where its files are."""
    left = info.batches - info.batches_stored - info.batches_quarantined
    state = "complete, proved" if info.complete else f"{count_text(left, 'batch', 'batches')} to go"
    if not info.complete and not left:
        state = "all batches are there, the proof is not written yet"
    final = "" if info.final_norm == "none" else f", with the state {info.final_norm} the final norm"
    rows = [
        ("run", info.run_id),
        ("model", f"{info.model} ({count_text(info.num_blocks, 'block')}, hidden size {info.hidden_size})"),
        ("taps", ", ".join(map(str, info.taps))),
        ("", info.taps_meaning),
        ("stored as", f"{info.dtype}{final}"),
        ("state", state),
        ("batches", f"{info.batches_stored:,} of {info.batches:,}"),
        ("samples", f"{info.samples_stored:,} of {info.samples:,}"),
        ("tokens", f"{info.tokens_stored:,} of {info.tokens:,}"),
        ("skipped", f"{count_text(info.skipped, 'input row', 'input rows')}, see skipped.parquet"),
        *(("", str(reason)) for reason in reasons[:_REASONS_SHOWN]),
        ("quarantined", f"{count_text(info.batches_quarantined, 'batch', 'batches')}"),
        ("size", size_text(info.size_bytes)),
        ("files", f"{info.url}/batches/000000.safetensors …"),
    ]
    return [f"{name:12} {text}" for name, text in rows]


def list_lines(url: str, runs: Sequence[RunLine]) -> list[str]:
    """The runs of a store, one a line."""
    if not runs:
        return [f"no runs in {url}"]
    planned = [count_text(run.batches, "batch", "batches") for run in runs]
    width, wide = max(len(run.run_id) for run in runs), max(map(len, planned))
    return [
        f"{run.run_id:{width}}  {'complete' if run.complete else 'going on':9} "
        f"{run.stored:>6,} of {batches:{wide}}  {size_text(run.size_bytes):>10}  {run.model}"
        for run, batches in zip(runs, planned, strict=True)
    ]


def verification_lines(verification: Verification) -> list[str]:
    """The proof in words."""
    proof = verification.proof
    lines = [
        f"run {proof.run_id} is complete: {count_text(proof.rows, 'input row', 'input rows')} = {proof.stored:,} stored "
        f"+ {proof.skipped:,} skipped + {proof.quarantined:,} quarantined",
        f"{count_text(proof.batches, 'batch file', 'batch files')}, {count_text(proof.tokens, 'token')}, {size_text(proof.size_bytes)}",
    ]
    if verification.bytes_read:
        lines.append(f"every byte was read ({size_text(verification.bytes_read)}), and every checksum agrees")
    if not verification.finished:
        lines.append("complete.json is not written yet")
    return lines


def sample_lines(sample: Sample, position: int, limit: int | None) -> list[str]:
    """A sample token by token: id, mask, and the Euclidean norm of the state at every tap; `limit` tokens at most."""
    norms = np.linalg.norm(sample.float32(), axis=2)
    heads = [f"|tap {tap}|" for tap in sample.taps]
    if sample.raw_final is not None:
        norms = np.concatenate([norms, np.linalg.norm(sample.final_float32(), axis=1)[:, None]], axis=1)
        heads.append(f"|{sample.final_norm}-norm|")
    shown = len(sample) if limit is None else min(limit, len(sample))
    lines = [
        f"sample {sample.sample_id}, position {position}, input row {sample.source_row}: "
        f"{count_text(len(sample), 'token', 'tokens')}, {int(sample.loss_mask.sum()):,} in the loss",
        f"{'#':>6} {'token':>8} {'mask':>4} " + " ".join(f"{head:>11}" for head in heads),
    ]
    for place in range(shown):
        numbers = " ".join(f"{norm:11.3f}" for norm in norms[place])
        lines.append(f"{place:6} {sample.input_ids[place]:8} {sample.loss_mask[place]:4} {numbers}")
    if shown < len(sample):
        lines.append(f"… {len(sample) - shown:,} more; --all shows them")
    lines.append(f"{'median':>20} " + " ".join(f"{norm:11.3f}" for norm in np.median(norms, axis=0)))
    return lines


def tidy_lines(strays: Sequence[Stray], url: str, *, removed: bool) -> list[str]:
    """What does not belong into the run at `url`, what was done about it, and what to do next."""
    if not strays:
        return [f"nothing is out of place in {url}"]
    lines = []
    for stray in strays:
        what = "removed" if removed and stray.removable else "found"
        reason = stray.reason.partition("; `hiddenfeed tidy")[0]
        lines.append(f"{what:8} {reason} ({size_text(stray.size_bytes)})")
    root = url.rpartition("/")[0]
    for stray in strays:
        if not stray.removable:
            place = shlex.quote(f"{root}/{stray.key}")
            command = f"aws s3 rm {place}" if url.startswith("s3://") else f"rm -- {place}"
            lines.append(f"by hand  {command}   (a name that hiddenfeed does not touch)")
    again = sorted({stray.batch_id for stray in strays if stray.batch_id is not None})
    if not removed:
        lines.append("--remove deletes what was found; nothing was changed")
    elif again:
        named = ", ".join(map(str, again[:10])) + (", …" if len(again) > 10 else "")
        lines.append(
            f"to be extracted again: {count_text(len(again), 'batch', 'batches')} ({named}); "
            f"`python -m producer wait {url.rpartition('/')[2]}` sees to it"
        )
    return lines
