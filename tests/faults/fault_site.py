"""A site: servers, roles, spool and store of a whole pipeline on this machine, with places to disturb it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from common.settings.catalogue import SpoolSettings
from common.settings.declaration import ENVIRONMENT_PREFIX
from common.spool import Spool
from hiddenfeed.options import MIB, StoreOptions
from hiddenfeed.store import Store, open_store
from standalone.servers import RedisServer, S3Server, redis_folder, s3_folder, start_redis, start_s3
from tests.faults.fault_proxy import FaultProxy
from tests.faults.fleet import ROOT, Fleet
from tests.faults.tiny_job import TinyJob, make_tiny_job

BUCKET, PREFIX, SPOOL = "faults", "runs", "faults"
GPU_WORKERS = ("gpu_worker-1", "gpu_worker-2")
UPLOADERS = ("uploader-1", "uploader-2")
#: A GPU worker and an uploader whose clock and disk can be disturbed from inside; see `injected/`.
ODD_MEMBERS = ("gpu_worker-2", "uploader-2")
LEASE_SECONDS = 3
SPOOL_CAP_BYTES = 10 * MIB
#: The S3 server takes an object every so many seconds at most, so that a run lasts for some seconds on any machine.
PUT_SECONDS = 0.04
#: The disk that the spool is on, where we may mount one: a little more than the cap.
_DISK_BYTES = 12 * MIB
_INJECTED = Path(__file__).parent / "injected"

#: Everything goes faster than in real life, so that what is waited for comes within seconds.
_SETTINGS = {
    "lease_seconds": str(LEASE_SECONDS),
    "heartbeat_seconds": "1",
    "maintenance_seconds": "1",
    "grace_seconds": "5",
    "retry_base_seconds": "0.2",
    "retry_max_seconds": "2",
    "s3_connect_timeout_seconds": "2",
    "s3_read_timeout_seconds": "2",
    "s3_max_attempts": "2",
    "upload_parallelism": "4",
    # GPU workers wait for the uploaders, and the uploaders for the proxy: work is left when a fault strikes.
    "upload_backlog_max": "20",
    "leftover_seconds": "2",
    "spool_cap_bytes": str(SPOOL_CAP_BYTES),
    "spool_free_bytes": "0",
    "device": "cpu",
    "threads": "1",
    "log_format": "json",
}


@dataclass
class Site:
    """Made by `open_site`."""

    folder: Path
    job: TinyJob
    fleet: Fleet
    proxy: FaultProxy
    redis_server: RedisServer
    s3_server: S3Server
    #: Past the proxy, so that looking is not disturbed.
    store: Store
    spool: Spool
    #: Whether the spool has a small disk of its own.
    own_disk: bool
    _janitor: subprocess.Popen[bytes]

    @property
    def client(self) -> redis.Redis:
        """A new client of the site's Redis; the caller closes it."""
        return redis.Redis.from_url(self.redis_server.url, socket_timeout=10)

    def kill_redis(self) -> None:
        """kill -9; the data stays."""
        os.kill(self.redis_server.pid, signal.SIGKILL)
        self.redis_server.stop()

    def start_redis(self) -> None:
        """Start it again on the same port with the same data."""
        self.redis_server = start_redis(redis_folder(self.folder), port=self.redis_server.port)

    def kill_s3(self) -> None:
        """kill -9; the data stays."""
        os.kill(self.s3_server.pid, signal.SIGKILL)
        self.s3_server.stop()

    def start_s3(self) -> None:
        """Start it again on the same port with the same data."""
        port = int(self.s3_server.endpoint.rpartition(":")[2])
        self.s3_server = start_s3(s3_folder(self.folder), BUCKET, port=port)

    @property
    def clock_file(self) -> Path:
        """Holds the seconds by which the odd members' clocks are off, while it is there."""
        return self.folder / "clock"

    @property
    def disk_file(self) -> Path:
        """While it is there, the odd members' disks fail."""
        return self.folder / "disk"

    @property
    def temporary(self) -> Path:
        """TMPDIR of all roles."""
        return self.folder / "tmp"

    def enlist_producer(self, name: str, run_name: str) -> None:
        """A producer that makes the job as a run of that name."""
        settings = {**self.job.settings, "name": run_name}
        self.fleet.enlist(name, "producer", "run", ends=True, environ=_variables(settings))

    def enlist_workers(self) -> None:
        """GPU workers and uploaders."""
        inside = {
            "PYTHONPATH": os.pathsep.join([str(_INJECTED), str(ROOT)]),
            "HFFAULTS_CLOCK": str(self.clock_file),
            "HFFAULTS_DISK": str(self.disk_file),
        }
        for name in (*UPLOADERS, *GPU_WORKERS):
            role = name.partition("-")[0]
            self.fleet.enlist(name, role, environ=inside if name in ODD_MEMBERS else None)

    def keep_logs(self) -> Path:
        """Copy what the roles wrote to a folder that stays; returns it."""
        kept = Path(tempfile.mkdtemp(prefix="hffaults-logs-"))
        shutil.copytree(self.folder / "logs", kept, dirs_exist_ok=True)
        return kept

    def close(self) -> list[str]:
        """End everything and remove the folder; returns a sentence for each process that did not end well."""
        troubles = self.fleet.close()
        self.proxy.close()
        self.redis_server.stop()
        self.s3_server.stop()
        assert self._janitor.stdin is not None
        self._janitor.stdin.close()
        self._janitor.wait()
        return troubles


