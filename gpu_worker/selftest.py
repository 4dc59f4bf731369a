"""The start-up self-test: what the truncated model gives for a padded batch, against the whole model.

Run once for every model that is loaded, with samples of the run itself. It finds a model whose
blocks are not what they seem, a tap that is one off, a norm too much and a leak through padding
before a single state is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from common.checks import state_names
from gpu_worker.agreement import FIT_TOKENS, Agreement, Tolerance, compare
from gpu_worker.micro_batch import pack
from gpu_worker.reference import Reference
from gpu_worker.structure import DecoderParts
from gpu_worker.taps import Selection, StateRows, TapModel
from gpu_worker.tokens import TokenBatch
from hiddenfeed.errors import ConfigError
from hiddenfeed.words import count_text

#: Samples, and tokens of each: enough for padding to matter, little enough to take no time.
SAMPLES, TOKENS = 3, 192
#: What the code of a model raises when it is run in a way that it does not support.
_MODEL_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, LookupError)


@contextmanager
def must_run(name: str) -> Iterator[None]:
    """Say in one sentence that a model does not run; mistakes of ours, which assert, are left as they are."""
    try:
        yield
    except _MODEL_ERRORS as error:
        text = " ".join(str(error).split())[:300] or type(error).__name__
        raise ConfigError(f"model {name} cannot be run as hiddenfeed does: {text}") from error


def probe(batch: TokenBatch, vocabulary: int, positions: int | None) -> TokenBatch:
    """The starts of a few samples of different lengths, longest first, as one micro-batch.

    Only of samples whose ids the model knows, of `FIT_TOKENS` or more where there are some; raises ConfigError if the
    model knows none.
    """
    known = (batch.input_ids >= 0) & (batch.input_ids < vocabulary)
    usable = np.flatnonzero(np.logical_and.reduceat(known, batch.offsets[:-1]))
    if not len(usable):
        raise ConfigError(
            f"no sample of batch {batch.batch_id} has only token ids below the model's {vocabulary}: "
            "the tokenizer and the model do not belong together"
        )
    fit = usable[batch.lengths[usable] >= FIT_TOKENS]
    if len(fit) > 1:  # One alone would not be padded.
        usable = fit
    spread = usable[np.linspace(0, len(usable) - 1, min(SAMPLES, len(usable))).astype(int)]
    longest = sorted(spread.tolist(), key=lambda sample: -int(batch.lengths[sample]))
    most = min(TOKENS, positions or TOKENS)
    # Unequal on purpose, so that there is padding even if all samples are long.
    cuts = [
        max(1, min(int(batch.lengths[sample]), most - 50 * place)) for place, sample in enumerate(longest)
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


def probe_among(batches: Iterable[TokenBatch], vocabulary: int, positions: int | None) -> TokenBatch:
    """The probe of the first batch that has samples for one: those of a batch may all be such that they are set aside.

    Raises ConfigError if none has.
    """
    refused: list[ConfigError] = []
    for batch in batches:
        try:
            return probe(batch, vocabulary, positions)
        except ConfigError as error:
            refused.append(error)
    if not refused:
        raise ConfigError("none of the run's batches can be read, so there is nothing to test the model with")
    others = f" (looked at were {count_text(len(refused), 'batch', 'batches')})" if len(refused) > 1 else ""
    raise ConfigError(f"{refused[0]}{others}")


@dataclass(frozen=True)
class SelfTestResult:
    """What a self-test that passed has seen."""

    #: float64 [K'], median norm of every state as stored, without the first token of a sample.
    norms: npt.NDArray[np.float64]
    agreement: Agreement


class SelfTest:
    """Made while the model is whole, run once it is truncated."""

    def __init__(
        self, parts: DecoderParts, selection: Selection, samples: TokenBatch, name: str = "of the test"
    ) -> None:
        """Asks the whole model, called `name` in messages, for the reference, one sample at a time.

        Raises ConfigError if it cannot be run.
        """
        self._selection, self._samples, self._name = selection, samples, name
        reference = Reference(parts.decoder, parts)
        self._device = reference.device
        alone = [pack(samples, sample, sample + 1).ids for sample in range(samples.samples)]
        with must_run(name):
            self._reference = torch.cat([reference.states(ids, selection) for ids in alone])

    @torch.inference_mode()
    def run(self, model: TapModel, dtype: torch.dtype, tolerance: Tolerance) -> SelfTestResult:
        """What was found; raises ConfigError if a state is not the reference's."""
        with must_run(self._name):
            rows = self._computed(model, dtype)
        finals = [] if rows.final is None else [rows.final]
        states = torch.stack([state.float() for state in (*rows.hidden_states.unbind(1), *finals)], dim=1)
        names = state_names(self._selection.taps, self._selection.final_state)
        for name, state in zip(names, self._reference.unbind(1), strict=True):
            if not bool(torch.isfinite(state).all()):
                raise ConfigError(
                    f"the model gives values that are not finite for {name}: its weights are broken"
                )
        agreement = compare(states.cpu().numpy(), self._reference.cpu().numpy(), median=tolerance.median)
        worst = agreement.worst(tolerance)
        if worst is not None:
            raise ConfigError(
                f"the self-test failed: {names[worst]} of a padded batch is not what the whole model gives for each "
                f"sample alone (cosine {agreement.cosines[worst]:.5f}, at least {tolerance.cosine}; relative error "
                f"{agreement.errors[worst]:.2g}, at most {tolerance.error})"
            )
        return SelfTestResult(self._median_norms(states), agreement)

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

    def _median_norms(self, states: torch.Tensor) -> npt.NDArray[np.float64]:
        """As the guards of a batch compute them: without the first token of a sample."""
        inner = torch.ones(len(states), dtype=torch.bool)
        inner[torch.from_numpy(self._samples.offsets[:-1])] = False
        norms = torch.linalg.vector_norm(states, dim=-1).cpu()
        kept = norms[inner] if bool(inner.any()) else norms
        medians: npt.NDArray[np.float64] = kept.median(dim=0).values.double().numpy()
        return medians
