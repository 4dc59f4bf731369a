"""Settings of the model: fast kernels wanted on a GPU, compiled blocks, quantised checkpoints, code of its own."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_worker.compiled import compile_blocks
from gpu_worker.kernels import refuse_slow_kernels, wanted_packages
from gpu_worker.model import ModelSource, load_pretrained
from gpu_worker.structure import dissect
from gpu_worker.taps import Selection, StateRows, TapModel
from hiddenfeed.errors import ConfigError
from tests.tiny_models import HIDDEN, make_model, save_model


def _source(folder: Path, **changes: Any) -> ModelSource:
    return ModelSource(str(folder), None, torch.device("cpu"), **changes)


@pytest.mark.parametrize(
    ("architecture", "packages"),
    [
        ("llama", []),
        ("gpt_oss", []),
        ("qwen3_next", ["causal-conv1d", "flash-linear-attention"]),
        ("qwen3_5_multimodal", ["causal-conv1d", "flash-linear-attention"]),
        ("nemotron_h", ["causal-conv1d", "mamba-ssm"]),
    ],
)
def test_packages_that_a_models_layers_call(architecture: str, packages: list[str]) -> None:
    assert wanted_packages(dissect(make_model(architecture)).blocks) == packages


def test_slow_kernels_are_refused_on_a_gpu_alone() -> None:
    blocks = dissect(make_model("qwen3_5_text")).blocks
    refuse_slow_kernels("m", blocks, "cpu", installed=lambda package: False)
    refuse_slow_kernels("m", blocks, "cuda", installed=lambda package: True)
    with pytest.raises(
        ConfigError, match=r"missing: pip install flash-linear-attention, or accept .*--allow-slow"
    ):
        refuse_slow_kernels("m", blocks, "cuda", installed=lambda package: package == "causal-conv1d")
    refuse_slow_kernels("m", dissect(make_model("llama")).blocks, "cuda", installed=lambda package: False)


def _states(model: TapModel, ids: torch.Tensor) -> torch.Tensor:
    rows = StateRows(torch.empty(ids.numel(), 2, HIDDEN), None, None)
    model.forward(ids, rows)
    return rows.hidden_states


def test_compiled_blocks_give_the_same_states_at_every_tap() -> None:
    ids = torch.randint(3, 100, (2, 9), generator=torch.Generator().manual_seed(0))
    plain = _states(TapModel(dissect(make_model("llama")), Selection((1, 3))), ids)
    parts = dissect(make_model("llama"))
    model = TapModel(parts, Selection((1, 3)))
    runs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        runs.append(len(inputs))
        return graph.forward

    compile_blocks(parts.blocks, backend)
    assert torch.equal(_states(model, ids), plain)
    assert runs, "nothing was compiled"


@pytest.mark.parametrize(
    ("method", "package", "config"),
    [("bitsandbytes", "bitsandbytes", {"load_in_4bit": True}), ("gptq", "gptqmodel", {"bits": 4})],
)
def test_quantised_checkpoint_whose_package_is_missing(
    tmp_path: Path, method: str, package: str, config: dict[str, Any]
) -> None:
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    save_model(tmp_path, "llama", torch.bfloat16)
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"quantization_config": {"quant_method": method, **config}})
    )
    with pytest.raises(
        ConfigError, match=rf"is quantised \({method}.*\) and cannot be loaded here: .*install"
    ):
        load_pretrained(_source(tmp_path))


def test_code_of_a_checkpoint_is_not_run_unasked(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    path, mark = tmp_path / "config.json", tmp_path / "run"
    changes = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    (tmp_path / "own.py").write_text(f"open({str(mark)!r}, 'w')\n")
    with pytest.raises(
        ConfigError, match="brings code of its own; read it, and allow it with --trust-remote-code"
    ):
        load_pretrained(_source(tmp_path))
    assert not mark.exists()
