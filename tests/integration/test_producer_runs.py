"""The producer against a real Redis and a store, with a stand-in for the GPU worker: from data to proof."""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from common.cli import dispatch
from common.queues import extract_queue_name, queue_counts
from common.run_state import get_run
from hiddenfeed.errors import TransientError
from hiddenfeed.layout import batch_key, report_key, report_page_key
from hiddenfeed.proof import load_proof, prove
from hiddenfeed.store import open_store
from hiddenfeed.verify import verify
from producer.__main__ import PROG, commands
from producer.end_report import EndReport
from standalone.servers import RedisServer
from tests.conftest import S3Access
from tests.stand_in_worker import stand_in
from tests.tiny_chat import conversations, write_model_folder, write_rows

Answer = tuple[int, str, str]
BATCHES = 18


class Site:
    """A model, data, a store and a Redis, and commands of the producer on them, in threads of this process."""

    def __init__(
        self,
        folder: Path,
        redis_url: str,
        store: str,
        capture: pytest.CaptureFixture[str],
        options: Sequence[str] = (),
    ) -> None:
        self.redis_url, self.folder, self.capture = redis_url, folder, capture
        self.store_url = store
        self.model = write_model_folder(folder / "model")
        self.data = write_rows(folder / "data.jsonl", [*conversations(120), "{broken"])
        self.reach = ["--store", store, "--redis-url", redis_url, *options]
        self.make = ["--model", str(self.model), "--data", str(self.data), "--taps", "1,3", "--name", "t"]
        self.make += ["--micro-batch-tokens", "400", "--target-file-bytes", "100000"]
        self._threads = ThreadPoolExecutor()

    @property
    def run_words(self) -> list[str]:
        """`run` with everything it needs."""
        return ["run", *self.make, *self.reach]

    def start(self, *words: str) -> Future[int]:
        """A command in the background."""
        return self._threads.submit(dispatch, PROG, "", commands(), words)

    def call(self, *words: str) -> Answer:
        """A command to its end: exit code, stdout, stderr."""
        return self.end(self.start(*words))

    def on_run(self, command: str, run_id: str) -> Answer:
        """A command that takes a run, to its end."""
        only_redis = command in ("pause", "resume", "cancel")
        return self.call(command, run_id, *(["--redis-url", self.redis_url] if only_redis else self.reach))

    def end(self, running: Future[int]) -> Answer:
        """The end of a command in the background, with what was written since the last one."""
        code = running.result(timeout=60)
        return code, *self.capture.readouterr()

    @contextmanager
    def worker(self, **options: str) -> Iterator[None]:
        """A stand-in worker, stopped at the end."""
        with self.client() as client:
            worker = stand_in(client, open_store(self.store_url), **options)
            thread = threading.Thread(target=worker.run)
            thread.start()
            try:
                yield
            finally:
                worker.stop()
                thread.join(timeout=30)

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.redis_url)

    def known_run(self) -> str:
        """The run that Redis knows, once it does."""
        prefix = "hiddenfeed:run:"
        with self.client() as client:
            (key,) = eventually(lambda: client.keys(f"{prefix}*"))
        return str(key.decode().removeprefix(prefix))

    def stored(self, run_id: str) -> int:
        """Batch files of the run."""
        return sum(1 for _ in open_store(self.store_url).list(f"{run_id}/batches/"))

    def queued(self, run_id: str) -> int:
        """Batches on the run's queue."""
        with self.client() as client:
            return queue_counts(client, extract_queue_name(run_id)).queued

    def close(self) -> None:
        self._threads.shutdown(wait=True)


def eventually(fact: Callable[[], Any], seconds: float = 30) -> Any:
    """The first true value of `fact`; looks again until the deadline."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not (value := fact()):
        assert time.monotonic() < deadline, "it did not happen in time"
        pause.wait(0.05)
    return value


def messages(err: str) -> list[dict[str, Any]]:
    """The log lines on stderr."""
    return [json.loads(line) for line in err.splitlines() if line.startswith("{")]


@pytest.fixture(autouse=True)
def same_logging() -> Iterator[None]:
    """A command sets up logging for its process, which here goes on."""
    root, ours = logging.getLogger(), logging.getLogger("hiddenfeed")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look more often than a person would."""
    monkeypatch.setattr("producer.follow.POLL_SECONDS", 0.05)
    monkeypatch.setattr("producer.submission.AUDIT_SECONDS", 0.1)


@pytest.fixture
def site(tmp_path: Path, redis_url: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Site]:
    site = Site(tmp_path, redis_url, str(tmp_path / "store"), capsys)
    yield site
    site.close()


