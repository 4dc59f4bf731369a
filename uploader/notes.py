"""Uploads in parts that were begun, remembered in Redis: whoever gets the file next goes on with them."""

from __future__ import annotations

import msgspec
import redis

from common.redis_client import text, translated
from hiddenfeed.store import UploadNote

_KEY = "hiddenfeed:parts:"
#: KEYS: the hash. ARGV: the object's key, the upload's id.
_FORGET = """
local note = redis.call('HGET', KEYS[1], ARGV[1])
if note and cjson.decode(note).upload_id == ARGV[2] then
  redis.call('HDEL', KEYS[1], ARGV[1])
end
"""


class RedisNotes:
    """The notes of one store; see `hiddenfeed.store.UploadNotes`."""

    def __init__(self, client: redis.Redis, store_url: str) -> None:
        self._client, self._hash = client, _KEY + store_url
        self._forget = client.register_script(_FORGET)

    def load(self, key: str) -> UploadNote | None:
        """The upload begun for `key`; None as well if what is noted is none."""
        with translated(self._client):
            raw = self._client.hget(self._hash, key)
        return None if raw is None else _note(raw)

    def save(self, key: str, note: UploadNote) -> None:
        """Remember an upload, in place of an earlier one."""
        with translated(self._client):
            self._client.hset(self._hash, key, msgspec.json.encode(note))

    def forget(self, key: str, upload_id: str) -> None:
        """It is complete or given up."""
        with translated(self._client):
            self._forget(keys=[self._hash], args=[key, upload_id])

    def all(self) -> dict[str, UploadNote]:
        """All notes by object key; what is none is left out."""
        with translated(self._client):
            found = self._client.hgetall(self._hash)
        notes = {text(key): _note(raw) for key, raw in found.items()}
        return {key: note for key, note in notes.items() if note is not None}


def _note(raw: bytes | str) -> UploadNote | None:
    """Redis is not trusted: what does not decode is no note."""
    try:
        return msgspec.json.decode(raw, type=UploadNote)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
