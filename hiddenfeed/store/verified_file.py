"""A local file on its way into a store: what leaves is what its writer announced, or the last block does not leave.

So a file that was changed, truncated or grown after its checksum was taken never becomes an object,
whether or not the store verifies anything, and the file is read once. Towards a store that is known
to verify what it receives, the kernel sends the file and nothing reads it here.
"""

from __future__ import annotations

import errno
import io
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from hiddenfeed.checksum import RunningChecksum, parse
from hiddenfeed.errors import DataError, TransientError
from hiddenfeed.local_file import local_error
from hiddenfeed.store.deadline import NO_DEADLINE, Deadline

#: Small enough to stay in a core's cache between reading, checking and sending, and to have hundreds of.
BLOCK_BYTES = 256 * 1024
#: Handed to the kernel at a time; between two of them the deadline is looked at.
_SENDFILE_BYTES = 4 * 1024 * 1024
#: What a call that reads and sends fails with where the file, or its file system, is why: reading tells.
_NOT_BY_KERNEL = frozenset(
    {errno.EIO, errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOSYS, errno.EOPNOTSUPP}
)


class VerifiedFile:
    """An open file whose size was checked; any number of bodies may be read from it at a time."""

    def __init__(self, path: Path, size_bytes: int, checksum: str, deadline: Deadline = NO_DEADLINE) -> None:
        """Raises DataError if the file is missing, a link, empty, or not of `size_bytes`; ConfigError if it may not be read."""
        self.path = path
        self.size_bytes = size_bytes
        self.checksum = checksum
        self.deadline = deadline
        self.algorithm, _ = parse(checksum)
        if size_bytes == 0:
            raise DataError(f"{path} is empty; an empty file is never stored")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            what = f"{path} cannot be read"
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise DataError(f"{what}: {error.strerror}") from error
            raise local_error(error, what) from error
        self.file = io.FileIO(descriptor)
        try:
            self.check_size()
        except BaseException:
            self.file.close()
            raise

    def check_size(self) -> None:
        """Raises DataError if the file is no longer of the size it should be."""
        size = os.fstat(self.file.fileno()).st_size
        if size != self.size_bytes:
            raise DataError(f"{self.path} has {size} bytes where its writer announced {self.size_bytes}")

    def check_bytes(self) -> None:
        """Read it all; raises DataError if it is not what its writer announced."""
        body = self.body()
        while body.read():
            pass

    def body(self, *, store_verifies: bool = False) -> VerifiedBody:
        """The whole file, to be read from the start; checked here unless the store does it."""
        return VerifiedBody(self, 0, self.size_bytes, self.checksum, check=not store_verifies)

    def part_checksum(self, start: int, length: int) -> str:
        """`algorithm:base64` of a section, read for that."""
        running = RunningChecksum(self.algorithm)
        for block in self.blocks(start, length):
            running.update(block)
        return running.value

    def blocks(self, start: int, length: int) -> Iterator[memoryview]:
        """The bytes of a section; each block is valid until the next."""
        body = VerifiedBody(self, start, length, "", check=False)
        while block := body.read():
            yield block

    def part(self, start: int, length: int, checksum: str, *, store_verifies: bool = False) -> VerifiedBody:
        """A section whose checksum was taken with `part_checksum`."""
        return VerifiedBody(self, start, length, checksum, check=not store_verifies)

    def __enter__(self) -> VerifiedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()


class VerifiedBody:
    """A section of the file as the binary stream that HTTP clients read from; may be read again after `seek(0)`.

    `failure` keeps the reason once the bytes have proven wrong or time is over, since HTTP clients
    wrap what a body raises; from then on every read raises it.
    """

    def __init__(self, file: VerifiedFile, start: int, length: int, checksum: str, *, check: bool) -> None:
        self.checksum = checksum
        self.failure: Exception | None = None
        self._file, self._start, self._length, self._check = file, start, length, check
        self._position = 0
        self._running = RunningChecksum(file.algorithm)
        self._buffer: memoryview | None = None

    def __len__(self) -> int:
        return self._length

    def read(self, size: int | None = -1) -> memoryview:
        """The next block, whatever `size` says; empty at the end. It is valid until the next read."""
        del size  # callers ask for 16 KiB at a time, which is slow
        with self._remembering_failure():
            return self._next_block()

    def send_to(self, connection: socket.socket) -> None:
        """Send all of it from the start, over a connection that blocks or speaks TLS.

        Raises DataError if the file is not what it should be, TransientError when time is over,
        and OSError if the connection fails.
        """
        self.seek(0)
        if self._check or isinstance(connection, ssl.SSLSocket):
            while block := self.read():
                connection.sendall(block)
            return
        with self._remembering_failure():
            while self._position < self._length:
                self._file.deadline.check()
                self._hand_over(connection, min(_SENDFILE_BYTES, self._length - self._position))

    def _hand_over(self, connection: socket.socket, wanted: int) -> None:
        """Let the kernel send up to `wanted` bytes."""
        file, offset = self._file, self._start + self._position
        if wanted == self._length - self._position:
            file.check_size()
        try:
            count = os.sendfile(connection.fileno(), file.file.fileno(), offset, wanted)
        except OSError as error:
            if error.errno not in _NOT_BY_KERNEL:
                raise
            connection.sendall(self._next_block())
            return
        if not count:
            raise DataError(f"{file.path} ends at byte {offset} of {file.size_bytes}")
        self._position += count

    def _next_block(self) -> memoryview:
        self._file.deadline.check()
        if self._buffer is None:
            self._buffer = memoryview(bytearray(min(BLOCK_BYTES, self._length)))
        wanted = min(len(self._buffer), self._length - self._position)
        block = self._buffer[:wanted]
        filled = 0
        while filled < wanted:
            offset = self._start + self._position + filled
            try:
                count = os.preadv(self._file.file.fileno(), [block[filled:]], offset)
            except OSError as error:
                raise DataError(f"{self._file.path} cannot be read: {error.strerror}") from error
            if not count:
                raise DataError(f"{self._file.path} ends at byte {offset} of {self._file.size_bytes}")
            filled += count
        if self._check:
            self._running.update(block)
        self._position += wanted
        if wanted and self._position == self._length:
            self._verify()
        return block

    def _verify(self) -> None:
        """The last block is in hand and not given out yet."""
        self._file.check_size()
        if self._check and self._running.value != self.checksum:
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

    def _remembering_failure(self) -> _FailureKept:
        if self.failure is not None:
            raise self.failure
        return _FailureKept(self)


class _FailureKept:
    """Notes what a body raises in the body itself, unless it is the connection's failure."""

    def __init__(self, body: VerifiedBody) -> None:
        self._body = body

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, DataError | TransientError):
            self._body.failure = error
