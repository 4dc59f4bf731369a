"""Train a drafter in the manner of EAGLE-3 or DFlash on a run: small examples that work, no products.

    python examples/train_drafter.py s3://my-bucket/states/my-run-0123456789ab
    python examples/train_drafter.py RUN --kind dflash --device cuda --tokens 16384 --loaders 4 --steps 5000

Needs `pip install torch` beside hiddenfeed. What real ones have beyond this: several layers, the target's own
embedding and head (frozen), and for EAGLE-3 the target's final states for soft labels (make the run with
`--final-state post`) and several steps of its own guesses in a row.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader, default_convert

from hiddenfeed import TrainingBatch, TrainingBatches, open_run
from hiddenfeed.errors import HiddenfeedError


class EagleDrafter(nn.Module):
    """Sees the states of token i and token i + 1 itself, and predicts token i + 2; causal."""

    def __init__(self, taps: int, hidden: int, vocabulary: int, width: int) -> None:
        super().__init__()
        self.fuse = nn.Linear(taps * hidden, width)
        self.embed = nn.Embedding(vocabulary, width)
        self.join = nn.Linear(2 * width, width)
        self.block = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary))

    def forward(self, states: Tensor, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """states [B, N, K, H], ids and mask [B, N] -> logits [B, N-2, V], their targets and weights [B, N-2]."""
        fused = self.fuse(states[:, :-2].flatten(2))
        joined = self.join(torch.cat([fused, self.embed(ids[:, 1:-1])], dim=-1))
        causal = nn.Transformer.generate_square_subsequent_mask(joined.shape[1], joined.device)
        # Padding lies at the end: a causal mask keeps it out of sight of all before it.
        logits = self.head(self.block(joined, src_mask=causal, is_causal=True))
        # The mask is aligned with the tokens, so it is shifted with them.
        return logits, ids[:, 2:], mask[:, 2:]


class DFlashDrafter(nn.Module):
    """Sees the states of all tokens before an anchor and the anchor itself, and predicts a block behind it at once."""

    def __init__(
        self, taps: int, hidden: int, vocabulary: int, width: int, block: int = 8, anchors: int = 16
    ) -> None:
        super().__init__()
        self.anchors, self.heads = anchors, max(1, width // 64)
        self.fuse = nn.Linear(taps * hidden, width)
        self.embed = nn.Embedding(vocabulary, width)
        #: What stands at a place of the block: nothing at the anchor's, a mask token at the others.
        self.places = nn.Parameter(torch.randn(block, width) / width**0.5)
        self.attention = nn.MultiheadAttention(width, self.heads, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary))

    def forward(self, states: Tensor, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """states [B, N, K, H], ids and mask [B, N] -> logits [B, A, P, V], their targets and weights [B, A, P]."""
        block, device, tokens = len(self.places), ids.device, ids.shape[1]
        # Anchors at random, where the target would generate the token after them.
        chance = pad(mask[:, 1:].float(), (0, 1)) + 1e-6
        anchors = torch.multinomial(chance, min(self.anchors, tokens))
        spots = anchors[..., None] + torch.arange(block, device=device)
        blocks = self.places.expand(*spots.shape, -1).clone()
        blocks[:, :, 0] += self.embed(ids.gather(1, anchors))
        queries = (blocks + _waves(spots, blocks.shape[-1])).flatten(1, 2)
        context = self.fuse(states.flatten(2)) + _waves(
            torch.arange(tokens, device=device), queries.shape[-1]
        )
        # A place of a block sees the states of what came before its anchor, and its own block in both directions.
        before = torch.arange(tokens, device=device) < anchors[..., None]
        alike = torch.eye(anchors.shape[1], dtype=torch.bool, device=device).expand(len(ids), -1, -1)
        seen = torch.cat([before, alike.repeat_interleave(block, dim=2)], dim=2)
        hidden = ~seen.repeat_interleave(block, dim=1).repeat_interleave(self.heads, dim=0)
        keys = torch.cat([context, queries], dim=1)
        x = queries + self.attention(queries, keys, keys, attn_mask=hidden, need_weights=False)[0]
        x = x + self.widen(self.norm(x))
        logits = self.head(x.unflatten(1, (-1, block))[:, :, 1:])
        places = spots[:, :, 1:].flatten(1)
        targets, weights = (pad(which, (0, block)).gather(1, places) for which in (ids, mask))
        shape = logits.shape[:-1]
        return logits, targets.view(shape), weights.view(shape)


def _waves(positions: Tensor, width: int) -> Tensor:
    """Sines and cosines of positions [...] -> [..., width]."""
    rates = torch.exp(torch.arange(0, width, 2, device=positions.device) * (-9.2 / width))
    angles = positions[..., None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def loss_and_accuracy(logits: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(loss, share of tokens guessed right) over the tokens that the target itself would generate."""
    weights = mask.float()
    losses = cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none").view_as(weights)
    count = weights.sum().clamp(min=1)
    return (losses * weights).sum() / count, ((logits.argmax(-1) == targets) * weights).sum() / count


