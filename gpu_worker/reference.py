"""What the whole model itself says of a sample: the other side of every comparison.

States come from transformers' own `output_hidden_states=True`, not from our hooks on the blocks. Its
last entry is after the final norm; the state before it is what goes into that norm. What a model leaves out of
its answer, the embeddings, is seen at its first block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gpu_worker.structure import DecoderParts
from gpu_worker.taps import Selection
from hiddenfeed.errors import ConfigError


class Reference:
    """An untruncated model, asked for one sample at a time."""

    def __init__(self, model: nn.Module, parts: DecoderParts) -> None:
        """`model` is the whole model or its decoder; `parts` are of the same."""
        self._model: Any = model
        self._parts = parts
        self._num_blocks = parts.num_blocks
        self.device = parts.device

    def states(self, ids: torch.Tensor, selection: Selection) -> torch.Tensor:
        """float32 [n, K', H] of token ids int64 [1, n], alone: the taps, then the final state if there is one.

        Raises ConfigError for states of different shapes, and whatever the model raises.
        """
        with self._watched() as seen, torch.inference_mode():
            output = self._model(input_ids=ids.to(self.device), output_hidden_states=True, use_cache=False)
        hidden = seen.from_embeddings_on(output.hidden_states)
        # A model without a norm is one whose last block gives what its head takes.
        last = hidden[-1] if seen.before_norm is None else seen.before_norm
        states = [last if tap == self._num_blocks else hidden[tap] for tap in selection.taps]
        if selection.final_state != "none":
            states.append(last if selection.final_state == "pre" else hidden[-1])
        odd = next((state for state in states if state.dim() != 3 or state.shape != states[-1].shape), None)
        if odd is not None:
            raise ConfigError(
                f"the model's state has shape {list(odd.shape)} where [batch, tokens, width] was expected, as everywhere else; "
                "such models are not supported"
            )
        return torch.stack([state[0].float() for state in states], dim=1)

    @contextmanager
    def _watched(self) -> Iterator[_Seen]:
        """Have the first block and the final norm leave what goes through them."""
        seen, first, norm = _Seen(), self._parts.blocks[0], self._parts.norm
        handles = [
            first.register_forward_pre_hook(seen.note_input, with_kwargs=True),
            first.register_forward_hook(seen.note_output),
        ]
        if norm is not None:
            handles.append(norm.register_forward_pre_hook(seen.note_norm, with_kwargs=True))
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()


class _Seen:
    """States that went through a model during one pass; of the norm's the last, as embeddings may go through it too."""

    def __init__(self) -> None:
        self.embeddings: torch.Tensor | None = None
        self.first_output: torch.Tensor | None = None
        self.before_norm: torch.Tensor | None = None

    def note_input(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.embeddings = _state(args, kwargs).clone()

    def note_output(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.first_output = (output[0] if isinstance(output, tuple | list) else output).clone()

    def note_norm(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.before_norm = _state(args, kwargs)

    def from_embeddings_on(self, hidden: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """What the model says of itself, as most models say it: n + 1 states, the embeddings first.

        State-space models leave the embeddings out and tell the last state twice, before and after the norm.
        """
        assert self.embeddings is not None
        assert self.first_output is not None
        if torch.equal(hidden[0], self.embeddings) or not torch.equal(hidden[0], self.first_output):
            return hidden
        return [self.embeddings, *hidden[:-2], hidden[-1]]


def _state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    state: torch.Tensor = args[0] if args else next(iter(kwargs.values()))
    return state
