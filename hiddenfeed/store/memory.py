"""A store in memory, with the behaviour of the real ones; for tests and for trying things out."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from hiddenfeed.checksum import checksum_of
from hiddenfeed.errors import DataError, MissingObjectError
from hiddenfeed.layout import check_key
from hiddenfeed.local_file import replacing
from hiddenfeed.store.base import ObjectInfo, PutOutcome
from hiddenfeed.store.verified_file import VerifiedFile


class MemoryStore:
    """Objects in a dictionary; safe to share between threads."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Names the store in messages; it cannot be opened by it."""
        return "memory:"

    def check(self, *, create: bool = False) -> None:
        """Always there."""

    def head(self, key: str, *, checksum: bool = False) -> ObjectInfo | None:
        """See `Store.head`."""
        found = self._objects.get(check_key(key))
        return found[1] if found else None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`."""
        for key in sorted(self._objects):
            if key.startswith(prefix):
                yield ObjectInfo(key=key, size_bytes=self._objects[key][1].size_bytes)

    def folders(self) -> Iterator[str]:
        """See `Store.folders`."""
        yield from sorted({key.partition("/")[0] for key in self._objects if "/" in key})

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """See `Store.read`."""
        data = self._data(key)
        return data[start : len(data) if length is None else start + length]

    def download(self, key: str, path: Path) -> ObjectInfo:
        """See `Store.download`."""
        data = self._data(key)
        with replacing(path) as file:
            file.write(data)
        return self._objects[key][1]

    def write(self, key: str, data: bytes, *, if_absent: bool = False) -> PutOutcome:
        """See `Store.write`."""
        if not data:
            raise DataError(f"{key} would be empty; an empty object is never stored")
        return self._put(key, bytes(data), checksum_of(data), {}, if_absent)

    def put_file(
        self,
        key: str,
        path: Path,
        *,
        size_bytes: int,
        checksum: str,
        metadata: Mapping[str, str] | None = None,
    ) -> PutOutcome:
        """See `Store.put_file`."""
        with VerifiedFile(path, size_bytes, checksum) as source:
            body = source.body()
            data = b"".join(bytes(block) for block in iter(body.read, b""))
        return self._put(key, data, checksum, dict(metadata or {}), True)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        with self._lock:
            self._objects.pop(check_key(key), None)

    def _data(self, key: str) -> bytes:
        found = self._objects.get(check_key(key))
        if found is None:
            raise MissingObjectError(f"{self.url}{key} does not exist")
        return found[0]

    def _put(
        self, key: str, data: bytes, checksum: str, metadata: dict[str, str], if_absent: bool
    ) -> PutOutcome:
        info = ObjectInfo(key=check_key(key), size_bytes=len(data), checksum=checksum, metadata=metadata)
        with self._lock:
            if if_absent and key in self._objects:
                same = self._objects[key][0] == data
                return PutOutcome.ALREADY_THERE if same else PutOutcome.OTHER_WINS
            self._objects[key] = (data, info)
        return PutOutcome.STORED
