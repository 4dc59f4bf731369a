"""A local file on its way into a store: the last block leaves only if all bytes are what they should be.

So a file that was changed, truncated or grown after its checksum was taken never becomes an object,
whether or not the store verifies anything, and the file is read once.
"""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from types import TracebackType

from hiddenfeed.checksum import RunningChecksum, parse
from hiddenfeed.errors import DataError
from hiddenfeed.local_file import local_error

#: Large reads keep the interpreter out of the way of a fast network.
BLOCK_BYTES = 1024 * 1024


class VerifiedFile:
    """An open file whose size was checked and whose bytes will be; read by one thread, one body at a time."""

    def __init__(self, path: Path, size_bytes: int, checksum: str) -> None:
        """Raises DataError if the file is missing, a link, empty, or not of `size_bytes`; ConfigError if it may not be read."""
        self.path = path
        self.size_bytes = size_bytes
        self.checksum = checksum
        self.algorithm, _ = parse(checksum)
        if size_bytes == 0:
            raise DataError(f"{path} is empty; an empty file is never stored")
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            what = f"{path} cannot be read"
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise DataError(f"{what}: {error.strerror}") from error
            raise local_error(error, what) from error
        try:
            self.check_size()
        except BaseException:
            os.close(self.fd)
            raise
        #: One block for all bodies: hundreds of files may be under way.
        self.buffer = memoryview(bytearray(min(BLOCK_BYTES, size_bytes)))

    def check_size(self) -> None:
        """Raises DataError if the file is no longer of the size it should be."""
        size = os.fstat(self.fd).st_size
        if size != self.size_bytes:
            raise DataError(f"{self.path} has {size} bytes where its writer announced {self.size_bytes}")

    def body(self) -> VerifiedBody:
        """The whole file, to be read from the start."""
        return VerifiedBody(self, 0, self.size_bytes, self.checksum)

    def part(self, start: int, length: int) -> VerifiedBody:
        """A section, read once now for its checksum and once more when it is sent."""
        unchecked = VerifiedBody(self, start, length, None)
        running = RunningChecksum(self.algorithm)
        while block := unchecked.read():
            running.update(block)
        return VerifiedBody(self, start, length, running.value)

    def __enter__(self) -> VerifiedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.fd)


class VerifiedBody:
    """A section of the file as the binary stream that HTTP clients read from; may be read again after `seek(0)`.

    `failure` keeps the reason once the bytes have proven wrong, since HTTP clients wrap what a
    body raises; from then on every read raises it.
    """

    def __init__(self, file: VerifiedFile, start: int, length: int, checksum: str | None) -> None:
        self.checksum = checksum
        self.failure: DataError | None = None
        self._file, self._start, self._length = file, start, length
        self._position = 0
        self._running = RunningChecksum(file.algorithm)

    def __len__(self) -> int:
        return self._length

    def read(self, size: int | None = -1) -> memoryview:
        """The next block, whatever `size` says; empty at the end. It is valid until the next read."""
        del size  # callers ask for 16 KiB at a time, which is slow
        if self.failure is None:
            try:
                return self._next_block()
            except DataError as error:
                self.failure = error
        raise self.failure

    def _next_block(self) -> memoryview:
        wanted = min(len(self._file.buffer), self._length - self._position)
        block = self._file.buffer[:wanted]
        filled = 0
        while filled < wanted:
            offset = self._start + self._position + filled
            try:
                count = os.preadv(self._file.fd, [block[filled:]], offset)
            except OSError as error:
                raise DataError(f"{self._file.path} cannot be read: {error.strerror}") from error
            if not count:
                raise DataError(f"{self._file.path} ends at byte {offset} of {self._file.size_bytes}")
            filled += count
        self._running.update(block)
        self._position += wanted
        if wanted and self._position == self._length:
            self._verify()
        return block

    def _verify(self) -> None:
        """The last block is in hand and not given out yet."""
        self._file.check_size()
        if self.checksum is not None and self._running.value != self.checksum:
            raise DataError(
                f"{self._file.path} has checksum {self._running.value} where its writer announced {self.checksum}"
            )

    def tell(self) -> int:
        """Bytes read so far."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Back to the start, or to the end (to measure); nowhere else, as the checksum runs along.

        Raises the failure if there was one: sending the same bytes again would not help.
        """
        if self.failure is not None:
            raise self.failure
        if (offset, whence) == (0, io.SEEK_SET):
            self._position = 0
            self._running = RunningChecksum(self._file.algorithm)
        elif (offset, whence) == (0, io.SEEK_END):
            self._position = self._length
        elif (offset, whence) != (self._position, io.SEEK_SET):
            raise io.UnsupportedOperation("a verified body is read from its start")
        return self._position
