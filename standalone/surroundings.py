"""The Redis and the store of a home: its own servers, or others that were given."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec

from common.redis_client import connect
from common.settings.catalogue import RedisSettings, StandaloneSettings
from common.settings.declaration import ENVIRONMENT_PREFIX
from common.settings.resolve import Resolved
from hiddenfeed.errors import ConfigError
from hiddenfeed.options import StoreOptions
from hiddenfeed.store import Store, open_store
from standalone.home import Home
from standalone.server_folder import write_private
from standalone.servers import (
    RedisServer,
    S3Server,
    redis_folder,
    s3_folder,
    start_redis,
    start_s3,
    stop_all,
)
from standalone.users import Users

BUCKET = "hiddenfeed"
_EMBEDDED_STORE = f"s3://{BUCKET}/runs"
#: Whatever else in the environment would choose credentials before the two that the S3 server of the home knows.
_FOREIGN_CREDENTIALS = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN")


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """What a home was last used with; remembered in it. May hold a password."""

    #: None: the Redis server of the home.
    redis_url: str | None
    #: 0: a free one.
    redis_port: int
    #: None: the S3 server of the home.
    store: str | None
    s3_port: int
    options: StoreOptions
    spool: str
    #: None: the folder of the home.
    spool_dir: str | None = None
    redis_ca_bundle: str | None = None


def chosen_places(home: Home, resolved: Resolved) -> Places:
    """What the settings ask for; raises ConfigError for a combination that means nothing."""
    settings, options = resolved.group(StandaloneSettings), resolved.group(StoreOptions)
    if settings.out is None and (options.s3_endpoint or options.s3_profile):
        raise ConfigError(
            "--s3-endpoint and --s3-profile need --out s3://bucket/prefix, so that it is clear where the run goes"
        )
    given_redis = resolved.sources["redis_url"] != "default"
    store = settings.out
    if store is not None and "://" not in store:
        store = str(Path(store).absolute())
    return Places(
        redis_url=resolved.group(RedisSettings).redis_url if given_redis else None,
        redis_port=settings.redis_port,
        store=store,
        s3_port=settings.s3_port,
        options=options,
        spool=_spool_name(home, shared=given_redis, resolved=resolved),
        spool_dir=_given_folder(resolved, "spool_dir"),
        redis_ca_bundle=resolved.group(RedisSettings).redis_ca_bundle if given_redis else None,
    )


def remember(home: Home, places: Places) -> None:
    """Keep the places for `serve` and `exec`."""
    write_private(home.path / "places.json", msgspec.json.encode(places))


def recall(home: Home) -> Places:
    """What the home was last used with; raises ConfigError if it never was."""
    try:
        return msgspec.json.decode((home.path / "places.json").read_bytes(), type=Places)
    except FileNotFoundError:
        raise ConfigError(f"{home.path} is not the home of a run; give --home") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{home.path / 'places.json'} cannot be read: {error}") from None


@dataclass
class Surroundings:
    """Redis and store, ready for use until `leave`."""

    places: Places
    redis: RedisServer | None
    s3: S3Server | None
    home: Home
    users: Users

    @property
    def redis_url(self) -> str:
        """URL of Redis; may hold a password."""
        url = self.redis.url if self.redis else self.places.redis_url
        assert url is not None
        return url

    @property
    def redis_settings(self) -> RedisSettings:
        """How to reach Redis."""
        return RedisSettings(redis_url=self.redis_url, redis_ca_bundle=self.places.redis_ca_bundle)

    @property
    def store_url(self) -> str:
        """Root of all runs."""
        return self.places.store or _EMBEDDED_STORE

    @property
    def disk(self) -> Path | None:
        """Where on this machine the store keeps its objects; None for one that is elsewhere."""
        if self.s3 is not None:
            return self.home.path
        return None if "://" in self.store_url else Path(self.store_url)

    @property
    def options(self) -> StoreOptions:
        """How to reach the store."""
        return (
            msgspec.structs.replace(self.places.options, s3_endpoint=self.s3.endpoint)
            if self.s3
            else self.places.options
        )

    def open_store(self) -> Store:
        """The store; credentials come from the environment, see `environment`."""
        return open_store(self.store_url, self.options)

    def settings(self) -> dict[str, str]:
        """What every role is told, by setting name."""
        told = {
            "redis_url": self.redis_url,
            "store": self.store_url,
            "spool": self.places.spool,
            "spool_dir": self.places.spool_dir or str(self.home.spool),
        }
        if self.places.redis_ca_bundle:
            told["redis_ca_bundle"] = self.places.redis_ca_bundle
        return told | ({"s3_endpoint": self.s3.endpoint} if self.s3 else {})

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """`inherited` with what a client of the S3 server needs."""
        if self.s3 is None:
            return dict(inherited)
        kept = {name: value for name, value in inherited.items() if name not in _FOREIGN_CREDENTIALS}
        # A proxy for the world outside cannot reach this machine's loopback.
        hosts = ",".join(filter(None, [inherited.get("NO_PROXY") or inherited.get("no_proxy"), "127.0.0.1"]))
        return {**kept, **self.s3.environment(), "NO_PROXY": hosts, "no_proxy": hosts}

    def keep_alive(self) -> list[str]:
        """Start servers of the home again that have ended; returns their names. They keep their ports."""
        revived = []
        if self.redis and not self.redis.record.alive():
            self.redis = start_redis(redis_folder(self.home.path), port=self.redis.port)
            revived.append("the Redis server")
        if self.s3 and not self.s3.record.alive():
            self.s3 = start_s3(
                s3_folder(self.home.path), BUCKET, port=int(self.s3.endpoint.rpartition(":")[2])
            )
            revived.append("the S3 server")
        return revived

    def leave(self) -> bool:
        """Use Redis and store no more. The servers of the home end, and True is returned, if nobody else uses them."""
        return self.users.leave(lambda: stop_all(self.home.path))

    def write_environment_file(self) -> None:
        """Leave `env.sh` in the home: what a shell needs to read the run with any S3 client."""
        lines = [
            f"export {ENVIRONMENT_PREFIX}{name.upper()}={shlex.quote(value)}"
            for name, value in self.settings().items()
        ]
        if self.s3:
            lines += [
                f"export {name}={shlex.quote(value)}" for name, value in shell_environment(self.s3).items()
            ]
            lines.append(f"unset {' '.join(_FOREIGN_CREDENTIALS)}")
        write_private(self.home.environment_file, "\n".join([*lines, ""]).encode())


def shell_environment(server: S3Server) -> dict[str, str]:
    """What makes any S3 client, the library included, find the server without being told its address."""
    return {**server.environment(), "AWS_ENDPOINT_URL_S3": server.endpoint, "AWS_REGION": "us-east-1"}


def open_surroundings(home: Home, places: Places) -> Surroundings:
    """Start the servers that the home owns; prove that Redis and the store are there.

    Servers that others use already are used with them. Sets this process's credentials to those of the
    home's S3 server if it has one. Raises one of hiddenfeed's errors, with nothing left running that
    nobody else uses.
    """
    users = Users(home.path)

    def start(alone: bool) -> Surroundings:
        redis = s3 = None
        if places.redis_url is None:
            redis = start_redis(redis_folder(home.path), port=places.redis_port or None, may_move=alone)
        else:
            connect(RedisSettings(redis_url=places.redis_url, redis_ca_bundle=places.redis_ca_bundle)).close()
        if places.store is None:
            s3 = start_s3(s3_folder(home.path), BUCKET, port=places.s3_port or None, may_move=alone)
        surroundings = Surroundings(places, redis, s3, home, users)
        _become(surroundings.environment(os.environ))
        surroundings.open_store().check(create=True)
        return surroundings

    return users.join(start, lambda: stop_all(home.path))


def _become(environ: Mapping[str, str]) -> None:
    """Take over an environment: boto3 looks for credentials nowhere else."""
    for name in set(os.environ) - set(environ):
        del os.environ[name]
    os.environ.update(environ)


def _given_folder(resolved: Resolved, name: str) -> str | None:
    """The absolute path of a folder that somebody named; None for the default."""
    given = resolved.sources[name] != "default"
    return str(Path(resolved.values[name]).expanduser().absolute()) if given else None


def _spool_name(home: Home, *, shared: bool, resolved: Resolved) -> str:
    """The spool's name: one of the home's own where others use the same Redis, since the upload queue is named after it."""
    if resolved.sources["spool"] != "default" or not shared:
        return str(resolved.values["spool"]) or "default"
    return f"home-{blake2b(f'{socket.gethostname()}:{home.path}'.encode(), digest_size=6).hexdigest()}"
