"""The processes of the upload benchmark: sinks, ways to upload, a computation; and the files they put."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
import msgspec
from botocore.config import Config

from benchmarks.upload_ways import BUCKET, Cost, Order
from hiddenfeed.checksum import file_checksum
from hiddenfeed.errors import ConfigError
from standalone.servers import start_s3

MIB = 1024 * 1024


@dataclass(frozen=True)
class Client:
    """A way to upload that is ready."""

    process: subprocess.Popen[str]

    def start(self, order: Order) -> None:
        """Begin a round."""
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(order).decode() + "\n")
        self.process.stdin.flush()

    def finish(self) -> Cost:
        """Wait for the round's end."""
        assert self.process.stdout is not None
        return msgspec.json.decode(self.process.stdout.readline(), type=Cost)

    def measure(self, order: Order) -> Cost:
        """One round."""
        self.start(order)
        return self.finish()

    def cpu_seconds(self) -> float:
        """What it has used so far."""
        return _cpu_seconds(self.process.pid)

    def stop(self) -> None:
        """End it in mid-round; what it was to put is not waited for."""
        self.process.terminate()
        self.process.wait()


@dataclass(frozen=True)
class Server:
    """A server that is uploaded to."""

    endpoint: str
    pid: int

    def cpu_seconds(self) -> float:
        """What it has used so far."""
        return _cpu_seconds(self.pid)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Certificate:
    """Of 127.0.0.1, signed by itself; two PEM files."""

    path: Path
    key: Path


@contextmanager
def sink(*arguments: str, certificate: Certificate | None = None) -> Iterator[Server]:
    """A running sink; it speaks TLS if it is given a certificate."""
    tls = [] if certificate is None else ["--tls", str(certificate.path), str(certificate.key)]
    with child("benchmarks.upload_sink", *arguments, *tls) as process:
        assert process.stdout is not None
        scheme = "https" if tls else "http"
        yield Server(f"{scheme}://127.0.0.1:{process.stdout.readline().strip()}", process.pid)


@contextmanager
def weed(folder: Path) -> Iterator[Server]:
    """A SeaweedFS with its data in `folder`, its keys in the environment, and all of it gone afterwards."""
    server = start_s3(folder, BUCKET)
    try:
        with credentials(server.environment()):
            yield Server(server.endpoint, server.pid)
    finally:
        server.stop()
        shutil.rmtree(folder)


@contextmanager
def client(way: str, endpoint: str, in_flight: int) -> Iterator[Client]:
    """A way to upload that is ready."""
    with child("benchmarks.upload_ways", way, endpoint, str(in_flight)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield Client(process)


@contextmanager
def child(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python child that ends when its standard input does."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.communicate()


def make_file(folder: Path, mib: int) -> Order:
    """A file of random bytes, and the order to put it nowhere yet."""
    path = folder / f"{mib}.bin"
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(MIB))
    return Order(str(path), [], file_checksum(path))


def with_keys(order: Order, prefix: str, count: int) -> Order:
    """The order to put the file under `count` keys that nobody else uses."""
    return msgspec.structs.replace(order, keys=[f"{prefix}-{number}" for number in range(count)])


def make_certificate(folder: Path) -> Certificate:
    """A certificate that lasts for two days; raises ConfigError where there is no openssl."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise ConfigError("openssl, which makes the certificate, is not installed")
    made = Certificate(folder / "certificate.pem", folder / "key.pem")
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=bench"
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(made.key), "-out", str(made.path)]
    subprocess.run([openssl, *command.split(), *more], check=True, capture_output=True)
    return made


def presigned(server: Server, order: Order) -> Order:
    """The order with addresses that a bare put may use without signing anything."""
    # A session of its own, as boto3's default one keeps the keys of the first server it saw.
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    urls = {
        key: client.generate_presigned_url("put_object", Params={"Bucket": BUCKET, "Key": key})
        for key in order.keys
    }
    targets = {key: url.removeprefix(server.endpoint) for key, url in urls.items()}
    return msgspec.structs.replace(order, targets=targets)


@contextmanager
def credentials(keys: Mapping[str, str] | None = None) -> Iterator[None]:
    """The keys in place of whatever is there; without any, some that no server checks."""
    before = dict(os.environ)
    for name in before:
        if name.startswith("AWS_"):
            del os.environ[name]
    made_up = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    os.environ.update(keys or made_up, AWS_EC2_METADATA_DISABLED="true")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
