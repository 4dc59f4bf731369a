"""The monitor on a real Redis: what it reads, and its three faces as processes."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from time import time

import msgspec
import pytest
import redis

from common.history import read_history
from common.messages import BatchReport, ExtractBatch, UploadFile, UploadReceipt
from common.queues import (
    JobRequest,
    enqueue,
    extract_queue_name,
    extract_request,
    upload_job_id,
    upload_queue_name,
    upload_request,
)
from common.rq_keys import JobField, job_key, queue_key, scheduled_key
from common.run_state import RunRecord, note_stored, register_run
from common.settings.catalogue import QueueSettings, SpoolSettings
from common.settings.live import clear_live, set_live
from common.worker.presence import Presence
from hiddenfeed.layout import batch_key, complete_key, tokens_key
from hiddenfeed.options import MIB
from hiddenfeed.store import ObjectInfo, open_store
from hiddenfeed.store.memory import MemoryStore
from monitor.facts import read_facts
from monitor.snapshot import take_snapshot
from monitor.views import Snapshot
from standalone.process import wait_until
from standalone.redis_server import RedisServer
from tests.conftest import S3Access

RUN = "seen-0123456789ab"


def _batch(batch_id: int) -> ExtractBatch:
    return ExtractBatch(
        run_id=RUN,
        batch_id=batch_id,
        tokens=tokens_key(RUN),
        row_group=batch_id,
        samples=10,
        tokens_total=1000,
        longest=200,
    )


def _file(batch_id: int) -> UploadFile:
    report = BatchReport(
        worker="gpu_worker-h-1", device="cpu", forward_seconds=2.0, read_seconds=0.5, padded_tokens=1100
    )
    return UploadFile(
        batch=_batch(batch_id),
        spool="default",
        path=f"{RUN}/{batch_id:06d}-abc.safetensors",
        key=batch_key(RUN, batch_id),
        size_bytes=5_000_000,
        checksum="crc32:AAAAAA==",
        report=report,
    )


@pytest.fixture
def seen_run(redis_client: redis.Redis) -> redis.Redis:
    """A run of four batches: two stored, one waiting for upload, one for extraction; one worker."""
    register_run(
        redis_client,
        RunRecord(run_id=RUN, model="tiny", samples=40, tokens=4000, batches=4, submitted_at=time() - 60),
    )
    requests: list[JobRequest] = [extract_request(_batch(3)), upload_request(_file(2))]
    assert enqueue(redis_client, requests, QueueSettings()) == 2
    for batch_id, ago in ((0, 20.0), (1, 10.0)):
        receipt = UploadReceipt(
            run_id=RUN,
            batch_id=batch_id,
            key=batch_key(RUN, batch_id),
            outcome="stored",
            size_bytes=5_000_000,
            upload_seconds=0.5,
        )
        with redis_client.pipeline() as pipe:
            note_stored(pipe, _file(batch_id), receipt, time() - ago, uploader="uploader-h-2")
            pipe.execute()
    presence = Presence("gpu_worker-h-1", "gpu_worker")
    presence.serve(extract_queue_name(RUN), "the spool is full", 3)
    _, fields = presence.fields(running=0)
    redis_client.sadd("rq:workers", "rq:worker:gpu_worker-h-1")
    for field, value in fields.items():
        redis_client.hset("rq:worker:gpu_worker-h-1", field, value)
    return redis_client


@contextmanager
def _monitor(url: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "monitor", *arguments, "--redis-url", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def _change(url: str, change: dict[str, str], token: str) -> tuple[int, str]:
    request = urllib.request.Request(
        f"{url}control", msgspec.json.encode(change), {"Authorization": f"Bearer {token}"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, msgspec.json.decode(reply.read())["message"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, msgspec.json.decode(error.read())["message"]


def _served(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    match = re.search(r"http://\S+/", process.stdout.readline())
    assert match
    return match[0]


def test_the_spool_is_held_against_the_cap_that_workers_go_by(
    redis_client: redis.Redis, tmp_path: Path
) -> None:
    settings = SpoolSettings(spool="default", spool_dir=str(tmp_path), spool_cap_bytes=900 * MIB)
    set_live(redis_client, {"spool_cap_bytes": "12MiB"})
    try:
        spool = read_facts(redis_client, settings, 45.0, None).spool
    finally:
        clear_live(redis_client, ["spool_cap_bytes"])
    assert spool is not None
    assert spool.cap_bytes == 12 * MIB
    spool = read_facts(redis_client, settings, 45.0, None).spool
    assert spool is not None
    assert spool.cap_bytes == 900 * MIB


def test_snapshot_of_a_run_in_redis_and_store(seen_run: redis.Redis, tmp_path: Path) -> None:
    before = {key: seen_run.dump(key) for key in seen_run.scan_iter()}
    settings = SpoolSettings(spool_dir=str(tmp_path / "spool"))
    store = open_store(str(tmp_path / "store"))
    store.check(create=True)
    snapshot = take_snapshot(read_facts(seen_run, settings, 45.0, store), time())
    (run,) = snapshot.runs
    assert (run.state, run.batches, run.tokens, run.size_bytes) == ("running", 2, 2000, 10_000_000)
    assert run.tokens_per_second == pytest.approx(100, rel=0.01)
    assert run.queued == 1
    assert run.workers[0].padding == pytest.approx(1 - 1000 / 1100)
    assert run.uploaders[0].files == 2
    assert [(queue.name, queue.queued) for queue in snapshot.uploads] == [(upload_queue_name("default"), 1)]
    assert [(process.state, process.waits_for) for process in snapshot.processes] == [
        ("waiting", "the spool is full")
    ]
    assert snapshot.problems == ("no uploader takes from upload-default: 1 file waiting",)
    assert [queue.retries for queue in snapshot.uploads] == [()]
    # Reading changes nothing.
    assert {key: seen_run.dump(key) for key in seen_run.scan_iter()} == before

    # A file that could not be uploaded for now, as a worker notes it.
    job, queue = upload_job_id(RUN, 2), upload_queue_name("default")
    seen_run.lrem(queue_key(queue), 1, job)
    seen_run.zadd(scheduled_key(queue), {job: time() + 60})
    seen_run.hset(job_key(job), JobField.ERROR, "S3 is not reachable")
    (upload,) = take_snapshot(read_facts(seen_run, settings, 45.0, store), time()).uploads
    assert (upload.queued, upload.retrying) == (0, 1)
    assert [(retry.job_id, retry.error) for retry in upload.retries] == [(job, "S3 is not reachable")]

    store.write(complete_key(RUN), b"{}")
    assert take_snapshot(read_facts(seen_run, settings, 45.0, store), time()).runs[0].state == "complete"


def test_once_prints_text_and_json(seen_run: redis.Redis, redis_url: str) -> None:
    with _monitor(redis_url, "--once") as process:
        text, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert RUN in text
    assert "2 of 4 batches" in text
    with _monitor(redis_url, "--once", "--json") as process:
        text, _ = process.communicate(timeout=30)
    assert msgspec.json.decode(text, type=Snapshot).runs[0].run_id == RUN


def test_empty_redis_is_shown_plainly_by_as_little_as_that_takes(redis_url: str) -> None:
    words = [sys.executable, "-X", "importtime", "-m", "monitor", "--redis-url", redis_url]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, "no runs yet" in done.stdout) == (0, True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {"redis", "monitor.snapshot"} <= loaded
    # What serves pages, draws terminals, runs jobs or speaks to S3 takes longer to load than a look takes.
    needless = {"rich", "starlette", "uvicorn", "prometheus_client", "common.worker.loop", "awscrt", "boto3"}
    assert not loaded & needless


class _Crowd(MemoryStore):
    """A store that answers when so many ask it at a time, and not before."""

    def __init__(self, askers: int) -> None:
        super().__init__()
        self._together = Barrier(askers)

    def check(self, *, create: bool = False) -> None:
        """See `Store.check`."""
        self._together.wait(20)

    def head(self, key: str, *, checksum: bool = False) -> ObjectInfo | None:
        """See `Store.head`."""
        self._together.wait(20)
        return super().head(key, checksum=checksum)


def test_a_store_far_away_is_asked_of_all_runs_at_once(redis_client: redis.Redis) -> None:
    for number in range(3):
        record = RunRecord(
            run_id=f"r{number}-0123456789ab", model="m", samples=1, tokens=1, batches=1, submitted_at=number
        )
        register_run(redis_client, record)
    store = _Crowd(4)
    facts = read_facts(redis_client, SpoolSettings(spool_dir="/nonexistent"), 45.0, store)
    assert (facts.store_error, [run.proved for run in facts.runs]) == ("", [False, False, False])


def test_redis_away_is_one_sentence() -> None:
    with _monitor("redis://:secret@127.0.0.1:1/0", "--once") as process:
        text, _ = process.communicate(timeout=30)
    assert process.returncode == 75
    assert "Redis at 127.0.0.1:1 is not there" in text
    assert "Traceback" not in text
    assert "secret" not in text


@pytest.mark.parametrize("kind", ["bucket", "secret", "server"])
def test_a_store_that_cannot_be_read_is_said_and_ends_a_look_with_an_error(
    kind: str, seen_run: redis.Redis, redis_url: str, s3: S3Access
) -> None:
    endpoint = "http://127.0.0.1:1" if kind == "server" else s3.endpoint
    url = "s3://no-such-bucket/runs" if kind == "bucket" else s3.url
    environ = os.environ | {
        "AWS_ACCESS_KEY_ID": s3.access_key,
        "AWS_SECRET_ACCESS_KEY": "wrong" if kind == "secret" else s3.secret_key,
    }
    flags = ["--once", "--store", url, "--s3-endpoint", endpoint, "--redis-url", redis_url]
    done = subprocess.run(
        [sys.executable, "-m", "monitor", *flags], env=environ, capture_output=True, text=True, check=False
    )
    sentence, code = {
        "bucket": ("bucket 'no-such-bucket' does not exist", 2),
        "secret": ("refuses the credentials", 2),
        "server": ("S3 at http://127.0.0.1:1 is not reachable", 75),
    }[kind]
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert re.match(rf"error: .*{sentence}", done.stderr)
    # What is known is shown all the same.
    assert re.search(rf"^! .*{sentence}", done.stdout, re.MULTILINE)
    assert "Proofs are unknown" in done.stdout
    assert "2 of 4 batches" in done.stdout


@pytest.mark.parametrize("form", [["--json"], []], ids=["json", "lines"])
def test_watch_goes_on_until_it_is_told_to_end(
    form: list[str], seen_run: redis.Redis, redis_url: str
) -> None:
    with _monitor(redis_url, "--watch", *form, "--refresh-seconds", "0.1") as process:
        assert process.stdout is not None
        text = process.stdout.readline()
        while RUN not in text:
            text += process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        text += process.communicate(timeout=30)[0]
        assert process.returncode == 0
    # What is no terminal gets lines that a person or a log can keep: nothing that moves, nothing coloured.
    assert "\x1b" not in text
    assert form or "+ Is the disk filling?" in text or "? Is the disk filling?" in text


def test_watch_in_a_terminal_is_live_and_leaves_it_as_it_was(seen_run: redis.Redis, redis_url: str) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "monitor", "--watch", "--redis-url", redis_url],
        stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "150", "LINES": "50"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    with process, os.fdopen(ours, "rb", buffering=0) as terminal:
        while b"Is the disk filling?" not in seen:
            seen += terminal.read(4096)
        process.send_signal(signal.SIGTERM)
        try:
            while chunk := terminal.read(4096):
                seen += chunk
        except OSError:
            pass  # the other end is closed: the process has ended
    assert process.returncode == 0
    # The alternate screen, entered and left.
    assert (seen.count(b"\x1b[?1049h"), seen.count(b"\x1b[?1049l")) == (1, 1)
    assert RUN.encode() in seen


def test_watch_on_a_terminal_that_draws_nothing_is_lines(seen_run: redis.Redis, redis_url: str) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "monitor", "--watch", "--redis-url", redis_url],
        stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "dumb"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    with process, os.fdopen(ours, "rb", buffering=0) as terminal:
        while b"Is the disk filling?" not in seen:
            seen += terminal.read(4096)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert b"\x1b" not in seen


def test_page_json_and_health_follow_redis_away_and_back(private_redis: Callable[[], RedisServer]) -> None:
    server = private_redis()
    with redis.Redis.from_url(server.url) as client:
        record = RunRecord(run_id=RUN, model="<b>", samples=1, tokens=1, batches=1, submitted_at=time())
        register_run(client, record)
    with _monitor(server.url, "--serve", "--monitor-port", "0") as process:
        url = _served(process)
        assert _get(f"{url}healthz") == (200, '{"status":"ok"}')
        status, page = _get(url)
        assert (status, RUN in page, "<b>" in page) == (200, True, False)
        assert msgspec.json.decode(_get(f"{url}snapshot.json")[1], type=Snapshot).runs[0].state == "waiting"

        assert "hiddenfeed_up 1.0" in _get(f"{url}metrics")[1]

        os.kill(server.pid, signal.SIGKILL)
        assert wait_until(lambda: _get(f"{url}healthz")[0] == 503, 20)
        assert "hiddenfeed_up 0.0" in _get(f"{url}metrics")[1]
        status, page = _get(url)
        assert (status, "is not there" in page, "Traceback" in page) == (200, True, False)

        private_redis()
        assert wait_until(lambda: _get(f"{url}healthz")[0] == 200, 20)
        assert RUN in _get(url)[1]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0


def test_page_is_told_live_writes_history_and_changes_what_the_token_allows(
    seen_run: redis.Redis, redis_url: str
) -> None:
    with _monitor(
        redis_url,
        "--serve",
        "--monitor-port",
        "0",
        "--refresh-seconds",
        "0.1",
        "--monitor-token",
        "let-me-in",
    ) as process:
        url = _served(process)
        with urllib.request.urlopen(f"{url}events", timeout=10) as stream:
            assert stream.headers["Content-Type"].startswith("text/event-stream")
            assert stream.readline() == b"event: snapshot\n"
            told = msgspec.json.decode(stream.readline().removeprefix(b"data: "), type=Snapshot)
            assert (told.runs[0].batches, told.runs[0].state) == (2, "running")

            assert _change(url, {"action": "pause", "run": RUN}, "wrong")[0] == 401
            assert _change(url, {"action": "pause", "run": RUN}, "let-me-in") == (200, f"{RUN} is paused.")
            assert wait_until(lambda: b'"state":"paused"' in stream.readline(), 10)
        assert _change(url, {"action": "resume", "run": RUN}, "let-me-in") == (200, f"{RUN} is active.")
        assert (
            _change(url, {"action": "set", "name": "upload_parallelism", "value": "7"}, "let-me-in")[0] == 200
        )
        assert seen_run.hget("hiddenfeed:live", "upload_parallelism") == b"7"
        assert _change(url, {"action": "set", "name": "redis_url", "value": "x"}, "let-me-in")[0] == 400
        assert _change(url, {"action": "clear", "name": "upload_parallelism"}, "let-me-in")[0] == 200
        assert seen_run.hget("hiddenfeed:live", "upload_parallelism") is None
        (point,) = read_history(seen_run, RUN)
        assert (point.batches, point.backlog, point.queued) == (2, 1, 1)
        # A page that is still open does not keep it from ending.
        with urllib.request.urlopen(f"{url}events", timeout=10) as stream:
            assert stream.readline()
            process.send_signal(signal.SIGTERM)
            text, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        said = [msgspec.json.decode(line) for line in text.splitlines()]
        assert {line["level"] for line in said} == {"info", "warning"}
        assert [line["message"] for line in said if line["level"] == "warning"] == [
            "a change with a wrong token was refused"
        ]


def test_weak_token_is_refused_and_not_shown(redis_url: str) -> None:
    with _monitor(redis_url, "--serve", "--monitor-port", "0", "--monitor-token", "secret") as process:
        text, _ = process.communicate(timeout=30)
    assert (process.returncode, "too short" in text, "secret" in text) == (2, True, False)


def test_taken_port_is_named(redis_url: str, redis_server: RedisServer) -> None:
    with _monitor(redis_url, "--serve", "--monitor-port", str(redis_server.port)) as process:
        text, _ = process.communicate(timeout=30)
    assert process.returncode == 2
    assert re.fullmatch(
        rf"error: the monitor cannot listen on 127.0.0.1 port {redis_server.port}: address already in use.*\n",
        text,
    )
