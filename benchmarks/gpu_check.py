"""Does a GPU of this machine compute what it should, and how fast? For a machine with a CUDA device.

First the tests that need one (states of many architectures against the CPU's, the same bytes twice,
memory that runs out), then the `extraction` benchmark with a model that is large enough for a GPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.extraction import measure_models
from benchmarks.extraction_run import Scale
from benchmarks.random_model import random_qwen3
from benchmarks.scratch import scratch
from hiddenfeed.errors import ConfigError, DataError

_ROOT = Path(__file__).parent.parent
#: 1.2 billion parameters: made, saved and loaded in seconds. Two taps of it are as many bytes for each
#: floating point operation as five of a 27B model.
_BLOCKS, _HIDDEN = 24, 2048
FULL = Scale(
    rounds=5,
    batches=6,
    samples=2000,
    mean_tokens=400,
    longest=4096,
    micro_batch_tokens=16384,
    batch_tokens=65536,
    taps="8,16",
)
QUICK = Scale(
    rounds=3,
    batches=4,
    samples=800,
    mean_tokens=300,
    longest=2048,
    micro_batch_tokens=8192,
    batch_tokens=32768,
    taps="8,16",
)


def run(*, quick: bool) -> dict[str, Any]:
    """Tests, then speed; raises ConfigError without a CUDA device and DataError if a test fails."""
    if not torch.cuda.is_available():
        raise ConfigError("gpu_check needs a CUDA device, and torch sees none here")
    tests = run_tests("gpu and not slow" if quick else "gpu")
    return {**device_facts(), "tests": tests, **measure(QUICK if quick else FULL, "cuda", _BLOCKS, _HIDDEN)}


def describe(results: dict[str, Any]) -> list[str]:
    """The results for people."""
    return [
        f"{results['gpu']}, {results['gpu_memory_bytes'] / 1e9:.0f} GB, torch {results['torch']}: {results['tests']}",
        f"  efficiency     {results['efficiency']:.3f} of bare forward passes "
        f"(rounds {results['efficiency_min']:.3f} to {results['efficiency_max']:.3f})",
        f"  worker         {results['worker_tokens_per_second']:,.0f} tokens/s, "
        f"{results['states_gb_per_second']:.2f} GB/s of states",
        f"  device busy    {results['busy_fraction']:.1%}; waiting between passes {results['stall_share']:.2%}",
    ]


def run_tests(markers: str) -> str:
    """Run the tests that the pytest expression picks; returns pytest's count. Raises DataError if one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", markers, "-p", "no:cacheprovider"]
    command += ["tests/integration/test_gpu_device.py"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        print(done.stdout[-4000:], done.stderr[-2000:], file=sys.stderr)
        raise DataError(f"the tests on the GPU failed: {lines[-1] if lines else 'no output'}")
    return re.sub(r" in [\d.]+s.*", "", lines[-1])


def device_facts() -> dict[str, Any]:
    """What was measured on."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "gpu_memory_bytes": properties.total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def measure(scale: Scale, device: str, blocks: int, hidden_size: int) -> dict[str, Any]:
    """The extraction benchmark of one random model on `device`; files in memory where there is such a place."""
    # The model, and the files of one round.
    need = 24 * blocks * hidden_size**2 + 4 * scale.batches * scale.batch_tokens * hidden_size
    with scratch(need) as folder:
        model = random_qwen3(folder / "qwen3", blocks=blocks, hidden_size=hidden_size, device=device)
        found = measure_models(folder, {"random": model}, scale, device)["random"]
    return {**found, "busy_fraction": found["forward_share"]}
