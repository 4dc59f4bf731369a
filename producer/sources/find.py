"""From what `--data` says to the files it names, in a stable order: here, piped in, in S3 or on the hub."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from hiddenfeed.errors import ConfigError
from hiddenfeed.options import StoreOptions
from producer.sources.files import DataFile, LocalFile
from producer.sources.folder import Say, files_of_rows, is_rows, natural
from producer.sources.spooled import SpooledFile, spool_stdin

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def find_files(
    data: str, options: StoreOptions | None = None, say: Say = lambda line: None
) -> list[DataFile]:
    """The files of rows that `data` names: a path, a pattern, a folder, `-`, `s3://…`, or a dataset of the hub.

    `options` say how S3 is reached. What of a folder is not taken is said aloud. Raises ConfigError if
    there is nothing, TransientError if S3 or the hub is away.
    """
    if data == "-":
        say("reading standard input")
        return [spool_stdin()]
    if data.startswith("s3://"):
        from producer.sources.s3 import find_in_s3  # boto3 takes a third of a second

        return find_in_s3(data, options or StoreOptions(), say)
    if data.startswith("hf://"):
        return _find_on_hub(data, say)
    if _SCHEME.match(data):
        raise ConfigError(f"--data {data} is neither a path nor s3://bucket/key nor hf://datasets/NAME")
    path = Path(data).expanduser()
    if path.is_dir():
        return _in_folder(path, say)
    if path.exists():
        return _one(path)
    found = [Path(name) for name in sorted(glob.glob(str(path), recursive=True), key=natural)]  # noqa: PTH207 - absolute patterns too
    files = [candidate for candidate in found if not candidate.is_dir()]
    if files:
        return named(files)
    if _HUB_NAME.fullmatch(data) and not is_rows(data):
        return _find_on_hub(f"hf://datasets/{data}", say)
    raise ConfigError(f"--data {data} is not there")


def named(paths: Sequence[Path]) -> list[DataFile]:
    """The files with names that tell them apart: their paths below the folder that has them all.

    Raises ConfigError for one that cannot be read.
    """
    folder = Path(os.path.commonpath([path.parent.absolute() for path in paths]))
    files: list[DataFile] = [LocalFile(path, _text(path.absolute().relative_to(folder))) for path in paths]
    for file in files:
        file.open().close()
    return files


def _one(path: Path) -> list[DataFile]:
    """One file, or what a pipe that has a path says, which comes but once."""
    if stat.S_ISREG(path.stat().st_mode):
        return named([path])
    try:
        with path.open("rb") as pipe:
            return [SpooledFile(path.name, str(path), pipe)]
    except OSError as error:
        raise ConfigError(f"--data {path} cannot be read: {error.strerror or error}") from None


def _in_folder(folder: Path, say: Say) -> list[DataFile]:
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]

    def read(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError as error:
            raise ConfigError(f"{folder / name} cannot be read: {error.strerror or error}") from None

    files: list[DataFile] = [
        LocalFile(folder / name, _text(Path(name))) for name in files_of_rows(str(folder), names, read, say)
    ]
    for file in files:
        file.open().close()
    return files


def _text(path: Path) -> str:
    """A path as text that can be stored; names of files need not be UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _find_on_hub(url: str, say: Say) -> list[DataFile]:
    from producer.sources.hub import find_on_hub  # half a second to import

    return find_on_hub(url, say)
