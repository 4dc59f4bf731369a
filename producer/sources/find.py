"""From what `--data` says to the files it names, in a stable order."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from hiddenfeed.errors import ConfigError
from producer.sources.files import DataFile, LocalFile


def find_files(pattern: str) -> list[DataFile]:
    """The files that `pattern`, a path or a glob, names, sorted; raises ConfigError if there are none."""
    path = Path(pattern).expanduser()
    if path.is_dir():
        raise ConfigError(
            f"--data {pattern} is a folder; name a file or a pattern like {pattern.rstrip('/')}/*.jsonl"
        )
    found = [path] if path.exists() else [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 - absolute patterns too
    files = [candidate for candidate in found if not candidate.is_dir()]
    if not files:
        raise ConfigError(f"--data {pattern} is not there")
    return named(files)


def named(paths: Sequence[Path]) -> list[DataFile]:
    """The files with names that tell them apart: their paths below the folder that has them all.

    Raises ConfigError for one that cannot be read.
    """
    folder = Path(os.path.commonpath([path.parent.absolute() for path in paths]))
    files: list[DataFile] = [LocalFile(path, str(path.absolute().relative_to(folder))) for path in paths]
    for file in files:
        file.open().close()
    return files
