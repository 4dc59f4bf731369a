"""What the whole model itself says of a sample: the other side of every comparison.

States come from transformers' own `output_hidden_states=True`, not from our hooks on the blocks. Its
last entry is after the final norm; the state before it is what goes into that norm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gpu_worker.structure import DecoderParts
from gpu_worker.taps import Selection


class Reference:
    """An untruncated model, asked for one sample at a time."""

    def __init__(self, model: nn.Module, parts: DecoderParts) -> None:
        """`model` is the whole model or its decoder; `parts` are of the same."""
        self._model: Any = model
        self._parts = parts
        self._num_blocks = parts.num_blocks
        self.device = parts.device

    def states(self, ids: torch.Tensor, selection: Selection) -> torch.Tensor:
        """float32 [n, K', H] of token ids int64 [1, n], alone: the taps, then the final state if there is one."""
        before_norm: list[torch.Tensor] = []
        handle = self._watch_norm(before_norm)
        try:
            with torch.inference_mode():
                output = self._model(
                    input_ids=ids.to(self.device), output_hidden_states=True, use_cache=False
                )
        finally:
            if handle is not None:
                handle.remove()
        hidden = output.hidden_states
        # A model without a norm that we know is taken to have none.
        last = before_norm[-1] if before_norm else hidden[-1]
        states = [last if tap == self._num_blocks else hidden[tap] for tap in selection.taps]
        if selection.final_state != "none":
            states.append(last if selection.final_state == "pre" else hidden[-1])
        return torch.stack([state[0].float() for state in states], dim=1)

    def _watch_norm(self, seen: list[torch.Tensor]) -> Any:
        """Have the final norm leave what goes into it in `seen`."""
        norm = self._parts.norm
        if norm is None:
            return None

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen.append(args[0] if args else next(iter(kwargs.values())))

        return norm.register_forward_pre_hook(hook, with_kwargs=True)
