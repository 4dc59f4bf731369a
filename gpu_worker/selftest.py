"""The start-up self-test: what the truncated model gives for a padded batch, against the whole model.

Run once for every model that is loaded, with samples of the run itself. It finds a model whose
blocks are not what they seem, a tap that is one off, a norm too much and a leak through padding
before a single state is stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gpu_worker.agreement import Tolerance, compare
from gpu_worker.device_loop import pack
from gpu_worker.guards import state_names
from gpu_worker.structure import DecoderParts
from gpu_worker.taps import Selection, StateRows, TapModel
from gpu_worker.tokens import TokenBatch
from hiddenfeed.errors import ConfigError

#: Samples, and tokens of each: enough for padding to matter, little enough to take no time.
SAMPLES, TOKENS = 3, 192


def probe(batch: TokenBatch) -> TokenBatch:
    """The starts of a few samples of different lengths, longest first, as one micro-batch."""
    spread = np.linspace(0, batch.samples - 1, min(SAMPLES, batch.samples)).astype(int)
    longest = sorted(spread.tolist(), key=lambda sample: -int(batch.lengths[sample]))
    # Unequal on purpose, so that there is padding even if all samples are long.
    cuts = [
        max(1, min(int(batch.lengths[sample]), TOKENS - 50 * place)) for place, sample in enumerate(longest)
    ]
    ids = [batch.input_ids[batch.offsets[sample] :][:cut] for sample, cut in zip(longest, cuts, strict=True)]
    return TokenBatch(
        batch_id=batch.batch_id,
        source_rows=batch.source_rows[longest],
        input_ids=np.concatenate(ids),
        loss_mask=np.zeros(sum(cuts), np.uint8),
        offsets=np.concatenate([[0], np.cumsum(cuts)]).astype(np.int64),
        micro_batches=np.array([0, len(longest)]),
    )


class SelfTest:
    """Made while the model is whole, run once it is truncated."""

    def __init__(self, parts: DecoderParts, selection: Selection, samples: TokenBatch) -> None:
        """Computes the reference with transformers' own selection, one sample at a time."""
        self._selection, self._samples = selection, samples
        self._device = next(parts.decoder.parameters()).device
        self._num_blocks = parts.num_blocks
        # Kept aside: truncation takes it out of the model.
        self._norm: nn.Module = parts.norm or nn.Identity()
        self._reference = [self._forward(parts.decoder, sample) for sample in range(samples.samples)]

    @torch.inference_mode()
    def _forward(self, decoder: nn.Module, sample: int) -> torch.Tensor:
        """float32 [n, K', H] of one sample; the state after the last block is there after the final norm."""
        ids = pack(self._samples, sample, sample + 1).ids.to(self._device)
        output: Any = decoder(input_ids=ids, output_hidden_states=True, use_cache=False)
        states = [output.hidden_states[tap][0] for tap in self._selection.taps]
        if self._selection.final_state != "none":
            states.append(output.last_hidden_state[0])
        return torch.stack(states, dim=1).float()

    @torch.inference_mode()
    def run(self, model: TapModel, dtype: torch.dtype, tolerance: Tolerance) -> npt.NDArray[np.float64]:
        """Median norm of every state [K'], as stored; raises ConfigError if a state is not the reference's."""
        rows = self._computed(model, dtype)
        states = self._as_reference(rows)
        reference = torch.cat(self._reference)
        names = state_names(self._selection.taps, self._selection.final_state)
        for name, state in zip(names, reference.unbind(1), strict=True):
            if not bool(torch.isfinite(state).all()):
                raise ConfigError(
                    f"the model gives values that are not finite for {name}: its weights are broken"
                )
        agreement = compare(states.cpu().numpy(), reference.cpu().numpy(), median=tolerance.median)
        worst = agreement.worst(tolerance)
        if worst is not None:
            raise ConfigError(
                f"the self-test failed: {names[worst]} of a padded batch is not what the whole model gives for each "
                f"sample alone (cosine {agreement.cosines[worst]:.5f}, at least {tolerance.cosine}; relative error "
                f"{agreement.errors[worst]:.2g}, at most {tolerance.error})"
            )
        return self._median_norms(rows)

    def _computed(self, model: TapModel, dtype: torch.dtype) -> StateRows:
        micro_batch = pack(self._samples, 0, self._samples.samples)
        tokens, hidden = micro_batch.tokens, model.hidden_size
        final = self._selection.final_state != "none"
        rows = StateRows(
            torch.empty(tokens, len(self._selection.taps), hidden, dtype=dtype, device=self._device),
            torch.empty(tokens, hidden, dtype=dtype, device=self._device) if final else None,
            None if micro_batch.real is None else micro_batch.real.to(self._device),
        )
        model.forward(micro_batch.ids.to(self._device), rows)
        return rows

    def _as_reference(self, rows: StateRows) -> torch.Tensor:
        """Our states, those after the last block normed as transformers returns them."""
        dtype = next(self._norm.parameters(), rows.hidden_states).dtype
        states = list(rows.hidden_states.unbind(1))
        if self._selection.taps[-1] == self._num_blocks:
            states[-1] = self._norm(states[-1].to(dtype))
        if rows.final is not None:
            states.append(
                self._norm(rows.final.to(dtype)) if self._selection.final_state == "pre" else rows.final
            )
        return torch.stack([state.float() for state in states], dim=1)

    def _median_norms(self, rows: StateRows) -> npt.NDArray[np.float64]:
        """As the guards of a batch compute them: without the first token of a sample."""
        inner = torch.ones(len(rows.hidden_states), dtype=torch.bool)
        inner[torch.from_numpy(self._samples.offsets[:-1])] = False
        states = [*rows.hidden_states.unbind(1), *([] if rows.final is None else [rows.final])]
        norms = torch.stack(
            [torch.linalg.vector_norm(state.float(), dim=-1) for state in states], dim=1
        ).cpu()
        kept = norms[inner] if bool(inner.any()) else norms
        return kept.median(dim=0).values.double().numpy()
