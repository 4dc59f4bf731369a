"""What is read off a model's structure: its vocabulary, its positions, the dtype of its arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf

from gpu_worker.structure import dissect, text_config
from producer.model_facts import max_positions
from tests.tiny_models import BLOCKS, CONFIGS, HIDDEN, VOCABULARY, llama4_multimodal, make_model


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


def test_a_text_decoder_two_wrappers_deep_is_found_without_head_and_tower() -> None:
    """Llama 4 keeps a whole language model, head and all, beside its vision tower."""
    whole = tf.AutoModelForImageTextToText.from_config(llama4_multimodal())
    parts = dissect(whole)
    assert type(parts.decoder).__name__ == "Llama4TextModel"
    assert parts.norm_name == "norm"
    assert not [name for name, _ in parts.decoder.named_modules() if "head" in name or "vision" in name]


def test_experts_that_are_as_many_as_blocks_are_not_taken_for_them() -> None:
    model: Any = make_model("llama")
    for block in model.model.layers:
        block.experts = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(BLOCKS))
    assert dissect(model).blocks is model.model.layers


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


@pytest.mark.parametrize(
    ("said", "positions"),
    [
        ({"max_position_embeddings": -1}, None),
        ({"max_position_embeddings": None, "max_seq_len": 224}, 224),
        ({"max_position_embeddings": None, "max_target_positions": 448}, 448),
        ({"max_position_embeddings": None}, None),
    ],
)
def test_positions_have_other_names_and_may_have_no_end(said: Any, positions: int | None) -> None:
    parts = dissect(make_model("llama"))
    config = text_config(parts.decoder)
    for name, value in ({"rope_parameters": None} | said).items():
        object.__setattr__(config, name, value)
    assert parts.positions == positions
    assert max_positions(config) == positions


def test_dtype_of_a_quantised_checkpoint_is_that_of_the_rest() -> None:
    parts = dissect(make_model("llama", torch.bfloat16))
    for block in parts.blocks:
        for module in block.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight = torch.nn.Parameter(module.weight.to(torch.int8), requires_grad=False)
    assert parts.dtype == torch.bfloat16
