"""The files of the spool that no job speaks of: given a job again, or taken away; by a quiet thread beside the worker.

There are such files when Redis forgets jobs, and when a GPU worker dies between finishing a file and
announcing it.
"""

from __future__ import annotations

import time
from itertools import groupby
from typing import TYPE_CHECKING

import redis

from common.logs import get_logger
from common.periodic import Periodic
from common.queues import enqueue, job_states, upload_request
from common.settings.catalogue import QueueSettings
from common.spool import Spool, SpoolFile
from hiddenfeed.errors import DataError, MissingObjectError
from hiddenfeed.inventory import load_document
from hiddenfeed.run import RunDocument
from hiddenfeed.store.base import Store
from uploader.decide import aged, job_ids, leftovers

if TYPE_CHECKING:
    from hiddenfeed.plan_file import PlanFile

_log = get_logger("uploader")

#: The spool is looked through as often as files may become leftovers, and this often at least.
_INTERVAL_SECONDS = 60.0


class Tidier:
    """Calls `tidy` now and then between `with` and the block's end. Any number may work on one spool at once."""

    def __init__(
        self,
        spool: Spool,
        store: Store,
        client: redis.Redis,
        settings: QueueSettings,
        least_age_seconds: float,
    ) -> None:
        """Files younger than `least_age_seconds` are left alone: their writer may be about to announce them."""
        self._spool, self._store, self._client, self._settings = spool, store, client, settings
        self._least_age_seconds = least_age_seconds
        self._foreign: set[str] = set()
        self._periodic = Periodic(
            "tidying the spool", lambda: self.tidy(time.time()), min(_INTERVAL_SECONDS, least_age_seconds)
        )

    def __enter__(self) -> Tidier:
        self._periodic.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._periodic.stop()

    def tidy(self, now: float) -> list[str]:
        """Look through the spool once, `now` in seconds since the epoch; returns the paths that were announced again.

        Half-written files of dead writers are removed. A whole file that no job speaks of is announced
        again, and its upload finds out whether the store wants it; one that is not its batch's is
        removed. Raises TransientError when Redis or the store is away.
        """
        for path in self._spool.sweep():
            _log.warning("removed a file that its writer left half-written", path=path)
        files = aged(self._spool.files(), now=now, least_age_seconds=self._least_age_seconds)
        if not files:
            return []
        announced: list[str] = []
        left = leftovers(files, job_states(self._client, job_ids(files)))
        for run_id, group in groupby(left, key=lambda file: file.run_id):
            announced += self._announce_all(run_id, list(group))
        return announced

    def _announce_all(self, run_id: str, files: list[SpoolFile]) -> list[str]:
        """Announce files of one run; returns the paths of those that were fit for it."""
        # Reading plans and batch files takes numpy and pyarrow, which nothing else in this process needs.
        from hiddenfeed.plan_file import PlanFile

        try:
            document = load_document(self._store, run_id)
            plan = PlanFile(self._store, run_id)
        except DataError as error:
            # Not ours to delete: the store may be the wrong one. Said once.
            if run_id not in self._foreign:
                self._foreign.add(run_id)
                _log.error(
                    "the spool holds files of a run that is not in the store; remove them if nobody wants the run",
                    folder=str(self._spool.root / run_id),
                    why=str(error),
                )
            return []
        return [file.path for file in files if self._announce(file, document, plan)]

    def _announce(self, file: SpoolFile, document: RunDocument, plan: PlanFile) -> bool:
        """Give the file a job; False if it was not fit for one, or has got one meanwhile."""
        from uploader.announce import announcement

        try:
            message = announcement(self._spool, file, document, plan.batch(file.batch_id))
        except MissingObjectError:
            return False  # gone while we looked
        except DataError as error:
            if self._spool.remove(file.path):
                _log.error("removed a file that is not what its name says", path=file.path, why=str(error))
            return False
        # The script that enqueues looks once more: of two uploaders that found the file, one announces it.
        if not enqueue(self._client, [upload_request(message)], self._settings):
            return False
        _log.warning(
            "announced a file again that no job spoke of",
            path=file.path,
            run=file.run_id,
            batch=file.batch_id,
        )
        return True
