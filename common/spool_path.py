"""Paths inside a spool: `<run_id>/<000042>-<token>.safetensors`, and nothing that leads out of it.

They come from messages, which anybody who reaches Redis can write.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path

from hiddenfeed.errors import PermanentError

SUFFIXES = (".safetensors", ".json")
#: What tells two attempts at one batch apart.
TOKEN = re.compile(r"[A-Za-z0-9]{1,64}")
FILE_NAME = re.compile(r"(?P<batch>\d{6,})-[A-Za-z0-9]{1,64}(?P<suffix>\.safetensors|\.json)")
RELATIVE = re.compile(r"(?P<run>[A-Za-z0-9][A-Za-z0-9_-]{0,99})/(?P<file>[^/]+)")


def parse_spool_path(relative: str) -> tuple[str, int, str]:
    """(run id, batch id, suffix) that a path relative to a spool names; raises PermanentError if it is none."""
    match = RELATIVE.fullmatch(relative)
    file_match = FILE_NAME.fullmatch(match["file"]) if match else None
    if match is None or file_match is None:
        raise PermanentError(f"{relative!r} is not the path of a file in a spool")
    return match["run"], int(file_match["batch"]), file_match["suffix"]


def plain_file(root: Path, relative: str) -> Path:
    """The absolute path of a finished file of the spool at `root`, there or not.

    Raises PermanentError for whatever is not a plain `run/batch-token.suffix` inside the spool: absolute
    paths, `..`, other names, symbolic links and folders.
    """
    path = _in_its_folder(root, relative)
    if _kind(path) not in (None, stat.S_IFREG):
        raise PermanentError(_leaves(relative, path))
    return path


def replaced_file(root: Path, relative: str) -> Path | None:
    """Where a link, pipe, socket or device has a finished file's name, which no writer puts there; else None.

    Raises PermanentError for a path that is not in the spool, and for a folder under that name.
    """
    path = _in_its_folder(root, relative)
    kind = _kind(path)
    if kind == stat.S_IFDIR:
        raise PermanentError(_leaves(relative, path))
    return None if kind in (None, stat.S_IFREG) else path


def _in_its_folder(root: Path, relative: str) -> Path:
    parse_spool_path(relative)
    path = root / relative
    if _kind(path.parent) not in (None, stat.S_IFDIR):
        raise PermanentError(_leaves(relative, path.parent))
    return path


def _kind(path: Path) -> int | None:
    """What stands there, a link itself, as the `stat` module names kinds; None for nothing."""
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except FileNotFoundError:
        return None


def _leaves(relative: str, path: Path) -> str:
    return f"{relative!r} leaves the spool: {path.name} is a link or no plain file"
