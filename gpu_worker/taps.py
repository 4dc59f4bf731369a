"""The model as the device loop sees it: token ids in, the selected states of real tokens out.

Tap t is the residual stream after t decoder blocks: 0 = embeddings, n = after the last of n blocks
and before the final norm. States are taken where the blocks hand them over, so no other state is
kept alive, and each is written straight to its place in the output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gpu_worker.structure import DecoderParts, text_config
from hiddenfeed.errors import ConfigError
from hiddenfeed.words import count_text

FINAL_STATES = ("none", "pre", "post")


@dataclass(frozen=True)
class Selection:
    """What to keep of each token."""

    #: Strictly increasing, each 0..n.
    taps: tuple[int, ...]
    #: `none`; `pre` or `post`: the state for the language-model head, on which side of the final norm.
    final_state: str = "none"

    def depth(self, num_blocks: int) -> int:
        """Blocks that must run; raises ConfigError for a tap that the model has not got."""
        if self.taps[-1] > num_blocks or self.taps[0] < 0:
            raise ConfigError(
                f"taps {list(self.taps)} are not all in 0..{num_blocks} of a model with {count_text(num_blocks, 'block')}"
            )
        return num_blocks if self.final_state != "none" else self.taps[-1]


@dataclass
class StateRows:
    """Where the states of one micro-batch go: one row per real token, on the model's device."""

    #: [n, K, H] in the stored dtype.
    hidden_states: torch.Tensor
    #: [n, H] in the stored dtype; None if the run keeps no final state.
    final: torch.Tensor | None
    #: int64 [n], places of the real tokens in the flattened [B · L]; None if there is no padding.
    real: torch.Tensor | None


class TapModel:
    """A decoder that writes its selected states into given rows. For one thread at a time."""

    def __init__(self, parts: DecoderParts, selection: Selection) -> None:
        """Installs the hooks that take the states; raises ConfigError for taps the model has not got."""
        config = text_config(parts.decoder)
        self.parts = parts
        self.selection = selection
        self.num_blocks = parts.num_blocks
        self.hidden_size = int(config.hidden_size)
        #: Token ids are below this.
        self.vocabulary = parts.vocabulary
        #: Longest sample that has positions; None if the configuration does not say.
        self.max_positions = parts.positions
        self.is_mixture = is_mixture(config)
        self.device, self.compute_dtype = parts.device, parts.dtype
        self._rows: StateRows | None = None
        self._written = 0
        self._depth = selection.depth(parts.num_blocks)
        self._handles = self._install_hooks()

    def truncate(self) -> None:
        """Drop all blocks and the norm that no selected state needs."""
        if self.selection.final_state != "post":
            self.parts.truncate(self._depth)

    def release(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @torch.inference_mode()
    def forward(self, ids: torch.Tensor, rows: StateRows) -> None:
        """Run the decoder over int64 [B, L], padded on the right, and fill `rows`.

        There is no mask and there are no position ids: causal attention never looks to the right, so
        padding there changes nothing, and attention runs its fastest kernel. On CUDA this returns
        before the device has finished.
        """
        assert self._rows is None, "one thread at a time"
        self._rows, self._written = rows, 0
        try:
            output = self.parts.decoder(input_ids=ids, use_cache=False)
            if self.selection.final_state == "post":
                assert rows.final is not None
                _write(output.last_hidden_state, rows.real, rows.final)
            wanted = len(self.selection.taps) + (self.selection.final_state == "pre")
            if self._written != wanted:
                raise ConfigError(
                    f"{count_text(self._written, 'state')} came where {wanted} were wanted: the model passes over some of its "
                    "blocks, or runs some more than once; such models are not supported"
                )
        finally:
            self._rows = None

    def _install_hooks(self) -> list[Any]:
        """One hook per distinct state that is wanted, on the block that hands it over."""
        handles = []
        wanted: dict[int, list[Callable[[torch.Tensor], None]]] = {}
        for place, tap in enumerate(self.selection.taps):
            wanted.setdefault(tap, []).append(self._tap_writer(place))
        if self.selection.final_state == "pre":
            wanted.setdefault(self.num_blocks, []).append(self._write_final)
        for tap, writers in wanted.items():
            if tap == 0:
                handles.append(
                    self.parts.blocks[0].register_forward_pre_hook(_InputHook(writers), with_kwargs=True)
                )
            else:
                handles.append(self.parts.blocks[tap - 1].register_forward_hook(_OutputHook(writers)))
        return handles

    def _tap_writer(self, place: int) -> Callable[[torch.Tensor], None]:
        def write(state: torch.Tensor) -> None:
            if self._rows is not None:
                self._written += 1
                _write(state, self._rows.real, self._rows.hidden_states[:, place])

        return write

    def _write_final(self, state: torch.Tensor) -> None:
        if self._rows is not None:
            assert self._rows.final is not None
            self._written += 1
            _write(state, self._rows.real, self._rows.final)


class _InputHook:
    """Takes the state that goes into a block."""

    def __init__(self, writers: list[Callable[[torch.Tensor], None]]) -> None:
        self._writers = writers

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        state = args[0] if args else kwargs["hidden_states"]
        for write in self._writers:
            write(state)


class _OutputHook:
    """Takes the state that comes out of a block."""

    def __init__(self, writers: list[Callable[[torch.Tensor], None]]) -> None:
        self._writers = writers

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        state = output[0] if isinstance(output, tuple | list) else output
        for write in self._writers:
            write(state)


def is_mixture(config: Any) -> bool:
    """Whether experts are routed to: then a rounding difference can send a token another way."""
    names = ("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok")
    return any((getattr(config, name, None) or 0) > 1 for name in names)


def _write(state: torch.Tensor, real: torch.Tensor | None, target: torch.Tensor) -> None:
    """Copy the real tokens of [B, L, H] into [n, H], converting to the stored dtype."""
    if state.dim() != 3 or state.shape[-1] != target.shape[-1]:
        raise ConfigError(
            f"the model's state has shape {list(state.shape)} where [batch, tokens, {target.shape[-1]}] was expected; "
            "such models are not supported"
        )
    flat = state.flatten(0, 1)
    target.copy_(flat if real is None else flat.index_select(0, real))
