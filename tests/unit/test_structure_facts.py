"""What is read off a model's structure: its vocabulary, its positions, the dtype of its arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpu_worker.structure import dissect, text_config
from tests.tiny_models import BLOCKS, CONFIGS, HIDDEN, VOCABULARY, make_model


@pytest.mark.parametrize("architecture", CONFIGS)
def test_facts_of_every_architecture(architecture: str) -> None:
    parts = dissect(make_model(architecture, torch.bfloat16))
    assert parts.num_blocks == BLOCKS
    assert text_config(parts.decoder).hidden_size == HIDDEN
    assert parts.vocabulary == VOCABULARY
    assert parts.dtype == torch.bfloat16
    assert parts.device == torch.device("cpu")
    assert parts.norm is not None
    assert parts.positions is None or parts.positions >= 256


@pytest.mark.parametrize(
    ("rope", "positions"),
    [
        ({"rope_type": "default"}, 256),
        ({"rope_type": "yarn", "factor": 4.0}, 1024),
        ({"full_attention": {"factor": 8.0}, "sliding_attention": {"rope_type": "default"}}, 2048),
        (None, 256),
        # Beyond the original length, frequencies depend on what is computed beside and before.
        ({"rope_type": "dynamic", "factor": 4.0}, 256),
        ({"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 64}, 64),
        ({"full_attention": {"rope_type": "dynamic", "factor": 2.0}, "sliding_attention": {}}, 256),
    ],
)
def test_stretched_positions_count(rope: Any, positions: int) -> None:
    parts = dissect(make_model("llama"))
    object.__setattr__(text_config(parts.decoder), "rope_parameters", rope)
    assert parts.positions == positions


def test_dtype_of_a_quantised_checkpoint_is_that_of_the_rest() -> None:
    parts = dissect(make_model("llama", torch.bfloat16))
    for block in parts.blocks:
        for module in block.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight = torch.nn.Parameter(module.weight.to(torch.int8), requires_grad=False)
    assert parts.dtype == torch.bfloat16
