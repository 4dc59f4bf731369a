"""The one run that a worker was told to serve: whether there is such a run yet."""

from __future__ import annotations

import redis

from common.logs import get_logger
from common.run_state import get_run
from hiddenfeed.errors import ConfigError, DataError
from hiddenfeed.layout import check_run_id

log = get_logger("runs")


class PinnedRun:
    """`--run`, checked and waited for."""

    def __init__(self, client: redis.Redis, run_id: str) -> None:
        """Raises ConfigError for what cannot be a run's id; Redis is not asked yet."""
        try:
            self._run_id = check_run_id(run_id)
        except DataError as error:
            raise ConfigError(f"--run: {error}") from None
        self._client = client
        self._known = False
        self._said = False

    def why_not(self) -> str | None:
        """`waiting for run …` as long as Redis does not know it, None from then on; raises TransientError."""
        if not self._known:
            self._known = get_run(self._client, self._run_id) is not None
        if self._known:
            return None
        if not self._said:
            log.info(f"waiting for run {self._run_id}: nobody has submitted it to this Redis yet")
            self._said = True
        return f"waiting for run {self._run_id}"
