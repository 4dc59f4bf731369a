"""The spool: the capped folder on local disk between a GPU worker and the uploaders of its host.

`<spool_dir>/<run_id>/<000042>-<token>.safetensors`, with `.part` appended while it is written. The
token is unique per attempt, so two deliveries of one batch never share a file. One lock file
serialises all that makes the spool grow, over all processes of the host: the cap is never exceeded.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from common.part_file import PART_SUFFIX, PartFile
from common.settings.catalogue import SpoolSettings
from common.spool_path import FILE_NAME, RELATIVE, SUFFIXES, TOKEN, plain_file, replaced_file
from hiddenfeed.errors import ConfigError, PermanentError, TransientError
from hiddenfeed.layout import batch_name, check_run_id
from hiddenfeed.local_file import local_error, replacing, sync_folder
from hiddenfeed.owned_file import remove_if_abandoned

_LOCK_NAME = ".lock"
#: Holds the name of a spool that was given none: every role that shares the folder shares the name.
_NAME_FILE = ".name"
_FOLDER_MODE = 0o2770
_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")


class SpoolUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a spool holds now. `bytes + part_bytes` is what the cap limits."""

    #: Finished files, waiting for upload.
    files: int
    bytes: int
    #: Files being written, at their full size from the start.
    part_bytes: int
    cap_bytes: int
    #: What a spool that was full must come down to before it is filled again.
    low_bytes: int = 0
    disk_free_bytes: int
    #: Disk space promised to files being written that the disk has not handed out yet.
    promised_bytes: int = 0


class SpoolFile(msgspec.Struct, frozen=True, kw_only=True):
    """One finished file in the spool."""

    run_id: str
    batch_id: int
    #: POSIX path relative to the spool's folder.
    path: str
    size_bytes: int
    #: Seconds since the epoch, as the file system says.
    modified_at: float


def kept_name(root: Path) -> str:
    """The name that a spool's folder keeps; empty if it keeps none. Raises ConfigError if it cannot be one."""
    try:
        name = (root / _NAME_FILE).read_text()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise local_error(error, f"{root / _NAME_FILE} cannot be read") from error
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{root / _NAME_FILE} holds no name of a spool; remove it, or give --spool")
    return name


def low_mark(limit: int, percent: int) -> int:
    """The level below `limit` at which what was stopped there goes on."""
    return limit * percent // 100