def test_a_run_from_data_to_proof_and_again(site: Site) -> None:
    with site.worker():
        code, out, err = site.call(*site.run_words)
    assert (code, err.count("error:")) == (0, 0), err
    run_id, store = site.known_run(), open_store(site.store_url)
    assert f"run {run_id} is complete: 121 rows = 120 stored + 1 skipped + 0 quarantined" in out
    assert load_proof(store, run_id) is not None
    assert prove(store, run_id).stored == 120
    report = msgspec.json.decode(store.read(report_key(run_id)), type=EndReport)
    assert (report.proof["stored"], sum(worker.batches for worker in report.workers)) == (120, BATCHES)
    assert [(many, "not JSON" in reason) for reason, many in report.skipped.items()] == [(1, True)]
    assert "Proved complete: 121 input rows" in store.read(report_page_key(run_id)).decode()
    assert verify(store, run_id, deep=True).finished
    said = messages(err)
    assert any(line.get("run") == run_id for line in said)
    assert any("line 121 is not JSON" in line["message"] for line in said)
    # Without a worker: there is nothing left for one to do.
    code, out, err = site.call(*site.run_words)
    assert code == 0
    assert out.startswith(f"run {run_id}: nothing is left to do\nrun {run_id} is complete")
    with site.client() as client:
        record = get_run(client, run_id)
        assert record is not None
        assert (record.state, record.batches) == ("complete", BATCHES)


def test_a_window_is_kept_and_refilled(site: Site) -> None:
    producer = site.start(*site.run_words, "--queue-window", "3")
    run_id = site.known_run()
    eventually(lambda: site.queued(run_id) == 3)
    most = 0
    with site.worker(pause="0.05"):
        while not producer.done():
            most = max(most, site.queued(run_id))
    code, _, err = site.end(producer)
    assert code == 0, err
    assert most <= 3


def test_redis_wiped_in_mid_run_loses_nothing(site: Site) -> None:
    producer = site.start(*site.run_words)
    run_id = site.known_run()
    with site.client() as client, site.worker(pause="0.1"):
        eventually(lambda: site.stored(run_id) >= 3)
        client.flushdb()
        code, out, err = site.end(producer)
        assert code == 0, err
        assert "121 rows = 120 stored" in out
        record = get_run(client, run_id)
        assert record is not None
        assert record.state == "complete"


def test_failed_batches_are_named_and_retried_by_the_next_run(site: Site) -> None:
    with site.worker(fail="1,5"):
        code, out, err = site.call(*site.run_words)
    assert (code, out) == (1, "")
    run_id = site.known_run()
    assert f"extract batch 1 of {run_id}: " in err
    assert "batch 5 is not to my taste" in err
    assert f"error: 2 of {BATCHES} batches of run {run_id} failed" in err
    with site.worker():
        code, out, err = site.call(*site.run_words)
    assert code == 0, err
    assert any("2 jobs that had failed will be tried again" in line["message"] for line in messages(err))
    assert "120 stored" in out


def test_retry_failed_status_and_runs(site: Site) -> None:
    with site.worker(fail="2"):
        assert site.call(*site.run_words)[0] == 1
    run_id = site.known_run()
    code, out, err = site.on_run("status", run_id)
    assert code == 0, err
    assert f"{BATCHES - 1} of {BATCHES} stored" in out
    assert "1 missing" in out
    assert "1 failed" in out
    assert "batch 2 is not to my taste" in out
    code, out, err = site.on_run("retry-failed", run_id)
    assert (code, out) == (0, f"1 failed job of run {run_id} will be tried again\n"), err
    with site.worker():
        assert site.on_run("wait", run_id)[0] == 0
    assert f"run {run_id} is complete" in site.on_run("status", run_id)[1]
    code, out, _ = site.call("runs", *site.reach)
    assert out.startswith(f"{run_id}  complete  {BATCHES} of {BATCHES} batches")


def test_a_batch_that_never_arrives_ends_the_wait(site: Site) -> None:
    with site.worker(lose="4"):
        code, _, err = site.call(*site.run_words)
    assert code == 1
    assert (
        "batch 4 was extracted again and again and never arrived: do all roles have the same --store?" in err
    )


def test_quarantined_batches_complete_a_run(site: Site) -> None:
    with site.worker(quarantine="0"):
        code, out, err = site.call(*site.run_words)
    assert code == 0, err
    assert "0 quarantined" not in out
    assert "why samples were quarantined is in quarantine.parquet" in out


def test_two_producers_of_one_run_both_end_well(site: Site) -> None:
    producers = [site.start(*site.run_words, "--queue-window", "4") for _ in range(2)]
    with site.worker(pause="0.02"):
        assert [producer.result(60) for producer in producers] == [0, 0]
    out, _ = site.capture.readouterr()
    assert out.count("121 rows = 120 stored + 1 skipped") == 2


