"""A store in a folder: every object is a plain file, complete from the moment it can be seen.

A file is written under `.tmp`, made durable and then linked to its name, which fails if there is
one already: the first writer wins, as with S3's conditional writes. Nothing but the objects is
kept, so checksums are computed when asked for and metadata is not stored.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hiddenfeed.checksum import checksum_of, file_checksum
from hiddenfeed.errors import ConfigError, DataError, MissingObjectError
from hiddenfeed.layout import check_key
from hiddenfeed.local_file import local_error, replacing, sync_file, sync_folder
from hiddenfeed.owned_file import create_owned, remove_if_abandoned
from hiddenfeed.store.base import ObjectInfo, PutOutcome
from hiddenfeed.store.directory_root import DirectoryRoot
from hiddenfeed.store.gate import RequestGate
from hiddenfeed.store.verified_file import VerifiedFile

#: No key starts with a dot, so no object can be in here.
_TEMPORARY = ".tmp"
_FILE_MODE = 0o644


class DirectoryStore:
    """Objects as files below one folder; safe to share between threads, processes and hosts."""

    def __init__(self, root: Path, gate: RequestGate | None = None) -> None:
        self.root = root.expanduser().absolute()
        self._root = DirectoryRoot(self.root)
        self._gate = gate or RequestGate()
        #: Folders below the root whose names this process has made durable.
        self._durable: set[Path] = set()

    @property
    def url(self) -> str:
        """The folder's absolute path."""
        return str(self.root)

    def check(self, *, create: bool = False) -> None:
        """See `Store.check`."""
        try:
            if create:
                self._prove_writable()
            self._root.require()
            with os.scandir(self.root):
                pass
        except OSError as error:
            raise local_error(error, f"store folder {self.root} cannot be used") from error

    def head(self, key: str, *, checksum: bool = False) -> ObjectInfo | None:
        """See `Store.head`."""
        path = self._path(key)
        try:
            size = path.stat().st_size
            if not path.is_file():
                return None
            return ObjectInfo(key=key, size_bytes=size, checksum=file_checksum(path) if checksum else None)
        except (FileNotFoundError, NotADirectoryError):
            self._root.is_there()  # else it says nothing of the object
            return None
        except OSError as error:
            raise local_error(error, f"{path} cannot be read") from error

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`."""
        folder = prefix.rpartition("/")[0]
        if folder:
            check_key(folder)
        found = []
        self._root.is_there()
        for parent, folders, names in os.walk(self.root / folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            relative = os.path.relpath(parent, self.root)
            for name in names:
                key = name if relative == "." else f"{relative}/{name}"
                if key.startswith(prefix) and not name.startswith("."):
                    found.append(key)
        for key in sorted(found):
            try:
                yield ObjectInfo(key=key, size_bytes=(self.root / key).stat().st_size)
            except FileNotFoundError:
                continue  # deleted since, or a dangling link: no object

    def folders(self) -> Iterator[str]:
        """See `Store.folders`; an empty folder counts as well."""
        self._root.is_there()
        try:
            with os.scandir(self.root) as entries:
                names = [entry.name for entry in entries if entry.is_dir()]
        except FileNotFoundError:
            return
        except OSError as error:
            raise local_error(error, f"{self.root} cannot be read") from error
        yield from sorted(name for name in names if not name.startswith("."))

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """See `Store.read`."""
        with self._reading(key) as path, path.open("rb") as file:
            file.seek(start)
            return file.read(-1 if length is None else length)

    def download(self, key: str, path: Path) -> ObjectInfo:
        """See `Store.download`; there is no stored checksum to compare with, so what was read is what is returned."""
        with self._reading(key) as source, source.open("rb") as reader, replacing(path) as writer:
            shutil.copyfileobj(reader, writer, 1024 * 1024)
        return ObjectInfo(key=key, size_bytes=path.stat().st_size, checksum=file_checksum(path))

    def write(self, key: str, data: bytes, *, if_absent: bool = False) -> PutOutcome:
        """See `Store.write`."""
        path = self._path(key)
        if not data:
            raise DataError(f"{key} would be empty; an empty object is never stored")
        with self._writing(path) as (descriptor, temporary):
            _write_all(descriptor, memoryview(data))
            os.fsync(descriptor)
            if if_absent:
                return self._publish(temporary, path, len(data), checksum_of(data))
            temporary.replace(path)
            sync_folder(path.parent)
        return PutOutcome.STORED

    def put_file(
        self,
        key: str,
        path: Path,
        *,
        size_bytes: int,
        checksum: str,
        metadata: Mapping[str, str] | None = None,
    ) -> PutOutcome:
        """See `Store.put_file`; `metadata` is not kept."""
        target = self._path(key)
        with VerifiedFile(path, size_bytes, checksum) as source:
            self._root.require()
            if target.exists():
                return self._there_first(target, size_bytes, checksum)
            with self._gate.request(), self._writing(target) as (descriptor, temporary):
                body = source.body()
                while block := body.read():
                    _write_all(descriptor, block)
                os.fsync(descriptor)
                return self._publish(temporary, target, size_bytes, checksum)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        path = self._path(key)
        self._root.is_there()
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise local_error(error, f"{path} cannot be deleted") from error

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    @contextmanager
    def _reading(self, key: str) -> Iterator[Path]:
        path = self._path(key)
        try:
            yield path
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            self._root.is_there()
            raise MissingObjectError(f"{path} does not exist") from None
        except OSError as error:
            raise local_error(error, f"{path} cannot be read") from error

    @contextmanager
    def _writing(self, path: Path) -> Iterator[tuple[int, Path]]:
        """An owned temporary file for `path`, gone when the block ends; its folder exists.

        The root is looked at afterwards as well: the caller deletes what it has.
        """
        self._root.require()
        try:
            self._make_durable(path.parent)
            self._make_durable(self.root / _TEMPORARY)
            temporary = self.root / _TEMPORARY / uuid.uuid4().hex
            descriptor = create_owned(temporary, _FILE_MODE)
            try:
                yield descriptor, temporary
            finally:
                temporary.unlink(missing_ok=True)
                os.close(descriptor)
        except OSError as error:
            self._root.require()
            raise local_error(error, f"{path} cannot be written") from error
        self._root.require()

    def _publish(self, temporary: Path, path: Path, size_bytes: int, checksum: str) -> PutOutcome:
        """Give a finished file its name unless another has it."""
        if temporary.stat().st_size != size_bytes:
            raise OSError(errno.EIO, "the disk kept less than was written")
        try:
            os.link(temporary, path)
        except FileExistsError:
            return self._there_first(path, size_bytes, checksum)
        sync_folder(path.parent)
        return PutOutcome.STORED

    def _there_first(self, path: Path, size_bytes: int, checksum: str) -> PutOutcome:
        """Which outcome an object that was there first means for a file of this size and checksum.

        It is made durable: whoever stored it may have died before that, and the caller deletes what it has.
        """
        try:
            algorithm = checksum.partition(":")[0]
            same = path.stat().st_size == size_bytes and file_checksum(path, algorithm) == checksum
            sync_file(path)
            self._make_durable(path.parent)
            sync_folder(path.parent)
        except OSError as error:
            raise local_error(error, f"{path} cannot be read") from error
        self._root.require()
        return PutOutcome.ALREADY_THERE if same else PutOutcome.OTHER_WINS

    def _make_durable(self, folder: Path) -> None:
        """Create a folder of the store, its parents too, so that they survive a power cut.

        One that is there may have been made a moment ago by somebody who died since, so the first
        time its name is made durable all the same.
        """
        if folder == self.root:
            return
        if folder in self._durable and folder.is_dir():
            return
        self._make_durable(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
        self._durable.add(folder)

    def _prove_writable(self) -> None:
        """Create the folder, sweep it, and prove that its file system can publish a file the way we do."""
        self._root.make()
        self._root.require()
        self._make_durable(self.root / _TEMPORARY)
        for leftover in (self.root / _TEMPORARY).iterdir():
            remove_if_abandoned(leftover)
        probe = self.root / _TEMPORARY / uuid.uuid4().hex
        second = probe.with_suffix(".link")
        descriptor = create_owned(probe)
        try:
            os.link(probe, second)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise ConfigError(
                    f"the file system of {self.root} has no hard links, which a store in a folder needs"
                ) from error
            raise
        finally:
            second.unlink(missing_ok=True)
            probe.unlink(missing_ok=True)
            os.close(descriptor)


def _write_all(descriptor: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(descriptor, data) :]
