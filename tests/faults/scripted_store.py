"""A store at the scripted server: one attempt a call, parts as small as no real store takes them, and notes that outlive it."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import msgspec

from hiddenfeed.checksum import checksum_of
from hiddenfeed.errors import TransientError
from hiddenfeed.options import MIB, StoreOptions
from hiddenfeed.store import PutOutcome, RequestGate, Store, UploadNote, open_store
from tests.faults.scripted_s3 import ScriptedS3

KEY = "run-1/batches/000000.safetensors"
#: Where the server has it.
PLACE = f"runs/{KEY}"
PART = MIB
#: Three parts.
DATA = os.urandom(2 * PART + 1000)


class Notes:
    """Notes of uploads in parts that outlive a store, as those in Redis do."""

    def __init__(self) -> None:
        self.kept: dict[str, UploadNote] = {}
        self.away = False

    def load(self, key: str) -> UploadNote | None:
        return self.kept.get(key)

    def save(self, key: str, note: UploadNote) -> None:
        if self.away:
            raise TransientError("the notes are away")
        self.kept[key] = note

    def forget(self, key: str, upload_id: str) -> None:
        if key in self.kept and self.kept[key].upload_id == upload_id:
            del self.kept[key]


def opened(
    server: ScriptedS3, notes: Notes | None = None, gate: RequestGate | None = None, **changes: Any
) -> Store:
    """One attempt a call, parts above 1 MiB, one at a time unless told otherwise."""
    options = StoreOptions(
        s3_endpoint=server.endpoint,
        s3_connect_timeout_seconds=20,
        s3_read_timeout_seconds=20,
        s3_max_attempts=1,
        multipart_threshold_bytes=PART,
        multipart_part_bytes=PART,
        multipart_parts_in_flight=1,
    )
    return open_store("s3://bucket/runs", msgspec.structs.replace(options, **changes), gate=gate, notes=notes)


def put(
    store: Store, tmp_path: Path, data: bytes = DATA, *, key: str = KEY, announced: bytes | None = None
) -> PutOutcome:
    """Put a file of `data`; `announced` is what its checksum is of, if not of that. Several threads may put at a time."""
    path = tmp_path / f"{threading.get_ident()}.bin"
    path.write_bytes(data)
    return store.put_file(key, path, size_bytes=len(data), checksum=checksum_of(announced or data))
