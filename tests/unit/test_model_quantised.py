"""Quantised checkpoints: loaded, tested against the whole model, and what they give is what their numbers say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from torch import nn

from gpu_worker.agreement import compare, tolerance_for
from gpu_worker.model import ModelSource, load_pretrained
from gpu_worker.reference import Reference
from gpu_worker.selftest import SelfTest, probe
from gpu_worker.structure import dissect
from gpu_worker.taps import Selection, StateRows, TapModel
from gpu_worker.tokens import TokenBatch

# Their warnings are of their own parts, and of torch's.
pytestmark = pytest.mark.filterwarnings("ignore")

VOCABULARY, WIDTH, BLOCKS = 128, 64, 3
SELECTION = Selection((1, 2))
TOLERANCE = tolerance_for(["bfloat16"], median=False)
#: Format of compressed-tensors -> bits, kind of number, largest number, columns that share a scale (None: the whole row).
FORMATS: dict[str, tuple[int, str, float, int | None]] = {
    "int-quantized": (8, "int", 127.0, None),
    "pack-quantized": (4, "int", 7.0, 32),
    "float-quantized": (8, "float", 448.0, None),
}


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


def _compressed(folder: Path, form: str) -> nn.Module:
    """Save a checkpoint of this format; returns the model with the numbers that it stands for, as plain weights."""
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
            module.quantization_status = quantization.QuantizationStatus.FROZEN
    compressor = compressors.ModelCompressor.from_pretrained_model(model, quantization_format=form)
    compressor.compress_model(model)
    model.save_pretrained(folder)  # type: ignore[operator]
    compressor.update_config(folder)
    return plain


def _quantised(folder: Path, config: Any) -> nn.Module:
    """Save a checkpoint that transformers quantises; returns the model that was saved."""
    _model().save_pretrained(folder / "plain")  # type: ignore[operator]
    model: Any = tf.AutoModelForCausalLM.from_pretrained(
        folder / "plain", quantization_config=config, device_map={"": "cpu"}, dtype=torch.bfloat16
    )
    model.save_pretrained(folder)
    return model.eval()  # type: ignore[no-any-return]


def _eight_bits(folder: Path) -> nn.Module:
    pytest.importorskip("bitsandbytes")
    return _quantised(folder, tf.BitsAndBytesConfig(load_in_8bit=True))


def _four_bits(folder: Path) -> nn.Module:
    pytest.importorskip("bitsandbytes")
    return _quantised(folder, tf.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16))


def _torchao(folder: Path) -> nn.Module:
    quantization = pytest.importorskip("torchao.quantization")
    return _quantised(folder, tf.TorchAoConfig(quantization.Int8WeightOnlyConfig()))


def _batch() -> TokenBatch:
    lengths = np.array([60, 44, 30, 22])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.random.default_rng(0).integers(3, VOCABULARY, offsets[-1]).astype(np.int32)
    return TokenBatch(0, np.arange(4), ids, np.zeros(len(ids), np.uint8), offsets, np.array([0, 4]))


def _assert_given(folder: Path, expected: nn.Module) -> None:
    """Loaded as a worker does, the checkpoint passes the self-test, and truncated it gives what `expected` gives."""
    whole = load_pretrained(ModelSource(str(folder), None, torch.device("cpu")))
    parts = dissect(whole)
    model = TapModel(parts, SELECTION)
    assert model.compute_dtype == torch.bfloat16
    test = SelfTest(parts, SELECTION, probe(_batch(), VOCABULARY, 256), "of the test")
    del whole
    model.truncate()
    test.run(model, torch.bfloat16, TOLERANCE)
    ids = torch.from_numpy(_batch().input_ids[:60].astype(np.int64))[None]
    rows = StateRows(torch.empty(60, 2, WIDTH, dtype=torch.bfloat16), None, None)
    model.forward(ids, rows)
    reference = Reference(expected, dissect(expected)).states(ids, SELECTION)
    agreement = compare(rows.hidden_states.float().numpy(), reference.numpy(), median=False)
    assert agreement.worst(TOLERANCE) is None, agreement


@pytest.mark.parametrize("form", FORMATS)
def test_compressed_tensors_give_what_their_numbers_say(tmp_path: Path, form: str) -> None:
    _assert_given(tmp_path, _compressed(tmp_path, form))


@pytest.mark.parametrize("save", [_eight_bits, _four_bits, _torchao])
def test_checkpoints_that_transformers_quantised(tmp_path: Path, save: Callable[[Path], nn.Module]) -> None:
    _assert_given(tmp_path, save(tmp_path))
