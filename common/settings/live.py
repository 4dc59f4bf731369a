"""Settings that can be changed in a running fleet: a hash in Redis, laid over what a process started with.

`set_live` writes them for everybody; `LiveSettings` in each process looks every two seconds. A
value that is not one is ignored with a warning, never an end. Should Redis lose them, whichever
process looks first writes them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any, TypeVar

import msgspec
import redis

from common.logs import get_logger
from common.periodic import Periodic
from common.redis_client import text, translated
from common.settings.catalogue import ALL_GROUPS
from common.settings.declaration import Setting, settings_of
from common.settings.resolve import Resolved, parse_value
from hiddenfeed.errors import ConfigError
from hiddenfeed.words import nearest_text

#: Where the values are; stays until somebody clears them.
LIVE_KEY = "hiddenfeed:live"
#: How often they were changed. Missing where there were some, it tells a Redis that lost them from one that was told to.
CHANGES_KEY = "hiddenfeed:live-changes"
#: Source of a live value, as `--show-config` names it.
LIVE_SOURCE = "live"
LOOK_SECONDS = 2.0

_RESTORE = """
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then return 0 end
redis.call('SET', KEYS[2], 1)
redis.call('HSET', KEYS[1], unpack(ARGV))
return 1
"""

GroupT = TypeVar("GroupT", bound=msgspec.Struct)

log = get_logger("settings")


def live_settings() -> dict[str, Setting]:
    """All settings that may be changed in a running fleet, by name."""
    return {setting.name: setting for group in ALL_GROUPS for setting in settings_of(group) if setting.live}


def set_live(client: redis.Redis, values: Mapping[str, str]) -> dict[str, Any]:
    """Change settings of the whole fleet; returns the typed values.

    Raises ConfigError, and changes nothing, if one is unknown, not live, or not a value;
    TransientError when Redis is away.
    """
    typed = {
        name: parse_value(_live_setting(name), raw, f"live setting {name}") for name, raw in values.items()
    }
    if values:
        with translated(client), client.pipeline(transaction=True) as pipe:
            pipe.hset(LIVE_KEY, items=[part for pair in values.items() for part in pair])
            pipe.incr(CHANGES_KEY)
            pipe.execute()
    return typed


def clear_live(client: redis.Redis, names: list[str]) -> None:
    """Let every process use its own value again; raises ConfigError for a setting that is not live."""
    for name in names:
        _live_setting(name)
    if names:
        with translated(client), client.pipeline(transaction=True) as pipe:
            pipe.hdel(LIVE_KEY, *names)
            pipe.incr(CHANGES_KEY)
            pipe.execute()


def read_live(client: redis.Redis) -> dict[str, str]:
    """What is set, as text, by name; raises TransientError when Redis is away."""
    with translated(client):
        return {text(name): text(value) for name, value in client.hgetall(LIVE_KEY).items()}


def overlay(resolved: Resolved, live: Mapping[str, str]) -> tuple[Resolved, list[str]]:
    """`resolved` with live values laid over it, and a sentence for each that cannot be used."""
    values, sources, complaints = dict(resolved.values), dict(resolved.sources), []
    for name, raw in live.items():
        if name not in values:
            continue
        try:
            values[name] = parse_value(_live_setting(name), raw, f"live setting {name}")
            sources[name] = LIVE_SOURCE
        except ConfigError as error:
            complaints.append(str(error))
    return Resolved(values=values, sources=sources, groups=resolved.groups), complaints


class LiveSettings:
    """The settings of one process as they are now. Safe to ask from any thread."""

    def __init__(
        self, client: redis.Redis, resolved: Resolved, *, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self._client, self._start_values = client, resolved
        self._lock = Lock()
        self._now, self._seen, self._counted = resolved, dict[str, str](), False
        self._periodic = Periodic("looking for live settings", self.refresh, look_seconds, wait_first=True)

    @property
    def resolved(self) -> Resolved:
        """All settings with their sources; live ones have the source `live`."""
        with self._lock:
            return self._now

    def group(self, kind: type[GroupT]) -> GroupT:
        """A group's values as they are now."""
        return self.resolved.group(kind)

    def refresh(self) -> None:
        """Look now; raises TransientError when Redis is away, and then nothing changes."""
        seen, counted = self._read()
        if self._seen and self._counted and not seen and not counted:
            self._restore()
            return
        with self._lock:
            self._counted = counted
            if seen == self._seen:
                return
            before = self._now
            self._now, complaints = overlay(self._start_values, seen)
            self._seen = seen
            after = self._now
        for complaint in complaints:
            log.warning("ignored a live setting", why=complaint)
        for name, value in after.values.items():
            if value != before.values[name]:
                log.info("setting changed", name=name, value=value, source=after.sources[name])

    def _read(self) -> tuple[dict[str, str], bool]:
        """What is set, and whether Redis knows that anything ever was."""
        with translated(self._client), self._client.pipeline(transaction=True) as pipe:
            pipe.hgetall(LIVE_KEY)
            pipe.exists(CHANGES_KEY)
            found, counted = pipe.execute()
        return {text(name): text(value) for name, value in found.items()}, bool(counted)

    def _restore(self) -> None:
        """Write what Redis lost again, unless another process was first; until the next look the values hold."""
        parts = [part for pair in self._seen.items() for part in pair]
        with translated(self._client):
            first = self._client.eval(_RESTORE, 2, LIVE_KEY, CHANGES_KEY, *parts)
        if first:
            values = ", ".join(f"{name}={value}" for name, value in sorted(self._seen.items()))
            log.warning("Redis had lost the live settings, which are written again", values=values)

    def start(self) -> LiveSettings:
        """Look now and from then on in a thread, until `stop`. While Redis is away the last known values hold."""
        self._periodic.once()
        self._periodic.start()
        return self

    def stop(self) -> None:
        """End the thread."""
        self._periodic.stop()


def _live_setting(name: str) -> Setting:
    known = live_settings()
    if name in known:
        return known[name]
    if any(name == setting.name for group in ALL_GROUPS for setting in settings_of(group)):
        raise ConfigError(
            f"{name} cannot be changed in a running fleet; these can: {', '.join(sorted(known))}"
        )
    raise ConfigError(
        f"there is no setting {name!r}; live ones are {', '.join(sorted(known))}{nearest_text(name, known)}"
    )
