"""Tiny quantised checkpoints, and what their numbers stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from torch import nn

from tests.tiny_models import VOCABULARY

#: Of the model; bitsandbytes wants columns by the sixty-four.
WIDTH, BLOCKS = 64, 3
#: Format of compressed-tensors -> bits, kind of number, largest number, columns that share a scale (None: the whole row).
FORMATS: dict[str, tuple[int, str, float, int | None]] = {
    "int-quantized": (8, "int", 127.0, None),
    "pack-quantized": (4, "int", 7.0, 32),
    "float-quantized": (8, "float", 448.0, None),
}


def save_compressed(folder: Path, form: str) -> nn.Module:
    """Save a checkpoint of this format; returns the model with the numbers that it stands for, as plain weights.

    Skips the test where compressed-tensors is not installed.
    """
    compressors = pytest.importorskip("compressed_tensors.compressors")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    bits, kind, top, group = FORMATS[form]
    model, plain = _model(), _model()
    strategy: dict[str, Any] = (
        {"strategy": "channel"} if group is None else {"strategy": "group", "group_size": group}
    )
    weights = quantization.QuantizationArgs(num_bits=bits, type=kind, symmetric=True, **strategy)
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=weights)
    config = quantization.QuantizationConfig(
        config_groups={"group_0": scheme}, ignore=["lm_head"], format=form
    )
    quantization.apply_quantization_config(model, config)
    for name, module in model.named_modules():
        scale: Any = getattr(module, "weight_scale", None)
        if isinstance(module, nn.Linear) and scale is not None:
            grouped = module.weight.detach().float().reshape(*scale.shape, -1)
            scale.data.copy_(grouped.abs().amax(-1) / top)
            scales = scale.detach().float()[..., None]
            steps = grouped / scales
            rounded = steps.round() if kind == "int" else steps.to(torch.float8_e4m3fn).float()
            target = plain.get_submodule(name)
            assert isinstance(target, nn.Linear)
            target.weight.data.copy_((rounded * scales).reshape(module.weight.shape))
            # Rounded once, here: where the model's dtype is too coarse to tell, another step would be taken.
            module.weight.data.copy_(target.weight.data)
            module.quantization_status = quantization.QuantizationStatus.FROZEN
    compressor = compressors.ModelCompressor.from_pretrained_model(model, quantization_format=form)
    compressor.compress_model(model)
    model.save_pretrained(folder)  # type: ignore[operator]
    compressor.update_config(folder)
    return plain


def save_eight_bits(folder: Path) -> nn.Module:
    """By bitsandbytes; returns the model that was saved. Skips the test where it is not installed."""
    pytest.importorskip("bitsandbytes")
    return _quantised(folder, tf.BitsAndBytesConfig(load_in_8bit=True))


def save_four_bits(folder: Path) -> nn.Module:
    """By bitsandbytes; returns the model that was saved. Skips the test where it is not installed."""
    pytest.importorskip("bitsandbytes")
    return _quantised(folder, tf.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16))


def save_torchao(folder: Path) -> nn.Module:
    """Eight bits by torchao; returns the model that was saved. Skips the test where it is not installed."""
    quantization = pytest.importorskip("torchao.quantization")
    return _quantised(folder, tf.TorchAoConfig(quantization.Int8WeightOnlyConfig()))


#: What transformers quantises by itself.
BY_TRANSFORMERS = [save_eight_bits, save_four_bits, save_torchao]


def _model() -> nn.Module:
    config = tf.Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=128, num_hidden_layers=BLOCKS, head_dim=32,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    torch.manual_seed(0)
    model: nn.Module = tf.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embed" not in name:
                weight.mul_(4)
    return model


def _quantised(folder: Path, config: Any) -> nn.Module:
    plain: Any = _model()
    plain.save_pretrained(folder / "plain")
    model: Any = tf.AutoModelForCausalLM.from_pretrained(
        folder / "plain", quantization_config=config, device_map={"": "cpu"}, dtype=torch.bfloat16
    )
    model.save_pretrained(folder)
    return model.eval()  # type: ignore[no-any-return]
