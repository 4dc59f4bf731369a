"""Files that are owned while they are written: the writer holds a lock, and the lock dies with it.

So a sweeper tells a file that is still written from one whose writer was killed, on one host and
without pids, clocks or heartbeats.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def create_owned(path: Path, mode: int = 0o640) -> int:
    """Create `path`, which must not exist, and return its locked descriptor.

    The lock is held until the descriptor is closed. Raises OSError (FileExistsError if it exists).
    """
    while True:
        descriptor = os.open(path, _CREATE, mode)
        try:
            # Only a sweeper can hold it, which met the file before it was locked: it has its name until that is done.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            owned = os.fstat(descriptor).st_nlink > 0
        except BaseException:
            os.close(descriptor)
            raise
        if owned:
            return descriptor
        # The sweeper has taken it away: make another.
        os.close(descriptor)


def remove_if_abandoned(path: Path) -> bool:
    """Remove `path` if its writer is dead; False if it lives, or the file is gone or is a link."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return False
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The writer may have finished since: then its name is another one's, or nobody's.
        if not os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            return False
        path.unlink()
    except (BlockingIOError, FileNotFoundError):
        return False
    finally:
        os.close(descriptor)
    return True