def test_submit_queues_a_window_and_pause_holds_until_resume(site: Site) -> None:
    for window in (BATCHES - 1, BATCHES):
        code, out, err = site.call("submit", *site.make, *site.reach, "--queue-window", str(window))
        assert code == 0, err
        run_id = site.known_run()
        assert out == f"{run_id}\n"
        assert site.queued(run_id) == window
        assert f"{window} of {BATCHES} batches queued" in err
        assert ("queues the others" in err) == (window < BATCHES)
    assert site.on_run("pause", run_id)[0] == 0
    waiting = site.start("wait", run_id, *site.reach)
    with site.worker():
        # Long enough for a worker to take all of it, were it allowed to.
        assert not threading.Event().wait(1.5)
        assert (site.stored(run_id), waiting.done()) == (0, False)
        assert site.on_run("resume", run_id)[0] == 0
        assert site.end(waiting)[0] == 0


def test_cancel_ends_the_wait_and_empties_the_queue(site: Site) -> None:
    producer = site.start(*site.run_words)
    run_id = site.known_run()
    eventually(lambda: site.queued(run_id) == BATCHES)
    code, _, said = site.on_run("cancel", run_id)
    assert code == 0
    assert site.queued(run_id) == 0
    assert producer.result(30) == 1
    # The producer may notice before `cancel` returns.
    said += site.capture.readouterr().err
    assert f"error: run {run_id} was cancelled; run it again to go on" in said
    with site.worker():
        assert site.call(*site.run_words)[0] == 0


def test_lost_files_of_a_finished_run_are_made_again(site: Site) -> None:
    with site.worker():
        assert site.call(*site.run_words)[0] == 0
        open_store(site.store_url).delete(batch_key(site.known_run(), 3))
        code, out, err = site.call(*site.run_words)
    assert code == 0, err
    assert "1 batch of a finished run disappeared from the store and will be extracted again" in err
    assert "120 stored" in out


def test_redis_away_for_a_while_is_waited_out(
    tmp_path: Path, private_redis: Callable[[], RedisServer], capsys: pytest.CaptureFixture[str]
) -> None:
    server = private_redis()
    site = Site(tmp_path, server.url, str(tmp_path / "store"), capsys)
    producer = site.start(*site.run_words)
    site.known_run()
    server.stop()
    said = [""]

    def noticed() -> bool:
        said[0] += capsys.readouterr().err
        return "waiting: Redis at" in said[0]

    eventually(noticed)
    assert not producer.done()
    private_redis()
    with site.worker():
        code, out, err = site.end(producer)
    site.close()
    assert code == 0, err
    assert "120 stored" in out
    assert "going on" in err


