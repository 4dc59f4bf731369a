"""The ways to upload that are compared: each a child process that puts files on command and says what it cost.

`python -m benchmarks.upload_ways WAY ENDPOINT THREADS` reads one JSON command a line from its
standard input, `{"path": …, "keys": […]}`, puts the file under each key with THREADS at a time,
and answers with one JSON line.
"""

from __future__ import annotations

import http.client
import mmap
import os
import resource
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

BUCKET = "bucket"
_ATTEMPTS = 5

#: Puts the file at the path under the key.
Put = Callable[[Path, str], None]


class Order(msgspec.Struct, frozen=True):
    """One round's work."""

    path: str
    keys: list[str]
    #: Of the file; what its writer would have announced.
    checksum: str
    #: Where a bare put goes for each key, path and query, on a server that wants a signature.
    targets: dict[str, str] = {}


class Cost(msgspec.Struct, frozen=True):
    """What a round took. `cpu_seconds` is that of the client alone."""

    seconds: float
    cpu_seconds: float
    peak_rss_mb: float


def raw_put(endpoint: str, in_flight: int) -> Callable[[Order], Put]:
    """`http.client` with a mapped file as body: no signature of its own, no checksum, no proof."""
    parts, local = urlsplit(endpoint), threading.local()

    def connect() -> http.client.HTTPConnection:
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.netloc)
        context = ssl.create_default_context(cafile=os.environ["AWS_CA_BUNDLE"])
        return http.client.HTTPSConnection(parts.netloc, context=context)

    def prepared(order: Order) -> Put:
        def put(path: Path, key: str) -> None:
            if not hasattr(local, "connection"):
                local.connection = connect()
            with (
                path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
                memoryview(mapped) as body,  # as a file it would be sent in small pieces
            ):
                local.connection.request("PUT", order.targets.get(key, f"/{BUCKET}/{key}"), body=body)
                reply = local.connection.getresponse()
                said = reply.read()
            if reply.status >= 300:
                raise OSError(f"{key}: {reply.status} {said[:300]!r}")

        return put

    return prepared


def our_put(endpoint: str, in_flight: int) -> Callable[[Order], Put]:
    """The uploader's put: verified while read, proven by a HEAD."""
    from hiddenfeed.errors import TransientError
    from hiddenfeed.options import StoreOptions
    from hiddenfeed.store import RequestGate, open_store

    gate = RequestGate(lambda: in_flight)
    store = open_store(f"s3://{BUCKET}/ours", StoreOptions(s3_endpoint=endpoint), gate=gate)

    def prepared(order: Order) -> Put:
        size = Path(order.path).stat().st_size

        def put(path: Path, key: str) -> None:
            # The uploader's queue gives such a file back; here it is put again at once.
            for attempt in range(_ATTEMPTS):
                try:
                    store.put_file(key, path, size_bytes=size, checksum=order.checksum)
                except TransientError:
                    if attempt == _ATTEMPTS - 1:
                        raise
                else:
                    return

        return put

    return prepared


def upload_file(endpoint: str, in_flight: int) -> Callable[[Order], Put]:
    """boto3's `upload_file` as it comes."""
    import boto3

    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    return lambda order: lambda path, key: client.upload_file(str(path), BUCKET, key)


WAYS = {"raw": raw_put, "ours": our_put, "upload_file": upload_file}


def measure(put: Put, order: Order, pool: ThreadPoolExecutor) -> Cost:
    """Put the file under each key."""
    cpu, began, path = time.process_time(), time.perf_counter(), Path(order.path)
    for done in [pool.submit(put, path, key) for key in order.keys]:
        done.result()
    took = time.perf_counter() - began
    return Cost(took, time.process_time() - cpu, peak_rss_mb())


def peak_rss_mb() -> float:
    """Of this process since it runs its own program: what `getrusage` says begins with its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def files_in_hand(in_flight: int) -> int:
    """How many files the uploader has in hand to keep that many requests under way."""
    return in_flight + -(-in_flight // 4)


def s5cmd_put(program: Path, endpoint: str, threads: int, order: Order) -> Cost:
    """One run of s5cmd that copies the file to each key; its start counts, as it has no way to stay."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as commands:
        commands.writelines(f"cp {order.path} s3://{BUCKET}/{key}\n" for key in order.keys)
        commands.flush()
        arguments = [
            str(program),
            "--endpoint-url",
            endpoint,
            "--numworkers",
            str(threads),
            "run",
            commands.name,
        ]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            arguments, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "AWS_REGION": "us-east-1"}
        )
        took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(took, cpu, after.ru_maxrss / 1024)


def main(arguments: list[str]) -> None:
    """Answer commands until standard input ends."""
    way, endpoint, threads = arguments[0], arguments[1], int(arguments[2])
    prepare = WAYS[way](endpoint, threads)
    # As in the uploader: some files more than requests, so that none waits while another is proven.
    with ThreadPoolExecutor(files_in_hand(threads) if way == "ours" else threads) as pool:
        print("ready", flush=True)
        for line in sys.stdin:
            order = msgspec.json.decode(line, type=Order)
            print(msgspec.json.encode(measure(prepare(order), order, pool)).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
