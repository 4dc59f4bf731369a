"""Loading a checkpoint: what is right is loaded, what is wrong is said in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_worker.model import ModelSource, load_pretrained, resolve_device
from gpu_worker.structure import dissect
from hiddenfeed.errors import ConfigError
from tests.tiny_models import make_model, save_model

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks the hub."""
    import huggingface_hub.constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def _source(name: object, **changes: Any) -> ModelSource:
    return ModelSource(**{"name": str(name), "revision": None, "device": CPU, **changes})


@pytest.mark.parametrize("architecture", ["llama", "gemma3_multimodal", "qwen3_5_multimodal", "gpt2"])
def test_checkpoint_is_loaded_as_it_was_saved(tmp_path: Path, architecture: str) -> None:
    save_model(tmp_path, architecture, torch.bfloat16)
    loaded = load_pretrained(_source(tmp_path))
    assert not loaded.training
    assert {weight.dtype for weight in loaded.parameters()} == {torch.bfloat16}
    assert not any(weight.requires_grad for weight in loaded.parameters())
    expected = dissect(make_model(architecture, torch.bfloat16)).decoder.state_dict()
    for name, weight in dissect(loaded).decoder.state_dict().items():
        assert torch.equal(weight, expected[name]), name


def test_compute_dtype_is_a_choice(tmp_path: Path) -> None:
    save_model(tmp_path, "llama", torch.bfloat16)
    loaded = load_pretrained(_source(tmp_path, compute_dtype="float32", attention="eager"))
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}
    assert loaded.config._attn_implementation == "eager"  # type: ignore[union-attr]


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model folder .*/nowhere is not there$"):
        load_pretrained(_source(tmp_path / "nowhere"))


def test_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model folder .* has no config\.json$"):
        load_pretrained(_source(tmp_path))


def test_model_that_is_not_cached_while_offline() -> None:
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE forbids asking the hub"):
        load_pretrained(_source("nobody/no-such-model"))


def test_name_that_can_be_no_model() -> None:
    with pytest.raises(ConfigError, match="neither a folder nor a model on the hub"):
        load_pretrained(_source("no such model!"))


def test_architecture_that_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "not-a-type"}))
    with pytest.raises(ConfigError, match="not-a-type"):
        load_pretrained(_source(tmp_path))


def test_configuration_that_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not a valid JSON file"):
        load_pretrained(_source(tmp_path))


def test_folder_without_weights(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"no file named model\.safetensors"):
        load_pretrained(_source(tmp_path))


def test_folder_that_lacks_a_shard_of_its_weights(tmp_path: Path) -> None:
    model: Any = make_model("llama")
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    shards[-1].unlink()
    with pytest.raises(ConfigError, match=rf"checkpoint of model .* cannot be read: .*{shards[-1].name}"):
        load_pretrained(_source(tmp_path))


def test_weights_cut_short(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_pretrained(_source(tmp_path))


def test_missing_weights_are_not_made_up(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    weights = tmp_path / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(weights).items() if ".layers.2." not in name}
    save_file(kept, weights, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks 9 weights of the decoder, first model\.layers\.2\."):
        load_pretrained(_source(tmp_path))


def test_missing_head_does_not_matter(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    weights = tmp_path / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(weights).items() if "lm_head" not in name}
    assert len(kept) == len(load_file(weights)) - 1
    save_file(kept, weights, metadata={"format": "pt"})
    assert dissect(load_pretrained(_source(tmp_path))).num_blocks == 4


def test_devices() -> None:
    assert resolve_device("cpu") == CPU
    assert resolve_device("auto").type in ("cpu", "cuda")
    for text in ("tpu", "cuda:x", "mps", ""):
        with pytest.raises(ConfigError, match="is not one of auto, cpu, cuda"):
            resolve_device(text)
    with pytest.raises(ConfigError, match=r"'cuda:99' is not there: torch sees \d+ CUDA devices"):
        resolve_device("cuda:99")