def test_a_store_away_for_a_while_is_waited_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call that reaches for the store fails once, as if the store had just gone."""
    away: list[str] = []

    def failing_once(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if name not in away:
                away.append(name)
                raise TransientError(f"the store is away ({name})")
            return real(*arguments, **options)

        return call

    for place in (
        "make.publish",
        "attend.load_proof",
        "attend.read_manifests",
        "submission.take_inventory",
        "attend.finish",
    ):
        module, _, name = place.partition(".")
        real = getattr(importlib.import_module(f"producer.{module}"), name)
        monkeypatch.setattr(f"producer.{place}", failing_once(place, real))
    with site.worker():
        code, out, err = site.call(*site.run_words)
    assert code == 0, err
    assert "120 stored" in out
    assert len(away) == 5
    assert all(f"waiting: the store is away ({place})" in err for place in away)


def test_a_run_in_s3(
    tmp_path: Path, redis_url: str, s3: S3Access, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(tmp_path, redis_url, s3.url, capsys, ["--s3-endpoint", s3.endpoint])
    code, out, err = site.call("submit", *site.make, *site.reach)
    assert code == 0, err
    run_id = out.strip()
    assert f"0 of {BATCHES} stored" in site.on_run("status", run_id)[1]
    assert {info.key for info in open_store(s3.url, s3.options).list(run_id)} == {
        f"{run_id}/run.json",
        f"{run_id}/skipped.parquet",
        f"{run_id}/tokens.parquet",
    }
    site.close()


# --- a process that ends in the middle ---


def background(site: Site) -> subprocess.Popen[str]:
    # One thread each: the tokenizer's own would fight for the few cores of a test machine.
    return subprocess.Popen(
        [sys.executable, "-m", "producer", *site.run_words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "RAYON_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name
)
def test_a_producer_that_ends_in_mid_run_leaves_it_to_the_next(site: Site, number: signal.Signals) -> None:
    with background(site) as producer:
        run_id = site.known_run()
        eventually(lambda: site.queued(run_id) == BATCHES)
        producer.send_signal(number)
        _, err = producer.communicate(timeout=30)
    if number != signal.SIGKILL:
        assert producer.returncode == 130
        assert f"`python -m producer wait {run_id}`, takes it up again" in err
        assert "Traceback" not in err
    with site.worker():
        words = (
            [*site.run_words, "--run-id", run_id]
            if number == signal.SIGINT
            else ["wait", run_id, *site.reach]
        )
        code, out, err = site.call(*words)
    assert code == 0, err
    assert f"run {run_id} is complete" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_after_the_answer_changes_nothing(number: signal.Signals) -> None:
    # It comes while the interpreter ends; SIGTERM is handled as it is while a run is attended.
    script = (
        "import atexit, os, runpy, signal, sys; signal.signal(signal.SIGTERM, signal.default_int_handler); "
        f"atexit.register(os.kill, os.getpid(), {int(number)}); sys.argv = ['producer', '--help']; "
        "runpy.run_module('producer', run_name='__main__')"
    )
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "retry-failed" in done.stdout


def test_torch_is_not_imported(site: Site) -> None:
    script = (
        "import sys; from producer.__main__ import main; code = main(sys.argv[1:]); "
        "print(code, sys.modules.get('torch'), [name for name in sys.modules if name.startswith('torch.')])"
    )
    words = [sys.executable, "-c", script, "plan", *site.make]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.stdout.splitlines()[-1] == "0 None []", done.stderr
    assert f"{BATCHES} batch files of" in done.stdout
    assert "PyTorch" not in done.stderr


# --- bad surroundings ---


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (
            {"--redis-url": "redis://127.0.0.1:1/0"},
            75,
            "error: Redis at 127.0.0.1:1 is not there: connection refused",
        ),
        ({"--redis-url": "http://x"}, 2, "error: --redis-url: http://x is not a Redis URL"),
        ({"--store": "/proc/nowhere"}, 2, "error: store folder /proc/nowhere cannot be used"),
        ({"--store": "gs://x"}, 2, "error: store 'gs://x' is neither s3://bucket/prefix nor a folder"),
        ({"--model": "/nowhere"}, 2, "error: model folder /nowhere is not there"),
        ({"--data": "/nowhere.jsonl"}, 2, "error: --data /nowhere.jsonl is not there"),
        ({"--run-id": "t-000000000000"}, 2, "error: there is no run t-000000000000 in "),
        ({"--run-id": "../t"}, 2, "error: --run-id: run id '../t' is not allowed"),
    ],
)
def test_surroundings_that_are_wrong_end_with_one_sentence(
    site: Site, change: dict[str, str], code: int, message: str
) -> None:
    got, out, err = site.call(*site.run_words, *(word for pair in change.items() for word in pair))
    assert (got, out) == (code, "")
    assert message in err
    assert err.count("error:") == 1


def test_nothing_is_stored_of_data_that_leaves_nothing(site: Site) -> None:
    write_rows(site.data, ["{broken"])
    code, _, err = site.call(*site.run_words)
    assert code == 2
    assert "error: " in err
    assert list(open_store(site.store_url).list("")) == []
    with site.client() as client:
        assert client.keys("*") == []


def test_a_resume_with_other_settings_is_refused_by_name(site: Site) -> None:
    assert site.call("submit", *site.make, *site.reach)[0] == 0
    code, _, err = site.call(*site.run_words, "--run-id", site.known_run(), "--taps", "2", "--seed", "9")
    assert code == 2
    assert "taps: from (1, 3) to (2,)" in err
    assert "seed: from 0 to 9" in err


def test_status_is_the_stores_where_redis_is_away(site: Site) -> None:
    assert site.call("submit", *site.make, *site.reach)[0] == 0
    words = ["--store", site.store_url, "--redis-url", "redis://127.0.0.1:1/0"]
    code, out, _ = site.call("status", site.known_run(), *words)
    assert code == 0
    assert "rows       121: 120 samples, 1 skipped" in out
    assert "batches    0 of " in out
    assert "queue      Redis" in out


def test_a_run_that_is_not_there(site: Site) -> None:
    site.folder.joinpath("store").mkdir()
    for command in ("wait", "status", "retry-failed"):
        code, _, err = site.on_run(command, "t-0")
        assert code == 65
        assert "error: there is no run t-0 in" in err
    for command in ("pause", "resume", "cancel"):
        code, _, err = site.on_run(command, "t-0")
        assert code == 2
        assert "error: there is no run 't-0' in Redis" in err
