"""The identity of a model folder: one hash over its weights and its configuration.

A folder has no revision to name, and its place on disk does not matter, so what it holds is hashed.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hiddenfeed.errors import ConfigError

#: What transformers loads, in its order of preference; the first pattern with files decides.
_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin", "*.gguf")
_CONFIGURATION = "config.json"
#: 128 bits identify; more would not be read by anyone.
DIGEST_BYTES = 16


def weight_files(folder: Path) -> list[Path]:
    """The files that make up the model, by name; raises ConfigError if there are no weights."""
    for pattern in _WEIGHT_PATTERNS:
        files = sorted(folder.glob(pattern))
        if files:
            return [folder / _CONFIGURATION, *files]
    raise ConfigError(f"model folder {folder} has no weights (*.safetensors)")


def weights_identity(folder: Path) -> str:
    """`weights:<hash>` over name and content of every file; raises ConfigError if one cannot be read."""
    return f"weights:{files_hash(weight_files(folder))}"


def files_hash(files: Sequence[Path]) -> str:
    """BLAKE2b, in hex, over the names and contents of `files`, in their order."""
    digests = hash_files(files)
    listing = "".join(f"{file.name} {digest}\n" for file, digest in zip(files, digests, strict=True))
    return hashlib.blake2b(listing.encode("utf-8"), digest_size=DIGEST_BYTES).hexdigest()


def hash_files(files: Sequence[Path]) -> list[str]:
    """BLAKE2b of each file's content, in hex, several at a time; hashing frees the GIL."""
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as threads:
        return list(threads.map(_hash_file, files))


def digest_of(stream: io.BufferedReader) -> str:
    """BLAKE2b, in hex, of all that is left of a stream; raises OSError."""
    return hashlib.file_digest(stream, _new_digest).hexdigest()


def _hash_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return digest_of(file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None


def _new_digest() -> Any:
    return hashlib.blake2b(digest_size=DIGEST_BYTES)
