"""The folder a preparation works in: temporary, and swept by the next one if its owner was killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hiddenfeed.errors import ConfigError
from hiddenfeed.owned_file import create_owned, remove_if_abandoned

_PREFIX = "hiddenfeed-prepare-"
_OWNER = "owner"


@contextmanager
def workplace() -> Iterator[Path]:
    """An empty folder below TMPDIR, removed at the end; raises ConfigError if there can be none."""
    try:
        sweep(Path(tempfile.gettempdir()))
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        owner = create_owned(folder / _OWNER)
    except OSError as error:
        raise ConfigError(f"no temporary folder can be made ({error}); set TMPDIR to one with room") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(owner)


def sweep(parent: Path) -> None:
    """Remove what killed preparations of this user left in `parent`."""
    for folder in parent.glob(f"{_PREFIX}*"):
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            continue
        if remove_if_abandoned(folder / _OWNER):
            shutil.rmtree(folder, ignore_errors=True)
