"""The root of a store in a folder: the same folder for as long as the process lives, or an error that names it.

A disk that is unmounted leaves the folder that it was mounted on, which looks like an empty store.
So nothing is written there, and nothing is believed to be missing because it is not there.
"""

from __future__ import annotations

import stat
from pathlib import Path

from hiddenfeed.errors import ConfigError, TransientError
from hiddenfeed.local_file import local_error, sync_folder

_WAY_OUT = "mount it or bring it back, or restart this process to go on with what is there"


class DirectoryRoot:
    """One folder, known by device and inode from the first time it is seen. Safe to share between threads."""

    def __init__(self, path: Path) -> None:
        """Looks at nothing yet."""
        self.path = path
        self._seen: tuple[int, int] | None = None

    def make(self) -> None:
        """Create the folder and what is missing above it, durably, unless it was seen before; raises OSError."""
        if self._seen is None:
            _make_folders(self.path)

    def require(self) -> None:
        """Raises ConfigError unless the folder is there, and TransientError unless it is the one that was seen first."""
        if not self.is_there():
            raise ConfigError(f"store folder {self.path} does not exist")

    def is_there(self) -> bool:
        """Whether there is such a folder, of one that was never seen; raises TransientError if it has gone, or is another one now."""
        try:
            status = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            if self._seen is not None:
                raise TransientError(f"store folder {self.path} is gone; {_WAY_OUT}") from None
            return False
        except OSError as error:
            raise local_error(error, f"store folder {self.path} cannot be used") from error
        if not stat.S_ISDIR(status.st_mode):
            raise ConfigError(f"store folder {self.path} cannot be used: it is not a folder")
        found = (status.st_dev, status.st_ino)
        if self._seen is None:
            self._seen = found
        if self._seen != found:
            raise TransientError(f"store folder {self.path} is another folder than before; {_WAY_OUT}")
        return True


def _make_folders(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)
