"""Wires the monitor: settings in, functions that look and that change things out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import redis

from common.history import Rates, rates_of, read_history
from common.redis_client import make_client, translated
from common.settings.catalogue import (
    DashboardSettings,
    MonitorSettings,
    QueueSettings,
    RedisSettings,
    SpoolSettings,
    StoreSettings,
)
from common.settings.resolve import Resolved
from hiddenfeed.errors import ConfigError
from hiddenfeed.options import StoreOptions
from hiddenfeed.store import open_store
from monitor.facts import read_facts
from monitor.snapshot import take_snapshot
from monitor.views import Snapshot

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from monitor.recorder import Recorder

#: Of one call to the store.
_MOST_ATTEMPTS = 2
_SHORTEST_TOKEN = 8


@dataclass(frozen=True)
class Wired:
    """What the faces work with; nothing is connected to before something is called."""

    client: redis.Redis
    #: Looks at everything and says what it means; raises nothing.
    read: Callable[[], Snapshot]

    def history(self, run_id: str) -> list[Rates]:
        """What happened to a run over time; raises HiddenfeedError."""
        with translated(self.client):
            return rates_of(read_history(self.client, run_id))


def wire(settings: Resolved) -> Wired:
    """Clients and readers; raises ConfigError for settings that cannot work."""
    patience = settings.group(MonitorSettings).monitor_patience_seconds
    client = make_client(settings.group(RedisSettings), timeout_seconds=patience)
    spool = settings.group(SpoolSettings)
    lease_seconds = float(settings.group(QueueSettings).lease_seconds)
    url = settings.group(StoreSettings).store
    store = open_store(url, _impatient(settings.group(StoreOptions), patience)) if url else None

    def read() -> Snapshot:
        return take_snapshot(read_facts(client, spool, lease_seconds, store), time.time())

    return Wired(client, read)


def page_of(wired: Wired, monitor: MonitorSettings) -> tuple[Starlette, Recorder]:
    """The page's application, and what writes the history while it is served; raises ConfigError for a weak token."""
    # A look in the terminal needs none of these.
    from monitor.control import Control
    from monitor.recorder import Recorder
    from monitor.web import Current, Dashboard, make_app

    check_token(monitor.monitor_token)
    current = Current(wired.read)
    app = make_app(
        current,
        monitor.refresh_seconds,
        history=wired.history,
        control=Control(wired.client, monitor.monitor_token),
        dashboard=Dashboard(monitor.dashboard_url, DashboardSettings().dashboard_port),
    )
    return app, Recorder(wired.client, current.get)


def check_token(token: str | None) -> None:
    """Raise ConfigError for a token that is easily guessed, or that no browser could send."""
    if token is None:
        return
    if len(token) < _SHORTEST_TOKEN:
        raise ConfigError(f"--monitor-token is too short: {_SHORTEST_TOKEN} characters at least")
    if not all("!" <= character <= "~" for character in token):
        raise ConfigError(
            "--monitor-token may hold letters without accents, digits and signs, and no spaces: it is sent in a header of HTTP"
        )


def _impatient(options: StoreOptions, patience: float) -> StoreOptions:
    """The same, but for a person who waits: a store that does not answer soon is said to be away."""
    return msgspec.structs.replace(
        options,
        s3_connect_timeout_seconds=min(options.s3_connect_timeout_seconds, patience),
        s3_read_timeout_seconds=min(options.s3_read_timeout_seconds, patience),
        s3_max_attempts=min(options.s3_max_attempts, _MOST_ATTEMPTS),
    )
