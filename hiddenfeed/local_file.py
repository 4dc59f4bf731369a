"""Local files: replaced whole, made durable, and what it means when the disk refuses."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hiddenfeed.errors import ConfigError, HiddenfeedError, TransientError

#: What a person must put right; anything else the disk says may pass.
_CONFIG_ERRORS = (
    PermissionError,
    NotADirectoryError,
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
)
#: The same, of errors that Python has no class for.
_LASTING = frozenset({errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP})


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, which takes the name `path` when the block ends, and vanishes if it raises.

    Raises ConfigError if the folder is missing or not writable, TransientError if the disk refuses.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        sync_folder(path.parent)
    except OSError as error:
        raise local_error(error, f"{path} cannot be written") from error


def local_error(error: OSError, what: str) -> HiddenfeedError:
    """`what` and the reason, as ConfigError or TransientError according to who can put it right."""
    kind = ConfigError if isinstance(error, _CONFIG_ERRORS) or error.errno in _LASTING else TransientError
    return kind(f"{what}: {error.strerror}")


def sync_file(path: Path) -> None:
    """Make the bytes of a file durable that somebody else has written."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems have no such thing; their servers order names by themselves.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
