"""What the producer says of rows and proofs, as lines of text; decides nothing and reads nothing."""

from __future__ import annotations

from hiddenfeed.proof import Proof
from hiddenfeed.words import count_text, size_text
from producer.tally import Tally

_REASONS_SHOWN = 8


def tally_lines(tally: Tally) -> list[str]:
    """What became of the rows, and why some were skipped."""
    lines = [
        f"{count_text(tally.rows, 'row')}: {count_text(tally.samples, 'sample')}, {tally.skipped:,} skipped; "
        f"{count_text(tally.tokens, 'token')}, "
        f"{tally.loss_tokens / max(1, tally.tokens):.0%} of them to be predicted"
    ]
    if tally.truncated:
        were = "was" if tally.truncated == 1 else "were"
        lines.append(
            f"{count_text(tally.truncated, 'sample')} {were} longer than --max-length and lost the end"
        )
    if tally.undoubled:
        lines.append(
            f"{count_text(tally.undoubled, 'sample')} began with BOS or ended with EOS more than once; one of each is kept"
        )
    missing = sorted(tally.left_out.values(), key=lambda reason: (-reason.rows, reason.source_row))
    lines += [f"not shown by the chat template: {reason}" for reason in missing]
    if tally.skipped:
        lines.append(
            "skipped by filter: "
            + ", ".join(f"{rows:,} {cause}" for cause, rows in tally.causes.most_common())
        )
    reasons = tally.reasons()
    lines += [f"skipped: {reason}" for reason in reasons[:_REASONS_SHOWN]]
    if len(reasons) > _REASONS_SHOWN:
        lines.append(
            f"skipped: {sum(reason.rows for reason in reasons[_REASONS_SHOWN:]):,} for {count_text(len(reasons) - _REASONS_SHOWN, 'other reason')}"
        )
    return lines


def proof_lines(proof: Proof, url: str) -> list[str]:
    """A complete run in numbers."""
    lines = [
        f"run {proof.run_id} is complete: {count_text(proof.rows, 'row')} = {proof.stored:,} stored + {proof.skipped:,} skipped + "
        f"{proof.quarantined:,} quarantined",
        f"{count_text(proof.batches, 'file')}, {count_text(proof.tokens, 'token')}, {size_text(proof.size_bytes)} in {url.rstrip('/')}/{proof.run_id}",
    ]
    if proof.quarantined:
        lines.append("why samples were quarantined is in quarantine.parquet")
    return lines
