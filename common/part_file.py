"""A file of the spool while it is written: owned, sized from the start, then published or discarded."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from hiddenfeed.errors import PermanentError, TransientError
from hiddenfeed.local_file import sync_folder
from hiddenfeed.owned_file import create_owned

PART_SUFFIX = ".part"
_FILE_MODE = 0o640


class PartFile:
    """Made by `Spool.reserve`. As a context manager it discards itself unless it was published.

    `fd` is open for reading and writing and holds the lock that tells the writer lives.
    """

    def __init__(
        self, path: Path, size_bytes: int, locked: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Create the file at its full size, which counts from now on; raises OSError and leaves nothing."""
        self.path = path
        self.size_bytes = size_bytes
        self._locked = locked
        self.fd = create_owned(path)
        self._open = True
        try:
            os.ftruncate(self.fd, size_bytes)
        except BaseException:
            self.discard()
            raise

    def allocate(self) -> None:
        """Have the disk hand out the whole size now, so that writing cannot run out of it.

        Raises OSError, the file discarded.
        """
        try:
            if self.size_bytes:
                os.posix_fallocate(self.fd, 0, self.size_bytes)
        except OSError as error:
            # Some file systems cannot promise space: there the size counts against the cap only.
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                self.discard()
                raise

    def write_at(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of `data` at `offset`; raises TransientError if the disk refuses, PermanentError beyond the size."""
        view = memoryview(data).cast("B")
        if offset + len(view) > self.size_bytes:
            raise PermanentError(
                f"{self.path.name}: a write up to {offset + len(view)} exceeds {self.size_bytes} bytes"
            )
        try:
            while len(view):
                count = os.pwrite(self.fd, view, offset)
                view, offset = view[count:], offset + count
        except OSError as error:
            raise TransientError(f"{self.path} could not be written: {error.strerror}") from error

    def publish(self) -> str:
        """Make the file durable and visible under its final name; returns its path relative to the spool.

        Raises TransientError if the disk refuses, and PermanentError if the file's size is not
        what was reserved or a file of that name is there already.
        """
        final = self.path.with_name(self.path.name.removesuffix(PART_SUFFIX))
        size = os.fstat(self.fd).st_size
        if size != self.size_bytes:
            raise PermanentError(f"{final.name} has {size} bytes where {self.size_bytes} were reserved")
        try:
            os.fchmod(self.fd, _FILE_MODE)
            os.fsync(self.fd)
            # Under the lock: who counts the spool meanwhile must see one of the two names.
            with self._locked():
                if final.exists():
                    raise PermanentError(f"{final} exists already; a token must be used once")
                self.path.rename(final)
                self.path = final  # what to take away again should the next line fail
            sync_folder(final.parent)
        except OSError as error:
            raise TransientError(f"{final} could not be made durable: {error.strerror}") from error
        self._close()
        return f"{final.parent.name}/{final.name}"

    def discard(self) -> None:
        """Remove the file unless it was published; may be called at any time, more than once."""
        if self._open:
            self.path.unlink(missing_ok=True)
            self._close()

    def _close(self) -> None:
        self._open = False
        os.close(self.fd)

    def __enter__(self) -> PartFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()
