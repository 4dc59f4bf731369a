"""Wiring of the producer: from settings to the store, Redis and the console."""

from __future__ import annotations

from dataclasses import dataclass

import redis

from common.logs import setup_logging
from common.redis_client import connect
from common.settings.catalogue import (
    DataSettings,
    ForecastSettings,
    LogSettings,
    PlanSettings,
    QueueSettings,
    RedisSettings,
    StoreSettings,
    SubmitSettings,
)
from common.settings.resolve import Resolved
from hiddenfeed.options import StoreOptions
from hiddenfeed.store import Store, open_store
from producer.console import Console

ROLE = "producer"

#: Settings of the commands that change what Redis says of a run.
STATE_GROUPS = (RedisSettings, LogSettings)
#: Settings of the commands that look at runs.
LOOK_GROUPS = (RedisSettings, StoreSettings, StoreOptions, LogSettings)
#: Settings of the command that queues failed jobs again.
RETRY_GROUPS = (*LOOK_GROUPS, QueueSettings)
#: Settings of the command that takes up a run.
RUN_GROUPS = (RedisSettings, StoreSettings, StoreOptions, SubmitSettings, QueueSettings, LogSettings)
#: Settings of the commands that make a run.
MAKE_GROUPS = (DataSettings, PlanSettings, *RUN_GROUPS)
#: Settings of the command that only plans.
PLAN_GROUPS = (DataSettings, PlanSettings, ForecastSettings, StoreOptions, LogSettings)


@dataclass(frozen=True)
class Surroundings:
    """What a command works with."""

    console: Console
    store: Store
    client: redis.Redis


def open_console(settings: Resolved) -> Console:
    """Set up logging and return the console."""
    setup_logging(settings.group(LogSettings), ROLE)
    return Console()


def open_surroundings(settings: Resolved, *, create: bool) -> Surroundings:
    """Store and Redis, both proven to be there; `create` makes a store's folder.

    Raises ConfigError or TransientError, one sentence each, if one of them cannot be used.
    """
    console = open_console(settings)
    store = open_store(settings.group(StoreSettings).store, settings.group(StoreOptions))
    store.check(create=create)
    return Surroundings(console, store, connect(settings.group(RedisSettings)))
