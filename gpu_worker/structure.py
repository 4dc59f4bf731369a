"""The parts of a decoder, found by what they are and not by the model's name.

Every decoder-only model of transformers keeps its blocks in the one `nn.ModuleList` that is as long as
the text configuration says, also inside a multimodal wrapper. Nothing here knows an architecture.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from common.rope import said_length, steady_length
from hiddenfeed.errors import ConfigError

#: What the norm between the last block and the head is called where a decoder has other norms beside it.
_NORM_NAMES = ("norm", "final_layer_norm", "final_layernorm", "final_norm", "ln_f", "norm_f", "layer_norm")


@dataclass(frozen=True)
class DecoderParts:
    """A text decoder taken apart. The modules are the model's own, not copies."""

    #: What turns token ids into hidden states, without the language-model head.
    decoder: nn.Module
    blocks: nn.ModuleList
    #: Path of the final norm below `decoder`; None if it has none.
    norm_name: str | None

    @property
    def num_blocks(self) -> int:
        """Blocks that are there now; fewer than the checkpoint's once truncated."""
        return len(self.blocks)

    @property
    def norm(self) -> nn.Module | None:
        """The final norm, as it is now."""
        return self.decoder.get_submodule(self.norm_name) if self.norm_name else None

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
        limit = said_length(config)
        # Stretched rotary positions: some configurations give the length before, some the one after.
        factors = list(_factors(getattr(config, "rope_parameters", None)))
        return int(limit * max([1.0, *factors])) if limit else None

    @property
    def vocabulary(self) -> int:
        """Rows of the table of token embeddings: token ids are below this."""
        return int(as_pretrained(self.decoder).get_input_embeddings().weight.shape[0])

    def truncate(self, depth: int) -> None:
        """Forget the blocks after the first `depth`; what they held can be freed.

        States up to tap `depth` stay what they were, bit for bit. The final norm stays, as some models apply it to the
        embeddings too; what it makes of a state that the whole model never gives it, nobody reads.
        """
        del self.blocks[depth:]


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
    num_blocks = int(text_config(model).num_hidden_layers)
    for candidate in _decoder_candidates(model):
        owners = list(_owned_lists(candidate, num_blocks))
        if len({id(blocks) for _, blocks in owners}) == 1:
            owner, blocks = owners[0]
            decoder = owner if _takes_tokens(owner) else candidate
            return DecoderParts(decoder, blocks, _final_norm(decoder, owner))
    raise ConfigError(f"cannot tell which part of {name} is its list of {num_blocks} decoder blocks")


def _decoder_candidates(model: nn.Module) -> Iterator[nn.Module]:
    """Parts of the model that may be its text decoder, or hold it; the smallest first."""
    parts = [model]
    while hasattr(parts[-1], "get_decoder"):
        inner = as_pretrained(parts[-1]).get_decoder()
        if any(inner is part for part in parts):
            break
        parts.append(inner)
    return reversed(parts)


def _owned_lists(part: nn.Module, length: int) -> Iterator[tuple[nn.Module, nn.ModuleList]]:
    """Lists of that length with whose part they are; not those inside of another, which may be the experts of a block."""
    for child in part.children():
        if isinstance(child, nn.ModuleList) and len(child) == length:
            yield part, child
        else:
            yield from _owned_lists(child, length)


def _takes_tokens(part: nn.Module) -> bool:
    """Whether a part is a decoder by itself, and no more than that: from token ids to states."""
    known = hasattr(part, "config") and hasattr(part, "get_input_embeddings")
    return known and "input_ids" in inspect.signature(part.forward).parameters


def _factors(rope: Any) -> Iterator[float]:
    """Every stretching factor in rotary parameters, which may be given for each kind of layer."""
    if not isinstance(rope, dict):
        return
    for name, value in rope.items():
        if name == "factor" and isinstance(value, int | float):
            yield float(value)
        yield from _factors(value)


def _final_norm(decoder: nn.Module, owner: nn.Module) -> str | None:
    """The norm beside the blocks, or else the decoder's own; by its name if there are several.

    A wrong one does not pass unseen: the self-test then finds other states than the whole model's.
    """
    place = next((name for name, part in decoder.named_modules() if part is owner), "")
    for path, part in ((f"{place}." if place else "", owner), ("", decoder)):
        norms = [name for name, child in part.named_children() if _is_norm(name, child)]
        if norms:
            return path + next((name for name in _NORM_NAMES if name in norms), norms[-1])
    return None


def _is_norm(name: str, part: nn.Module) -> bool:
    """Whether that is a norm, and not one of what the embeddings give."""
    return "norm" in type(part).__name__.lower() and not ("emb" in name and name != "embedding_norm")
