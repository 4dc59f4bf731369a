"""A model with random weights, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from common.hub import quiet_libraries


def random_qwen3(folder: Path, *, blocks: int = 8, hidden_size: int = 512, device: str = "cpu") -> Path:
    """A Qwen3 with random bfloat16 weights, made on `device`."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=32000,
        hidden_size=hidden_size,
        num_hidden_layers=blocks,
        num_attention_heads=hidden_size // 64,
        num_key_value_heads=hidden_size // 128,
        head_dim=64,
        intermediate_size=3 * hidden_size,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    quiet_libraries()
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = Qwen3ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder
