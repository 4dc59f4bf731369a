"""The job of the uploader: one finished file into the store, proven, then gone from the spool."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from redis.client import Pipeline

from common.logs import get_logger
from common.messages import UploadFile, UploadReceipt, parse_message
from common.queues import extract_request
from common.run_state import note_stored
from common.spool import Spool
from common.worker.context import GiveBack, JobContext
from hiddenfeed.errors import ConfigError, DataError, TransientError
from hiddenfeed.store.base import PutOutcome, Store
from uploader.circuit import Circuit, Pass
from uploader.decide import Ending, after_put, check_message, without_file
from uploader.share import Share
from uploader.standing import is_stored

_log = get_logger("uploader")


class FileUploader:
    """Handler of `uploader.upload.upload_file`; safe to call from many threads at a time."""

    def __init__(
        self,
        store: Store,
        spool: Spool,
        *,
        share: Share | None = None,
        circuit: Circuit | None = None,
        requests: Callable[[int], int] = lambda size_bytes: 1,
    ) -> None:
        """`requests` tells from a file's size how many requests it keeps busy; `share` counts them."""
        self._store, self._spool = store, spool
        self._share, self._circuit = share, circuit or Circuit()
        self._requests = requests

    def upload_file(self, payload: Any, context: JobContext) -> UploadReceipt:
        """Bring the file of one `UploadFile` message into the store; returns how that ended.

        The local file is deleted once the store holds the batch, or if it is not what its writer
        announced; then its batch is extracted again. Raises PermanentError for a message that is
        not ours, TransientError when the store does not take this file for now, and GiveBack while
        it takes none.
        """
        message = parse_message(UploadFile, payload)
        check_message(message, self._spool.name)
        began = time.monotonic()
        with self._sending(message):
            ending = self._through_circuit(message)
        self._spool.remove(message.path)
        receipt = UploadReceipt(
            run_id=message.batch.run_id,
            batch_id=message.batch.batch_id,
            key=message.key,
            outcome=ending.outcome,
            size_bytes=message.size_bytes,
            upload_seconds=time.monotonic() - began,
        )
        self._finish(message, ending, receipt, context)
        return receipt

    def _sending(self, message: UploadFile) -> AbstractContextManager[None]:
        return (
            nullcontext() if self._share is None else self._share.sending(self._requests(message.size_bytes))
        )

    def _through_circuit(self, message: UploadFile) -> Ending:
        """Transfer the file unless the store is away."""
        used = self._circuit.enter()
        if used is Pass.NONE:
            raise GiveBack("the store is away")
        try:
            ending = self._transfer(message)
        except (TransientError, ConfigError) as error:
            if self._circuit.failed(used, str(error)):
                _log.warning("the store is away; one file at a time tries it", reason=str(error))
            if self._circuit.is_open:
                raise GiveBack(str(error)) from error
            # A ConfigError: it worked at the start, so somebody changed something and can change it
            # back: the file waits in the spool rather than its job being failed.
            raise TransientError(str(error)) from error
        except BaseException:
            self._circuit.left(used)
            raise
        if self._circuit.succeeded():
            _log.info("the store is back")
        return ending

    def _transfer(self, message: UploadFile) -> Ending:
        if self._spool.is_replaced(message.path):
            return self._without_file(message, f"{message.path} is a link or no plain file")
        path = self._spool.resolve(message.path)
        if not path.exists():
            return self._without_file(message, f"{message.path} is gone from the spool")
        try:
            outcome = self._store.put_file(
                message.key,
                path,
                size_bytes=message.size_bytes,
                checksum=message.checksum,
                metadata={"worker": message.report.worker},
            )
        except DataError as error:
            return self._without_file(message, str(error))
        if outcome is PutOutcome.OTHER_WINS and not is_stored(self._store, message):
            raise TransientError(f"{self._store.url}/{message.key} was there first, and is gone")
        return after_put(outcome)

    def _without_file(self, message: UploadFile, problem: str) -> Ending:
        return without_file(problem, stored=is_stored(self._store, message))

    def _finish(
        self, message: UploadFile, ending: Ending, receipt: UploadReceipt, context: JobContext
    ) -> None:
        """Add to the MULTI that ends the job: the progress, or the batch's new extraction."""
        log = _log.bind(run=receipt.run_id, batch=receipt.batch_id, outcome=ending.outcome)
        if ending.extract_again:
            log.error(ending.remark)
            context.follow_up(extract_request(message.batch))
            return
        if ending.remark:
            log.warning(ending.remark)
        else:
            log.info("uploaded", size_bytes=receipt.size_bytes, total_s=round(receipt.upload_seconds, 3))

        def count(pipeline: Pipeline) -> None:
            # Its worker put the job on the queue in the moment in which the batch was done.
            computed_at = context.queued_at or None
            note_stored(pipeline, message, receipt, computed_at=computed_at, uploader=context.worker_name)

        context.on_finish(count)
