"""The worker on a real CUDA device against the CPU; what runs without one keeps these tests honest.

`make gpu-check` runs them. On a machine without a CUDA device the same functions run on the CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import gpu_check
from benchmarks.extraction_run import Scale
from gpu_worker.agreement import compare, tolerance_for
from hiddenfeed.errors import ConfigError
from tests.extraction import ReadFile, TinyRun, extract, read_file, tiny_run
from tests.tiny_models import CONFIGS, MIXTURES

#: Layers whose fast kernels are packages of their own: their fallback is tested on the CPU.
_HYBRIDS = (
    "qwen3_next",
    "qwen3_5",
    "nemotron_h",
    "lfm2",
    "recurrent_gemma",
    "jamba",
    "mamba",
    "falcon_mamba",
)


def on_cuda(test: Any) -> Any:
    """Marks a test that needs a CUDA device."""
    missing = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    return pytest.mark.gpu(missing(test))


def _extract(run: TinyRun, device: str, batches: int = 3) -> list[bytes]:
    """The first batches of the run, computed on a device; bytes of their files."""
    spool = run.spool()
    with run.extractor(spool, device) as (extractor, _):
        files = []
        for message in run.manifests[:batches]:
            upload = extract(extractor, message)
            assert "reason" not in (upload.report.guards or {}), upload.report.guards
            files.append(spool.resolve(upload.path).read_bytes())
    return files


def _read(folder: Path, data: list[bytes]) -> list[ReadFile]:
    read = []
    for number, each in enumerate(data):
        path = folder / f"{number}.safetensors"
        path.write_bytes(each)
        read.append(read_file(path))
    return read


def _assert_states_are_the_cpus(folder: Path, architecture: str, device: str, final_state: str) -> None:
    run = tiny_run(folder, architecture=architecture, dtype="bfloat16", final_state=final_state)
    ours, reference = (_read(folder, _extract(run, where)) for where in (device, "cpu"))
    median = architecture in MIXTURES
    states = [np.concatenate([file.states for file in files]) for files in (ours, reference)]
    agreement = compare(states[0], states[1], median=median)
    assert agreement.worst(tolerance_for(["bfloat16"], median=median)) is None, agreement
    for mine, theirs in zip(ours, reference, strict=True):
        for name in ("input_ids", "loss_mask", "offsets", "sample_index"):
            np.testing.assert_array_equal(mine.tensors[name], theirs.tensors[name])


def test_comparison_of_devices_holds_on_one(tmp_path: Path) -> None:
    _assert_states_are_the_cpus(tmp_path, "llama", "cpu", "post")


@on_cuda
@pytest.mark.parametrize("architecture", [name for name in CONFIGS if not name.startswith(_HYBRIDS)])
def test_states_on_a_gpu_are_the_cpus(tmp_path: Path, architecture: str) -> None:
    _assert_states_are_the_cpus(tmp_path, architecture, "cuda", "pre")


@on_cuda
def test_gpu_gives_the_same_bytes_twice(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, dtype="bfloat16")
    assert _extract(run, "cuda") == _extract(run, "cuda")


@on_cuda
def test_nothing_that_is_asked_of_a_gpu_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(tmp_path, dtype="bfloat16")
    with run.extractor(device="cuda") as (extractor, service), service.use(run.run_id) as served:
        loop: Any = served.engine.loop
        ask = loop._ask

        def strict(*arguments: Any) -> Any:
            torch.cuda.set_sync_debug_mode("error")
            try:
                return ask(*arguments)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        for number, message in enumerate(run.manifests[:2]):
            # Libraries are set up with the first batch.
            if number:
                monkeypatch.setattr(loop, "_ask", strict)
            report = extract(extractor, message).report
            assert "reason" not in (report.guards or {}), report.guards


@on_cuda
def test_memory_of_a_gpu_that_runs_out_is_answered_by_halving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run(tmp_path, dtype="bfloat16", lengths=np.full(64, 40), micro_batch_tokens=1280)
    with run.extractor(device="cuda") as (extractor, service), service.use(run.run_id) as served:
        model = served.engine.model
        healthy = model.forward

        def hungry(ids: Any, rows: Any) -> None:
            # More than any device has, for all but small passes: the allocator's own error.
            if ids.numel() > 200:
                torch.empty(1 << 50, dtype=torch.uint8, device=ids.device)
            healthy(ids, rows)

        monkeypatch.setattr(model, "forward", hungry)
        report = extract(extractor, run.manifests[0]).report
        limit = served.engine.loop.limit
    assert report.halvings
    assert limit is not None
    assert limit <= 200 * 2
    assert "reason" not in (report.guards or {})


def test_gpu_check_says_what_it_needs() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(ConfigError, match="needs a CUDA device, and torch sees none here"):
        gpu_check.run(quick=True)


def test_gpu_check_measures_and_describes() -> None:
    """Its own measuring, on the CPU with next to nothing to compute."""
    scale = Scale(
        rounds=1,
        batches=2,
        samples=64,
        mean_tokens=20,
        longest=64,
        micro_batch_tokens=128,
        batch_tokens=256,
        taps="1,2",
    )
    found = gpu_check.measure(scale, "cpu", blocks=3, hidden_size=128)
    assert 0 < found["busy_fraction"] <= 1
    assert found["states_gb_per_second"] > 0
    assert 0 < found["canary_share"] < found["forward_share"]
    assert 0 < found["writer_share"] < found["beside_share"] < 1
    facts = {"gpu": "a GPU", "gpu_memory_bytes": 80e9, "torch": "2", "tests": "3 passed"}
    assert gpu_check.describe({**found, **facts})[0] == "a GPU, 80 GB, torch 2: 3 passed"
