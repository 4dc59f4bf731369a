"""The parts of a decoder, found by what they are and not by the model's name.

Every decoder-only model of transformers keeps its blocks in the one `nn.ModuleList` that is as long as
the text configuration says, also inside a multimodal wrapper. Nothing here knows an architecture.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from common.rope import steady_length
from hiddenfeed.errors import ConfigError

#: What the norm between the last block and the head is called, over all architectures of transformers.
_NORM_NAMES = ("norm", "final_layer_norm", "final_layernorm", "ln_f", "norm_f")


@dataclass(frozen=True)
class DecoderParts:
    """A text decoder taken apart. The modules are the model's own, not copies."""

    #: What turns token ids into hidden states, without the language-model head.
    decoder: nn.Module
    blocks: nn.ModuleList
    #: Attribute of `decoder` that holds the final norm; None if it has none that we know.
    norm_name: str | None

    @property
    def num_blocks(self) -> int:
        """Blocks that are there now; fewer than the checkpoint's once truncated."""
        return len(self.blocks)

    @property
    def norm(self) -> nn.Module | None:
        """The final norm, as it is now."""
        return getattr(self.decoder, self.norm_name) if self.norm_name else None

    @property
    def device(self) -> torch.device:
        """Where the blocks are."""
        return next(self.blocks.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """What states are computed in; of a quantised checkpoint, the dtype of what is not quantised."""
        for module in (self.blocks, self.decoder):
            for weight in module.parameters():
                if weight.is_floating_point() and weight.itemsize > 1:
                    return weight.dtype
        return torch.get_default_dtype()

    @property
    def positions(self) -> int | None:
        """Longest sample that the model has positions for; None if its configuration does not say.

        Where frequencies change with the length, the longest for which they are what they were trained as.
        """
        config = text_config(self.decoder)
        if (steady := steady_length(config)) is not None:
            return steady
        limit = getattr(config, "max_position_embeddings", None)
        # Stretched rotary positions: some configurations give the length before, some the one after.
        factors = list(_factors(getattr(config, "rope_parameters", None)))
        return int(limit * max([1.0, *factors])) if limit else None

    @property
    def vocabulary(self) -> int:
        """Rows of the table of token embeddings: token ids are below this."""
        return int(as_pretrained(self.decoder).get_input_embeddings().weight.shape[0])

    def truncate(self, depth: int) -> None:
        """Forget the blocks after the first `depth` and the final norm; what they held can be freed.

        States up to tap `depth` stay what they were, bit for bit. The norm goes because in a truncated
        model it would be applied to a state that the whole model never normalises.
        """
        del self.blocks[depth:]
        if self.norm_name:
            setattr(self.decoder, self.norm_name, nn.Identity())


def as_pretrained(model: nn.Module) -> Any:
    """The same object, as the transformers model that it is; its class has no useful types."""
    return model


def text_config(model: nn.Module) -> Any:
    """The configuration of the text decoder, also inside a multimodal one."""
    return as_pretrained(model).config.get_text_config(decoder=True)


def dissect(model: nn.Module) -> DecoderParts:
    """The decoder of a transformers model and its blocks.

    Raises ConfigError for an encoder-decoder and for a model whose blocks cannot be told for certain.
    """
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ConfigError(f"{name} is an encoder-decoder; hiddenfeed extracts from decoder-only models")
    config = text_config(model)
    num_blocks = int(config.num_hidden_layers)
    for candidate in _decoder_candidates(model):
        lists = [
            module
            for module in candidate.modules()
            if isinstance(module, nn.ModuleList) and len(module) == num_blocks
        ]
        if len(lists) == 1:
            return DecoderParts(candidate, lists[0], _final_norm(candidate))
    raise ConfigError(f"cannot tell which part of {name} is its list of {num_blocks} decoder blocks")


def _decoder_candidates(model: nn.Module) -> Iterator[nn.Module]:
    """Ever smaller parts of the model that may be its text decoder."""
    seen: set[int] = set()
    while id(model) not in seen and hasattr(model, "get_decoder"):
        seen.add(id(model))
        model = as_pretrained(model).get_decoder()
        yield model


def _factors(rope: Any) -> Iterator[float]:
    """Every stretching factor in rotary parameters, which may be given for each kind of layer."""
    if not isinstance(rope, dict):
        return
    for name, value in rope.items():
        if name == "factor" and isinstance(value, int | float):
            yield float(value)
        yield from _factors(value)


def _final_norm(decoder: nn.Module) -> str | None:
    children = dict(decoder.named_children())
    return next((name for name in _NORM_NAMES if name in children), None)
