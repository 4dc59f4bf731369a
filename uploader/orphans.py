"""Uploads in parts that nobody goes on with: they are invisible, and cost space until they are given up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import redis

from common.logs import get_logger
from common.periodic import Periodic
from common.redis_client import translated
from hiddenfeed.errors import ConfigError, DataError, HiddenfeedError, TransientError
from hiddenfeed.layout import check_run_id, index_key, parse_batch_key, tokens_key
from hiddenfeed.store import UploadNote
from hiddenfeed.store.base import KeepsParts, UnfinishedUpload
from hiddenfeed.store.s3_judge import is_whole
from uploader.notes import RedisNotes

_log = get_logger("uploader")

INTERVAL_SECONDS = 600.0
_TURN_KEY = "hiddenfeed:orphans"


def orphans(
    uploads: Iterable[UnfinishedUpload],
    notes: Mapping[str, UploadNote],
    *,
    now: float,
    least_age_seconds: float,
) -> list[UnfinishedUpload]:
    """Those of our runs that are old, and are not the one that a young note of the key speaks of. Pure."""
    found = []
    for upload in uploads:
        note = notes.get(upload.key)
        young = note is not None and now - note.began_at < least_age_seconds
        in_use = note is not None and young and note.upload_id == upload.upload_id
        if now - upload.began_at >= least_age_seconds and not in_use and _is_ours(upload.key):
            found.append(upload)
    return found


def give_up(
    store: KeepsParts, notes: RedisNotes, *, now: float, least_age_seconds: float
) -> list[UnfinishedUpload]:
    """Abort the orphans; returns them. Where an object is under the key it must be whole, and outlive that.

    Some servers took a finished object away with the leftovers of another upload of its key: there, and
    where an object does not tell what it was meant to be, they are left to the bucket's rules.
    """
    aborted = []
    spared: bool | None = None
    # The notes after the uploads: one that is begun between the two is noted, whatever the store's clock says of its age.
    uploads = list(store.unfinished_uploads())
    for upload in orphans(uploads, notes.all(), now=now, least_age_seconds=least_age_seconds):
        found = store.head(upload.key)
        if found is not None and spared is None:
            spared = store.abort_spares_object()
        if found is not None and not (spared and is_whole(found)):
            _log.info("left parts of an object that is there to the bucket's lifecycle rule", key=upload.key)
            continue
        store.abort_upload(upload.key, upload.upload_id)
        notes.forget(upload.key, upload.upload_id)
        _log.warning("gave up an upload that nobody went on with", key=upload.key, upload=upload.upload_id)
        aborted.append(upload)
    return aborted


class OrphanKeeper:
    """Calls `give_up` now and then; of all uploaders of a store, one at a time."""

    def __init__(
        self, store: KeepsParts, notes: RedisNotes, client: redis.Redis, least_age_seconds: float
    ) -> None:
        self._store, self._notes, self._client = store, notes, client
        self._least_age_seconds = least_age_seconds
        self._periodic = Periodic("looking for forgotten uploads", self.keep, INTERVAL_SECONDS)

    def __enter__(self) -> OrphanKeeper:
        self._periodic.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._periodic.stop()

    def keep(self) -> None:
        """One look, if it is our turn; raises TransientError and ConfigError when Redis or the store cannot be asked."""
        if not self._my_turn():
            return
        try:
            give_up(self._store, self._notes, now=time.time(), least_age_seconds=self._least_age_seconds)
        except (TransientError, ConfigError):
            raise
        except HiddenfeedError as error:
            _log.info("this store does not tell its unfinished uploads", reason=str(error))

    def _my_turn(self) -> bool:
        with translated(self._client):
            key = f"{_TURN_KEY}:{self._store.url}"
            return bool(self._client.set(key, "1", nx=True, ex=int(INTERVAL_SECONDS) - 1))


def _is_ours(key: str) -> bool:
    """A batch file, or one of the tables of a run; whatever else is in the bucket is another's."""
    run_id = key.partition("/")[0]
    try:
        check_run_id(run_id)
        return parse_batch_key(key) is not None or key in (tokens_key(run_id), index_key(run_id))
    except DataError:
        return False
