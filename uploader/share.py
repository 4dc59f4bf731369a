"""The fleet's requests in flight, shared by its uploaders: each leases what it needs, all together no more than set.

A lease is renewed every second and lapses with its owner. The script gives everybody the same
unless some need less, and never hands out what another still holds; so a change of the setting,
a new uploader or a dead one is settled within a few seconds, and without a message between them.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis

from common.logs import get_logger
from common.periodic import Periodic
from common.redis_client import translated
from common.settings.catalogue import UploadSettings
from hiddenfeed.errors import ConfigError, TransientError
from hiddenfeed.store import RequestGate

_log = get_logger("uploader")

BEAT_SECONDS = 1.0
#: After as many silent beats a lease is another's.
_LEASE_SECONDS = 10 * BEAT_SECONDS
#: Leased while nothing is to do, so that the first files need not wait for a beat.
_IDLE = 8
#: Files in hand beyond the requests, in parts of the requests: while one is proven, another is sent.
_SPARE = 4

_MEMBERS, _WANTS, _HELD = (f"hiddenfeed:upload-share:{part}" for part in ("members", "wants", "held"))

#: KEYS: members by the time their leases end, wants, what each holds. ARGV: name, want, total, milliseconds of a
#: lease, requests under way: where a share became smaller, they are held until they end.
_LEASE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do
  redis.call('ZREM', KEYS[1], dead)
  redis.call('HDEL', KEYS[2], dead)
  redis.call('HDEL', KEYS[3], dead)
end
local me, total = ARGV[1], tonumber(ARGV[3])
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[4]), me)
redis.call('HSET', KEYS[2], me, ARGV[2])
local all = {}
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  all[#all + 1] = {name, tonumber(redis.call('HGET', KEYS[2], name) or 1)}
end
table.sort(all, function(a, b) if a[2] ~= b[2] then return a[2] < b[2] end return a[1] < b[1] end)
local left, mine, held = total, 1, 0
for i, one in ipairs(all) do
  local share = math.max(1, math.min(one[2], math.floor(left / (#all - i + 1))))
  left = left - share
  if one[1] == me then
    mine = share
  else
    held = held + tonumber(redis.call('HGET', KEYS[3], one[1]) or 0)
  end
end
local granted = math.max(1, math.min(mine, total - held))
redis.call('HSET', KEYS[3], me, math.max(granted, tonumber(ARGV[5])))
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, 10 * tonumber(ARGV[4])) end
return granted
"""


class Share:
    """One uploader's part of the fleet's requests. `granted` may be asked from any thread."""

    def __init__(self, client: redis.Redis, settings: Callable[[], UploadSettings]) -> None:
        """`settings` are asked at every beat, so they may change."""
        self._client, self._settings = client, settings
        self.name = f"{socket.gethostname()}-{secrets.token_hex(6)}"
        self._script = client.register_script(_LEASE)
        self.granted = 1
        self.gate = RequestGate(lambda: self.granted)
        self._extra = 0
        self._lock = threading.Lock()
        self._periodic = Periodic("sharing the requests", self.beat, BEAT_SECONDS, wait_first=True)

    def files_in_hand(self) -> int:
        """How many files to take: as many as keep all requests busy, fewer where files have parts."""
        return max(1, self.granted + -(-self.granted // _SPARE) - self._extra)

    @contextmanager
    def sending(self, requests: int) -> Iterator[None]:
        """A file is in hand that keeps up to `requests` requests busy."""
        with self._lock:
            self._extra += requests - 1
        try:
            yield
        finally:
            with self._lock:
                self._extra -= requests - 1

    def beat(self, *, want: int | None = None) -> None:
        """Renew the lease; raises TransientError when Redis is away, and then the last one holds."""
        settings = self._settings()
        most = settings.upload_process_max
        if want is None:
            usage = self.gate.take_usage()
            full = usage.waited or usage.peak >= self.granted
            want = most if full else max(_IDLE, usage.peak + -(-usage.peak // _SPARE))
        arguments: list[str | int] = [
            self.name,
            min(want, most),
            settings.upload_parallelism,
            int(1000 * _LEASE_SECONDS),
            self.gate.in_use,
        ]
        with translated(self._client):
            granted = int(self._script(keys=[_MEMBERS, _WANTS, _HELD], args=arguments))
        if granted != self.granted:
            _log.debug("requests in flight", granted=granted, fleet=settings.upload_parallelism)
        self.granted = granted

    def __enter__(self) -> Share:
        self.beat(want=self._settings().upload_process_max)
        self._periodic.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._periodic.stop()
        try:
            with translated(self._client), self._client.pipeline(transaction=True) as pipe:
                pipe.zrem(_MEMBERS, self.name)
                pipe.hdel(_WANTS, self.name)
                pipe.hdel(_HELD, self.name)
                pipe.execute()
        except (TransientError, ConfigError, redis.RedisError) as error:
            _log.debug("the lease lapses by itself", reason=str(error))