@contextmanager
def open_site() -> Iterator[Site]:
    """A running site with nothing to do; closed, whatever happens, and a bad end of a process is an error."""
    # A short path: the servers put sockets in it, whose names are limited to about 100 bytes.
    folder = Path(tempfile.mkdtemp(prefix="hffaults-"))
    site = _open(folder)
    try:
        site.enlist_workers()
        yield site
    finally:
        troubles = site.close()
    assert not troubles, troubles


def _open(folder: Path) -> Site:
    janitor = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.janitor", str(folder)],
        stdin=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    spool_folder = folder / "spool"
    spool_folder.mkdir()
    (folder / "tmp").mkdir()
    own_disk = _mount(spool_folder)
    redis_server, s3_server = start_redis(redis_folder(folder)), start_s3(s3_folder(folder), BUCKET)
    with _credentials(s3_server.environment()):
        options = StoreOptions(
            s3_endpoint=s3_server.endpoint, s3_max_attempts=1, s3_connect_timeout_seconds=2
        )
        store = open_store(f"s3://{BUCKET}/{PREFIX}", options)
    proxy = FaultProxy(
        s3_server.endpoint,
        lambda path: store.delete(path.removeprefix(f"/{BUCKET}/{PREFIX}/")),
        put_seconds=PUT_SECONDS,
    )
    settings = _SETTINGS | {
        "redis_url": redis_server.url,
        "store": f"s3://{BUCKET}/{PREFIX}",
        "s3_endpoint": proxy.endpoint,
        "spool": SPOOL,
        "spool_dir": str(spool_folder),
        "cache_dir": str(folder / "cache"),
    }
    environ = _plain_environment() | s3_server.environment() | _variables(settings)
    environ |= {"TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    # Which jobs finished is counted from the logs.
    environ[f"{ENVIRONMENT_PREFIX}LOG_LEVEL"] = "debug"
    limits = SpoolSettings(
        spool=SPOOL, spool_dir=str(spool_folder), spool_cap_bytes=SPOOL_CAP_BYTES, spool_free_bytes=0
    )
    return Site(
        folder=folder,
        job=make_tiny_job(folder),
        fleet=Fleet(folder, environ),
        proxy=proxy,
        redis_server=redis_server,
        s3_server=s3_server,
        store=store,
        spool=Spool(limits),
        own_disk=own_disk,
        _janitor=janitor,
    )


def _mount(folder: Path) -> bool:
    """Give the folder a small disk of its own; False where we may not."""
    if sys.platform != "linux" or shutil.which("mount") is None:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "hffaults", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _variables(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"{ENVIRONMENT_PREFIX}{name.upper()}": value for name, value in settings.items()}


def _plain_environment() -> dict[str, str]:
    """Ours without settings and credentials, and without a proxy for what is on this machine."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith((ENVIRONMENT_PREFIX, "AWS_"))
    }
    nowhere = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    return kept | nowhere | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


@contextmanager
def _credentials(variables: Mapping[str, str]) -> Iterator[None]:
    """boto3 reads credentials from the environment, once, when a client is made."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(_plain_environment() | dict(variables))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
