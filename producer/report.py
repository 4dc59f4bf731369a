"""What the producer says of rows and proofs, as lines of text; decides nothing and reads nothing."""

from __future__ import annotations

from hiddenfeed.proof import Proof
from hiddenfeed.words import size_text
from producer.tally import Tally

_REASONS_SHOWN = 8


def tally_lines(tally: Tally) -> list[str]:
    """What became of the rows, and why some were skipped."""
    lines = [
        f"{tally.rows:,} rows: {tally.samples:,} samples, {tally.skipped:,} skipped; {tally.tokens:,} tokens, "
        f"{tally.loss_tokens / max(1, tally.tokens):.0%} of them to be predicted"
    ]
    if tally.truncated:
        lines.append(f"{tally.truncated:,} samples were longer than --max-length and lost their end")
    if tally.skipped:
        lines.append(
            "skipped by filter: "
            + ", ".join(f"{rows:,} {cause}" for cause, rows in tally.causes.most_common())
        )
    reasons = tally.reasons()
    lines += [f"skipped: {reason}" for reason in reasons[:_REASONS_SHOWN]]
    if len(reasons) > _REASONS_SHOWN:
        lines.append(
            f"skipped: {sum(reason.rows for reason in reasons[_REASONS_SHOWN:]):,} for other reasons"
        )
    return lines


def proof_lines(proof: Proof, url: str) -> list[str]:
    """A complete run in numbers."""
    lines = [
        f"run {proof.run_id} is complete: {proof.rows:,} rows = {proof.stored:,} stored + {proof.skipped:,} skipped + "
        f"{proof.quarantined:,} quarantined",
        f"{proof.batches:,} files, {proof.tokens:,} tokens, {size_text(proof.size_bytes)} in {url.rstrip('/')}/{proof.run_id}",
    ]
    if proof.quarantined:
        lines.append("why samples were quarantined is in quarantine.parquet")
    return lines
