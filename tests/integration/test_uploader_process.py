"""`python -m uploader` as a process: what it needs, what it says, how it ends, and what it survives."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from common.queues import enqueue, upload_request
from common.worker import list_workers
from hiddenfeed.store import open_store
from producer.__main__ import main as producer
from tests.conftest import S3Access
from tests.faults.scripted_faults import Fail, Hang, Hold, Well
from tests.faults.scripted_s3 import ScriptedS3
from tests.upload_rig import MIB, finished_file, make_spool
from tests.worker_rig import SETTINGS, state, wait_until

QUICK = [
    "--lease-seconds",
    "3",
    "--heartbeat-seconds",
    "1",
    "--maintenance-seconds",
    "1",
    "--log-format",
    "json",
]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "uploader", *arguments]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run to the end; the environment has the test's credentials and no settings."""
    return subprocess.run(
        command(*arguments),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@contextmanager
def started(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A running uploader that has said that it serves; killed at the end if it still runs."""
    process = subprocess.Popen(
        command(*QUICK, *arguments),
        env={**os.environ, **(environment or {})},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert '"message":"serving"' in line, line + process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()


def resident_mib(pid: int) -> float:
    """Peak resident memory of a process so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def spool_flags(tmp_path: Path) -> list[str]:
    return [
        *("--spool", "default", "--spool-dir", str(tmp_path / "spool")),
        *("--spool-cap-bytes", "1GiB", "--spool-free-bytes", "0"),
    ]


# --- what it needs ---


def assert_one_sentence(result: subprocess.CompletedProcess[str], code: int, sentence: str) -> None:
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert sentence in line


def test_a_store_must_be_given(tmp_path: Path) -> None:
    assert_one_sentence(run(), 2, "--store (or HIDDENFEED_STORE) must be given")


def test_wrong_settings_are_one_sentence_each(s3: S3Access, redis_url: str, tmp_path: Path) -> None:
    good = ["--redis-url", redis_url, "--s3-endpoint", s3.endpoint, *spool_flags(tmp_path)]
    assert_one_sentence(
        run(*good, "--store", "s3://no-such-bucket/x"),
        2,
        f"bucket 'no-such-bucket' does not exist at {s3.endpoint}",
    )
    assert_one_sentence(
        run(*good, "--store", s3.url, AWS_SECRET_ACCESS_KEY="wrong"), 2, "refuses the credentials"
    )
    assert_one_sentence(
        run(*good, "--store", s3.url, AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY=""),
        2,
        "there are no credentials for S3",
    )
    (tmp_path / "file").write_text("x")
    assert_one_sentence(
        run(*good, "--store", s3.url, "--spool-dir", str(tmp_path / "file")), 2, "cannot be written"
    )


def test_servers_that_are_not_there_are_one_sentence_each(
    s3: S3Access, redis_url: str, tmp_path: Path
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        spool = spool_flags(tmp_path)
        result = run("--store", str(tmp_path / "store"), "--redis-url", f"redis://{nobody}/0", *spool)
        assert_one_sentence(result, 75, f"Redis at {nobody} is not there: connection refused")
        endpoint = ["--s3-endpoint", f"http://{nobody}", "--s3-max-attempts", "1"]
        result = run("--store", s3.url, "--redis-url", redis_url, *endpoint, *spool)
        assert_one_sentence(result, 75, f"S3 at http://{nobody} is not reachable: connection refused")


def test_help_and_show_config_need_no_server() -> None:
    result = run("--help")
    assert result.returncode == 0
    for taught in ("--upload-parallelism", "HIDDENFEED_STORE", "examples:", "AWS_ACCESS_KEY_ID"):
        assert taught in result.stdout
    result = run("--show-config", "--upload-parallelism", "7", HIDDENFEED_STORE="s3://b/p")
    assert result.returncode == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["upload_parallelism", "7", "flag", "--upload-parallelism"] in lines
    assert ["store", "s3://b/p", "environment", "HIDDENFEED_STORE"] in lines


def test_nothing_heavy_is_imported() -> None:
    program = (
        "import sys, uploader.bootstrap, hiddenfeed.store.s3; "
        "print([name for name in ('numpy', 'pyarrow', 'torch', 'producer', 'gpu_worker') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


# --- what it does ---


def test_it_uploads_and_stops_when_told(
    s3: S3Access, redis_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    spool, store = make_spool(tmp_path / "spool"), open_store(s3.url, s3.options)
    messages = [finished_file(spool, number, os.urandom(MIB)) for number in range(8)]
    flags = [
        "--store",
        s3.url,
        "--s3-endpoint",
        s3.endpoint,
        "--redis-url",
        redis_url,
        *spool_flags(tmp_path),
    ]
    with started(*flags) as process:
        before = resident_mib(process.pid)
        requests = [upload_request(message) for message in messages]
        enqueue(redis_client, requests, SETTINGS)
        wait_until(lambda: all(state(redis_client, request) == "finished" for request in requests))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert [info.key for info in store.list("")] == [message.key for message in messages]
    assert spool.files() == []
    assert before < 150


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedS3]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with ScriptedS3() as server:
        yield server


def test_after_a_kill_in_mid_upload_another_takes_over(
    scripted: ScriptedS3, redis_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    spool = make_spool(tmp_path / "spool")
    message = finished_file(spool, 7, os.urandom(MIB))
    request = upload_request(message)
    enqueue(redis_client, [request], SETTINGS)
    flags = [
        "--store", "s3://bucket/runs", "--s3-endpoint", scripted.endpoint, "--redis-url", redis_url, *spool_flags(tmp_path)
    ]  # fmt: skip
    scripted.always("PutObject", Hang())
    with started(*flags) as first:
        wait_until(lambda: "PutObject" in scripted.log)
        first.kill()
        first.wait()
    assert [file.path for file in spool.files()] == [message.path]
    scripted.always("PutObject", Well())
    with started(*flags):
        wait_until(lambda: state(redis_client, request) == "finished", 40)
    assert list(scripted.objects) == [f"runs/{message.key}"]
    assert spool.files() == []


def test_after_a_kill_in_mid_upload_the_next_one_goes_on_with_the_parts(
    scripted: ScriptedS3, redis_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    spool = make_spool(tmp_path / "spool")
    data = os.urandom(22 * MIB)
    message = finished_file(spool, 7, data)
    request = upload_request(message)
    enqueue(redis_client, [request], SETTINGS)
    flags = [
        "--store", "s3://bucket/runs", "--s3-endpoint", scripted.endpoint, "--redis-url", redis_url, *spool_flags(tmp_path),
        "--multipart-threshold-bytes", "5MiB", "--multipart-part-bytes", "5MiB", "--multipart-parts-in-flight", "1",
    ]  # fmt: skip
    scripted.script("UploadPart", Well(), Well(), Well())
    scripted.always("UploadPart", Hang())
    with started(*flags) as first:
        wait_until(lambda: scripted.log.count("UploadPart") >= 4)
        first.kill()
        first.wait()
    scripted.always("UploadPart", Well())
    # On a busy machine a lease may lapse, and two threads go on with one upload; it does no harm.
    there = set(scripted.parts_sent)
    assert there <= {1, 2, 3}
    assert there
    scripted.parts_sent.clear()
    with started(*flags):
        wait_until(lambda: state(redis_client, request) == "finished", 40)
    assert set(scripted.parts_sent) == {1, 2, 3, 4, 5} - there
    assert scripted.objects[f"runs/{message.key}"].data == data
    assert scripted.uploads == {}
    assert redis_client.hgetall("hiddenfeed:parts:s3://bucket/runs") == {}
    assert spool.files() == []


def test_one_command_takes_a_running_fleet_from_100_to_500_uploads_at_a_time(
    scripted: ScriptedS3,
    redis_url: str,
    redis_client: redis.Redis,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spool, files = make_spool(tmp_path / "spool"), 250
    requests = [upload_request(finished_file(spool, number, b"data")) for number in range(files)]
    scripted.always("PutObject", Hang())
    flags = [
        "--store", "s3://bucket/runs", "--s3-endpoint", scripted.endpoint, "--redis-url", redis_url,
        *spool_flags(tmp_path), "--upload-parallelism", "100", "--upload-process-max", "100",
    ]  # fmt: skip

    def uploading() -> int:
        return scripted.log.count("PutObject")

    with started(*flags) as one, started(*flags) as other:
        wait_until(lambda: len(list_workers(redis_client)) == 2)
        enqueue(redis_client, requests, SETTINGS)
        wait_until(lambda: uploading() >= 100, 60)
        assert uploading() < 200
        assert producer(["set", "--redis-url", redis_url, "upload_parallelism=500"]) == 0
        # All that two processes take: both have heard of it.
        wait_until(lambda: uploading() == 200, 60)
        assert (one.poll(), other.poll()) == (None, None)
    shown = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert ["upload_parallelism", "500"] in shown
    result = run("--show-config", *flags)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["upload_parallelism", "500", "live"] in lines
    assert result.stderr == ""


def test_an_outage_of_the_store_is_waited_out_and_a_stop_waits_for_an_upload(
    scripted: ScriptedS3, redis_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    spool = make_spool(tmp_path / "spool")
    messages = [finished_file(spool, number, os.urandom(1000)) for number in range(4)]
    requests = [upload_request(message) for message in messages]
    enqueue(redis_client, requests, SETTINGS)
    scripted.always("PutObject", Fail(503, "SlowDown"))
    quick = [
        "--s3-max-attempts",
        "1",
        "--retry-base-seconds",
        "0.1",
        "--retry-max-seconds",
        "0.2",
        "--job-attempts",
        "1",
    ]
    flags = [
        "--store", "s3://bucket/runs", "--s3-endpoint", scripted.endpoint, "--redis-url", redis_url, *spool_flags(tmp_path)
    ]  # fmt: skip
    with started(*flags, *quick) as process:
        wait_until(lambda: scripted.log.count("PutObject") > 6)
        assert len(spool.files()) == 4
        scripted.always("PutObject", Well())
        wait_until(lambda: all(state(redis_client, request) == "finished" for request in requests))
        assert process.poll() is None
        assert len(scripted.objects) == 4
        # And one that is under way when the process is told to end is brought to its end first.
        last, goes_on = upload_request(finished_file(spool, 4, b"data")), threading.Event()
        held = scripted.log.count("PutObject")
        scripted.script("PutObject", Hold(goes_on))
        enqueue(redis_client, [last], SETTINGS)
        wait_until(lambda: scripted.log.count("PutObject") > held)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        goes_on.set()
        assert process.wait(30) == 0
    assert state(redis_client, last) == "finished"
    assert len(scripted.objects) == 5
    assert spool.files() == []
