"""What the producer says of rows, plans and proofs, as lines of text; decides nothing and reads nothing."""

from __future__ import annotations

from hiddenfeed.batch_layout import HEADER_STEP_BYTES
from hiddenfeed.proof import Proof
from hiddenfeed.words import size_text
from producer.prepare import Prepared
from producer.recipe import Recipe
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
    reasons = tally.reasons()
    lines += [f"skipped: {reason}" for reason in reasons[:_REASONS_SHOWN]]
    if len(reasons) > _REASONS_SHOWN:
        lines.append(
            f"skipped: {sum(reason.rows for reason in reasons[_REASONS_SHOWN:]):,} for other reasons"
        )
    return lines


def plan_lines(recipe: Recipe, prepared: Prepared) -> list[str]:
    """The plan in numbers."""
    plan, per_token = prepared.plan, recipe.bytes_per_token
    sizes = [plan.batch(batch_id).tokens * per_token + HEADER_STEP_BYTES for batch_id in range(plan.batches)]
    return [
        f"{plan.micro_batches:,} micro-batches of at most {recipe.plan.micro_batch_tokens:,} tokens, "
        f"{plan.waste:.2%} padding, longest sample {plan.longest:,} tokens",
        f"{plan.batches:,} batch files of {size_text(min(sizes))} to {size_text(max(sizes))}, {size_text(sum(sizes))} in all "
        f"({per_token:,} bytes a token, {plan.tokens / len(plan.lengths):,.0f} tokens a sample)",
    ]


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