def endless(batches: TrainingBatches, loaders: int) -> Iterator[TrainingBatch]:
    """Epoch after epoch, tensors in place of arrays; read ahead by threads, or by `loaders` processes."""
    epoch = 0
    while True:
        batches.set_epoch(epoch)
        if loaders:
            # batch_size=None: they are batches already. Processes begin anew with each epoch, so they know it.
            yield from DataLoader(batches, batch_size=None, num_workers=loaders)
        else:
            yield from map(default_convert, batches)
        epoch += 1


def pace(step: int, steps: int, tokens: int, seconds: float) -> str:
    """`, 5,210 tokens/s, 0:01:05 left`; nothing after the first step, which opens files and warms up."""
    if step == 1:
        return ""
    left = timedelta(seconds=round(seconds / (step - 1) * (steps - step)))
    return f", {tokens / seconds:,.0f} tokens/s, {left} left"


KINDS = {"eagle3": EagleDrafter, "dflash": DFlashDrafter}


def main() -> None:
    """Train, and say how it goes."""
    parser = argparse.ArgumentParser(description="Train a small drafter on a run.")
    parser.add_argument("run", help="s3://bucket/prefix/<run id> or a folder")
    parser.add_argument("--kind", choices=KINDS, default="eagle3", help="which drafter (default eagle3)")
    parser.add_argument("--vocabulary", type=int, help="of the target; its configuration says when not given")
    parser.add_argument("--width", type=int, default=256, help="of the drafter (default 256)")
    parser.add_argument("--tokens", type=int, default=1024, help="padded tokens of a batch (default 1024)")
    parser.add_argument("--steps", type=int, default=200, help="batches to train on (default 200)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default cpu)")
    parser.add_argument(
        "--loaders", type=int, default=0, help="processes that read; 0 reads in threads (default)"
    )
    asked = parser.parse_args()

    run = open_run(asked.run)
    info = run.info()
    if asked.vocabulary is None:
        from transformers import AutoConfig

        asked.vocabulary = AutoConfig.from_pretrained(info.model).get_text_config().vocab_size
    torch.manual_seed(0)
    drafter = KINDS[asked.kind](len(info.taps), info.hidden_size, asked.vocabulary, asked.width)
    drafter.to(asked.device)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=1e-3)
    print(f"{info.run_id}: {info.samples_stored:,} samples, taps {info.taps} of {info.model}")
    batches = endless(TrainingBatches(run, tokens=asked.tokens), asked.loaders)
    tokens, begun = 0, 0.0
    for step in range(1, asked.steps + 1):
        batch = next(batches)
        # The bits are bfloat16, for which numpy has no name.
        states = batch.hidden_states.view(getattr(torch, info.dtype)).to(asked.device).float()
        guessed = drafter(states, batch.input_ids.to(asked.device), batch.loss_mask.to(asked.device))
        loss, right = loss_and_accuracy(*guessed)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        if step == 1:
            begun = time.monotonic()
        else:
            tokens += int(batch.lengths.sum())
        if step in (1, 5) or step % 20 == 0 or step == asked.steps:
            said = f"loss {loss.item():.3f}, {right.item():.0%} of the tokens guessed right"
            took = time.monotonic() - begun
            print(
                f"step {step:,} of {asked.steps:,}: {said}{pace(step, asked.steps, tokens, took)}", flush=True
            )


if __name__ == "__main__":
    try:
        main()
    except HiddenfeedError as error:
        sys.exit(f"error: {error}")