class Spool:
    """One spool of this host. Constructing it touches no disk; safe to share between threads."""

    def __init__(self, settings: SpoolSettings, current: Callable[[], SpoolSettings] | None = None) -> None:
        """`current` is asked for the cap and the free space whenever they matter, so they may change; name and folder stay."""
        self._name = settings.spool
        self.root = Path(settings.spool_dir).expanduser().absolute()
        self._current = current or (lambda: settings)

    @property
    def name(self) -> str:
        """The name it was given, or the one kept in its folder; the first who asks makes it up."""
        if not self._name:
            self.check()
        return self._name

    def check(self) -> None:
        """Create the folder if need be, prove that it can be written and settle the name; raises ConfigError."""
        with self._locked():
            self._name = self._name or kept_name(self.root)
            if not self._name:
                self._name = f"spool-{secrets.token_hex(4)}"
                with replacing(self.root / _NAME_FILE) as file:
                    file.write(self._name.encode())

    def usage(self) -> SpoolUsage:
        """What the spool holds; a spool that was never used holds nothing."""
        files = used = part = promised = 0
        for name, status in self._entries():
            if name.endswith(PART_SUFFIX):
                part += status.st_size
                promised += max(0, status.st_size - status.st_blocks * 512)
            else:
                files += 1
                used += status.st_size
        existing = next(folder for folder in (self.root, *self.root.parents) if folder.exists())
        limits = self._current()
        return SpoolUsage(
            files=files,
            bytes=used,
            part_bytes=part,
            cap_bytes=limits.spool_cap_bytes,
            low_bytes=low_mark(limits.spool_cap_bytes, limits.spool_low_percent),
            disk_free_bytes=shutil.disk_usage(existing).free,
            promised_bytes=promised,
        )

    def has_room(self, size_bytes: int) -> bool:
        """Whether a file of this size would be let in now; `reserve` alone decides."""
        usage = self.usage()
        left = usage.disk_free_bytes - usage.promised_bytes - self._current().spool_free_bytes
        return usage.bytes + usage.part_bytes + size_bytes <= usage.cap_bytes and size_bytes <= left

    def problem_with(self, run_id: str) -> str | None:
        """Why no file of that run may be written here, as nobody could count it or take it away; None if any may."""
        folder = self.root / check_run_id(run_id)
        if folder.is_symlink():
            return f"{folder} is a link: what lies behind it counts for no cap, and no uploader takes it"
        return None

    def reserve(
        self, run_id: str, batch_id: int, token: str, size_bytes: int, suffix: str = ".safetensors"
    ) -> PartFile | None:
        """A file of exactly `size_bytes` to write into, its space taken; None while there is no room.

        Raises ConfigError for a file larger than the cap, since waiting would not help, and
        PermanentError for a token or suffix that cannot name a file; TransientError as `problem_with` says.
        """
        if not TOKEN.fullmatch(token) or suffix not in SUFFIXES:
            raise PermanentError(f"{token!r} with suffix {suffix!r} cannot name a file in the spool")
        cap = self._current().spool_cap_bytes
        if size_bytes > cap:
            raise ConfigError(
                f"a file of {size_bytes} bytes never fits the spool's cap of {cap} bytes; raise --spool-cap-bytes"
            )
        folder = self.root / check_run_id(run_id)
        part_path = folder / f"{batch_name(batch_id)}-{token}{suffix}{PART_SUFFIX}"
        try:
            with self._locked():
                if not self.has_room(size_bytes):
                    return None
                if (problem := self.problem_with(run_id)) is not None:
                    raise TransientError(problem)
                _make_folder(folder)
                part = PartFile(part_path, size_bytes, self._locked)
            # Outside the lock: some disks take long, and the size counts already.
            part.allocate()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return None
            raise local_error(error, f"{part_path} cannot be written") from error
        return part

    def resolve(self, relative: str) -> Path:
        """The absolute path of a finished file, there or not; raises PermanentError for what leaves the spool."""
        return plain_file(self.root, relative)

    def is_replaced(self, relative: str) -> bool:
        """Whether a link, pipe, socket or device has a finished file's name; raises PermanentError as `remove`."""
        return replaced_file(self.root, relative) is not None

    def open(self, relative: str) -> int:
        """A read-only descriptor of a finished file; raises FileNotFoundError, or PermanentError as `resolve`."""
        return os.open(self.resolve(relative), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def remove(self, relative: str) -> bool:
        """Delete a finished file, or what has its name, never what a link leads to; False if it was gone already.

        Raises PermanentError for a path that leaves the spool, and for a folder under a file's name.
        """
        path = replaced_file(self.root, relative) or plain_file(self.root, relative)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise local_error(error, f"{path} cannot be deleted") from error
        return True

    def files(self) -> list[SpoolFile]:
        """All finished files, by run and batch."""
        found = []
        for name, status in self._entries():
            run_id, _, file_name = name.partition("/")
            if match := FILE_NAME.fullmatch(file_name):
                found.append(
                    SpoolFile(
                        run_id=run_id,
                        batch_id=int(match["batch"]),
                        path=name,
                        size_bytes=status.st_size,
                        modified_at=status.st_mtime,
                    )
                )
        return sorted(found, key=lambda file: file.path)

    def sweep(self) -> list[str]:
        """Remove what dead writers left half-written, and empty run folders; returns the names removed."""
        if not self.root.exists():
            return []
        removed = []
        with self._locked():
            for name, _ in list(self._entries()):
                if name.endswith(PART_SUFFIX) and remove_if_abandoned(self.root / name):
                    removed.append(name)
            for folder in self._run_folders():
                try:
                    folder.rmdir()
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                        raise
        return removed

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the spool's lock: against other processes and other threads alike."""
        try:
            _make_folder(self.root)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            lock = os.open(self.root / _LOCK_NAME, flags, 0o660)
        except OSError as error:
            raise local_error(error, f"spool folder {self.root} cannot be written") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _run_folders(self) -> Iterator[Path]:
        """Folders of runs; other things in the spool's folder are not the spool's."""
        try:
            with os.scandir(self.root) as entries:
                folders = [
                    self.root / entry.name
                    for entry in entries
                    if entry.is_dir(follow_symlinks=False) and RELATIVE.fullmatch(f"{entry.name}/x")
                ]
        except FileNotFoundError:
            return
        yield from folders

    def _entries(self) -> Iterator[tuple[str, os.stat_result]]:
        """(relative path, status) of every file of the spool, `.part` files included."""
        for folder in self._run_folders():
            try:
                with os.scandir(folder) as entries:
                    names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
            except FileNotFoundError:
                continue
            for name in names:
                if not FILE_NAME.fullmatch(name.removesuffix(PART_SUFFIX)):
                    continue
                try:
                    yield f"{folder.name}/{name}", (folder / name).lstat()
                except FileNotFoundError:
                    continue  # uploaded and deleted, or published, while we looked


def _make_folder(folder: Path) -> None:
    """Create a folder that other roles of the host, in the same group, may delete from."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=_FOLDER_MODE)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return
    folder.chmod(_FOLDER_MODE)  # the umask took its share of mkdir's mode
    sync_folder(folder.parent)
