"""The processes of the upload benchmark: sinks, ways to upload, a computation; and the files they put."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.upload_ways import Cost, Order
from hiddenfeed.checksum import file_checksum

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


@contextmanager
def sink(*arguments: str) -> Iterator[str]:
    """The endpoint of a running sink."""
    with child("benchmarks.upload_sink", *arguments) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"


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


@contextmanager
def credentials() -> Iterator[None]:
    """Keys that no server checks, in place of whatever is there."""
    before = dict(os.environ)
    for name in before:
        if name.startswith("AWS_"):
            del os.environ[name]
    made_up = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    os.environ.update(made_up, AWS_EC2_METADATA_DISABLED="true")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
