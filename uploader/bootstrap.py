"""Wiring of the uploader: from settings to a worker that serves the upload queue of its spool."""

from __future__ import annotations

from contextlib import ExitStack

from common.logs import get_logger, setup_logging
from common.queues import UPLOAD_FUNCTION, upload_queue_name
from common.redis_client import connect
from common.settings.catalogue import (
    LogSettings,
    QueueSettings,
    RedisSettings,
    SpoolSettings,
    StoreSettings,
    UploadSettings,
)
from common.settings.live import LiveSettings
from common.settings.resolve import Resolved
from common.spool import Spool
from common.worker import Worker
from hiddenfeed.options import StoreOptions
from hiddenfeed.store import open_store
from hiddenfeed.store.base import KeepsParts
from uploader.circuit import Circuit
from uploader.decide import request_count
from uploader.notes import RedisNotes
from uploader.orphans import OrphanKeeper
from uploader.share import Share
from uploader.tidy import Tidier
from uploader.upload import FileUploader

ROLE = "uploader"

#: All settings this role has.
GROUPS = (
    RedisSettings,
    StoreSettings,
    StoreOptions,
    SpoolSettings,
    UploadSettings,
    QueueSettings,
    LogSettings,
)


def serve(settings: Resolved) -> int:
    """Check spool, Redis and store, then serve until told to stop; returns the exit code.

    Raises ConfigError or TransientError, one sentence each, if one of the three cannot be used.
    """
    setup_logging(settings.group(LogSettings), ROLE)
    upload, options = settings.group(UploadSettings), settings.group(StoreOptions)
    url = settings.group(StoreSettings).store
    spool = Spool(settings.group(SpoolSettings))
    spool.check()
    client = connect(settings.group(RedisSettings))
    live = LiveSettings(client, settings)
    queue = upload_queue_name(spool.name)
    share = Share(client, lambda: live.group(UploadSettings))
    notes = RedisNotes(client, url)
    store = open_store(url, options, gate=share.gate, notes=notes)
    # This very store, as a folder is known by what it is now; and before there are threads to end.
    store.check(create=True)
    live.start()
    circuit = Circuit()
    uploader = FileUploader(store, spool, share=share, circuit=circuit, requests=request_count(options))
    worker = Worker(
        redis=client,
        role=ROLE,
        queues=lambda current: queue,
        handlers={UPLOAD_FUNCTION: uploader.upload_file},
        settings=settings.group(QueueSettings),
        slots=share.files_in_hand,
        may_take=circuit.why_not,
        job_timeout_seconds=upload.upload_timeout_seconds,
    )
    get_logger(ROLE).info("serving", spool=str(spool.root), store=store.url, queue=queue)
    try:
        with ExitStack() as chores:
            chores.enter_context(share)
            chores.enter_context(
                Tidier(spool, store, client, settings.group(QueueSettings), upload.leftover_seconds)
            )
            if isinstance(store, KeepsParts):
                chores.enter_context(OrphanKeeper(store, notes, client, upload.orphan_seconds))
            return worker.run()
    finally:
        live.stop()
