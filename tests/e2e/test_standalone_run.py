"""The single-machine runner as its users meet it: real servers, all roles as processes, a real model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_worker.demo_model import default_folder, demo_model
from hiddenfeed.reader import open_run
from standalone import process
from standalone.process import ProcessRecord, wait_until
from standalone.redis_server import RedisServer
from tests.conftest import S3Access
from tests.faults.tiny_job import BROKEN_ROWS, ROWS, TinyJob, make_tiny_job

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "examples" / "data" / "conversations.jsonl"
CONVERSATIONS = 60
_PATIENCE_SECONDS = 200


class Installation:
    """A home, and commands on it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environ = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a command; its output is one text."""
        return subprocess.Popen(
            [sys.executable, "-m", "standalone", command, "--home", str(self.home), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.home.parent,
            env=self.environ,
        )

    def run(self, command: str, *arguments: str) -> tuple[int, str]:
        """Exit code and output of a command that ends by itself."""
        with self.start(command, *arguments) as started:
            output, _ = started.communicate(timeout=_PATIENCE_SECONDS)
        return started.returncode, output

    def living(self) -> dict[str, ProcessRecord]:
        """Servers and roles that run now, by name."""
        paths = {path.name: path for path in (self.home / "roles").glob("*") if not path.suffix}
        paths |= {name: self.home / name / "pid" for name in ("redis", "s3")}
        found = {name: process.read_record(path) for name, path in paths.items()}
        return {name: record for name, record in found.items() if record}

    def uploads(self) -> int:
        """Files that were uploaded, over all starts."""
        return sum(log.read_text().count('"uploaded"') for log in (self.home / "logs").glob("uploader-*.log"))

    def wait_for_uploads(self, count: int) -> None:
        """Wait until so many have finished."""
        assert wait_until(lambda: self.uploads() >= count, _PATIENCE_SECONDS)


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path / "home")
    yield made
    for record in made.living().values():
        process.stop(record, 5)


@pytest.fixture(scope="session")
def model() -> Path:
    """The demo's model, converted once per machine."""
    return demo_model(default_folder())


@pytest.fixture(scope="session")
def tiny_job(tmp_path_factory: pytest.TempPathFactory) -> TinyJob:
    return make_tiny_job(tmp_path_factory.mktemp("job"))


def _flags(settings: dict[str, str]) -> list[str]:
    return [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value)]


def _one_error(output: str) -> str:
    """The one sentence of a run that could not be; nothing else may look like an error."""
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, output
    assert "Traceback" not in output
    return errors[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_interrupted_and_killed_ends_with_its_proof_and_then_has_nothing_to_do(
    installation: Installation, model: Path, tmp_path: Path
) -> None:
    data = tmp_path / "chats.jsonl"
    lines = DATA.read_text(encoding="utf-8").splitlines(keepends=True)
    data.write_text("".join(lines[:: len(lines) // CONVERSATIONS][:CONVERSATIONS]), encoding="utf-8")
    job = ["--model", str(model), "--data", str(data), "--taps", "2,15,30"]
    job += ["--target-file-bytes", "500KiB", "--micro-batch-tokens", "256"]

    # Ctrl-C: everything ends, in order.
    with installation.start("run", *job) as runner:
        installation.wait_for_uploads(1)
        runner.send_signal(signal.SIGINT)
        output, _ = runner.communicate(timeout=_PATIENCE_SECONDS)
    assert runner.returncode == 130
    assert re.search(r"interrupted: \d+ of \d+ batches stored; the same command goes on", output)
    assert installation.living() == {}

    # kill -9 of the runner, and then of all that is left at once.
    before = installation.uploads()
    with installation.start("run", *job) as runner:
        installation.wait_for_uploads(before + 1)
        # Looked at in the middle, from outside, which disturbs nothing.
        code, seen = installation.run("exec", "--", "python", "-m", "monitor", "--once")
        assert (code, f"of {CONVERSATIONS} samples" in seen) == (0, True)
        living = installation.living()
        runner.kill()
        for record in living.values():
            os.kill(record.pid, signal.SIGKILL)
    assert {"redis", "s3", "producer", "gpu_worker-1", "uploader-1", "uploader-2"} <= living.keys()
    assert wait_until(lambda: installation.living() == {}, 20)

    # Somebody looks on meanwhile, came first and goes last: the servers are ended with the last of their users.
    with installation.start("serve", "--monitor-port", "0") as visitor:
        assert wait_until(lambda: {"redis", "s3"} <= installation.living().keys(), 60)
        code, output = installation.run("run", *job)
        assert code == 0, output
        assert f"{CONVERSATIONS} = {CONVERSATIONS} stored + 0 skipped + 0 quarantined" in output
        assert len(re.findall(r"tap \d+ .*\bok$", output, re.MULTILINE)) == 3
        assert "in the model)" in output
        assert "the servers of this home stay up" in output
        assert installation.living().keys() == {"redis", "s3"}
        code, stopped = installation.run("stop")
        assert (code, "are in use by another" in _one_error(stopped)) == (2, True)
        visitor.send_signal(signal.SIGTERM)
        visitor.communicate(timeout=_PATIENCE_SECONDS)
    assert installation.living() == {}

    # The commands that the report names work as they stand.
    match = re.search(r"-- (python -m hiddenfeed show (\S+))", output)
    assert match
    code, shown = installation.run("exec", "--", *match[1].split())
    assert (code, "complete, proved" in shown) == (0, True)
    code, verified = installation.run(
        "exec", "--", "python", "-m", "hiddenfeed", "verify", "--deep", match[2]
    )
    assert (code, "every checksum agrees" in verified) == (0, True)

    worker_log = (installation.home / "logs" / "gpu_worker-1.log").read_bytes()
    code, output = installation.run("run", *job)
    assert (code, "nothing is left to do" in output) == (0, True)
    assert (installation.home / "logs" / "gpu_worker-1.log").read_bytes() == worker_log


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_with_redis_and_s3_given_survives_the_loss_of_any_process(
    installation: Installation, tiny_job: TinyJob, redis_url: str, s3: S3Access
) -> None:
    given = ["--redis-url", redis_url, "--out", s3.url, "--s3-endpoint", s3.endpoint, "--uploaders", "1"]
    given += ["--lease-seconds", "6", "--heartbeat-seconds", "2", "--maintenance-seconds", "2"]
    installation.environ |= {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
    job = tiny_job.settings | {"target_file_bytes": "400000"}
    with installation.start("run", *_flags(job), *given) as runner:
        for count, victim in ((3, "uploader-1"), (6, "gpu_worker-1"), (9, "producer")):
            installation.wait_for_uploads(count)
            os.kill(installation.living()[victim].pid, signal.SIGKILL)
        output, _ = runner.communicate(timeout=_PATIENCE_SECONDS)
    assert runner.returncode == 0, output
    assert f"{ROWS:,} = {ROWS - BROKEN_ROWS:,} stored + {BROKEN_ROWS:,} skipped + 0 quarantined" in output
    assert "3 times a process had ended" in output
    # Nothing was started that was given, and nothing given was ended.
    assert not (installation.home / "redis").exists()
    match = re.search(r"python\S* -m hiddenfeed show (\S+)", output)
    assert match
    assert len(open_run(match[1], options=s3.options)) == ROWS - BROKEN_ROWS


def _bad(
    kind: str, tmp_path: Path, s3: S3Access, taken: RedisServer, job: TinyJob
) -> tuple[dict[str, str], str]:
    """Settings that cannot work, and what must be said of them."""
    nowhere = str(tmp_path / "nowhere")
    unreadable = tmp_path / "unreadable.jsonl"
    unreadable.write_text("not json\n")
    out = {"out": str(tmp_path / "out")}
    port = str(taken.port)
    return {
        "missing data": ({"data": nowhere}, "there is no file"),
        "unreadable data": ({"data": str(unreadable), **out}, "no sample is left"),
        "unknown model": ({"model": nowhere, **out}, "is not there"),
        "impossible tap": ({"taps": "99", **out}, "is not a tap of a model with"),
        "no device": ({"devices": "cpu,cuda:77", **out}, "device 'cuda:77' is not there"),
        "no Redis": ({"redis_url": "redis://127.0.0.1:1/0"}, "Redis at 127.0.0.1:1 is not there"),
        "port of Redis": ({"redis_port": port}, f"port {port} for the Redis server is taken"),
        "port of S3": ({"s3_port": port}, f"port {port} for the S3 server is taken"),
        "no bucket": ({"out": "s3://no-such-bucket/x", "s3_endpoint": s3.endpoint}, "no-such-bucket"),
        "wrong key": ({"out": s3.url, "s3_endpoint": s3.endpoint}, "refuse"),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "missing data",
        "unreadable data",
        "unknown model",
        "impossible tap",
        "no device",
        "no Redis",
        "port of Redis",
        "port of S3",
        "no bucket",
        "wrong key",
    ],
)
def test_what_cannot_work_is_one_sentence_and_leaves_nothing_running(
    kind: str,
    installation: Installation,
    tmp_path: Path,
    s3: S3Access,
    redis_server: RedisServer,
    tiny_job: TinyJob,
) -> None:
    changes, sentence = _bad(kind, tmp_path, s3, redis_server, tiny_job)
    secret = "wrong" if kind == "wrong key" else s3.secret_key
    installation.environ |= {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": secret}
    code, output = installation.run("run", *_flags(tiny_job.settings | changes))
    assert code != 0
    assert sentence in _one_error(output)
    assert installation.living() == {}
    assert not list((tmp_path / "out").rglob("run.json"))


def test_two_runners_do_not_share_a_home(installation: Installation, tiny_job: TinyJob) -> None:
    job = [*_flags(tiny_job.settings), "--out", str(installation.home.parent / "out")]
    with installation.start("run", *job) as first:
        assert wait_until(lambda: "producer" in installation.living(), 60)
        code, output = installation.run("run", *job)
        assert (code, f"is in use by process {first.pid}" in _one_error(output)) == (2, True)
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=_PATIENCE_SECONDS)
    assert first.returncode == 130
    assert installation.living() == {}
