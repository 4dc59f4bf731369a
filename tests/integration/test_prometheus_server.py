"""Prometheus itself on what is in `deploy/`: the alert rules fire when they should, the dashboard's queries find series.

Skipped, with the reason, where Debian's `prometheus` is not installed.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import Any

import pytest
import redis
import yaml

from common.messages import BatchReport, ExtractBatch, UploadFile, UploadReceipt
from common.queues import extract_queue_name, upload_queue_name
from common.rq_keys import WORKERS, worker_key
from common.run_state import RunRecord, note_stored, register_run
from common.worker.presence import Presence
from hiddenfeed.layout import batch_key, tokens_key
from monitor.prometheus import exposition
from monitor.snapshot import take_snapshot
from standalone.process import wait_until
from tests.monitor_scene import NOW, scene

DEPLOY = Path(__file__).parents[2] / "deploy"
RUN = "scraped-0123456789ab"


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (apt-get install prometheus)")
    return found


def _told(*words: str, given: bytes = b"") -> str:
    """What the command says; it must succeed."""
    done = subprocess.run(words, input=given, capture_output=True, check=False, cwd=DEPLOY / "prometheus")
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def test_rules_fire_when_they_should_and_the_configuration_is_valid() -> None:
    promtool = _program("promtool")
    assert "SUCCESS" in _told(promtool, "test", "rules", "alerts_test.yml")
    assert "SUCCESS" in _told(promtool, "check", "config", "prometheus.yml")


def test_metrics_are_named_as_prometheus_wants() -> None:
    _told(_program("promtool"), "check", "metrics", given=exposition(take_snapshot(scene(), NOW)))


@pytest.fixture
def scraped_run(redis_client: redis.Redis) -> redis.Redis:
    """A run of ten batches, three of them stored, with a worker and an uploader."""
    register_run(
        redis_client,
        RunRecord(run_id=RUN, model="m", samples=100, tokens=10_000, batches=10, squares=10**7, submitted_at=time()),
    )  # fmt: skip
    for name, role, queue in (
        ("gpu_worker-h-1", "gpu_worker", extract_queue_name(RUN)),
        ("uploader-h-2", "uploader", upload_queue_name("s")),
    ):
        presence = Presence(name, role)
        presence.serve(queue, "", 3)
        redis_client.hset(
            worker_key(name), items=[part for pair in presence.fields(3)[1].items() for part in pair]
        )
        redis_client.sadd(WORKERS, worker_key(name))
    for batch_id in range(3):
        _store_batch(redis_client, batch_id)
    return redis_client


def _store_batch(client: redis.Redis, batch_id: int) -> None:
    batch = ExtractBatch(
        run_id=RUN, batch_id=batch_id, tokens=tokens_key(RUN), row_group=batch_id, samples=10, tokens_total=1000,
        longest=200, squares=10**6,
    )  # fmt: skip
    report = BatchReport(worker="gpu_worker-h-1", device="cuda:0", kind="NVIDIA H200", forward_seconds=2.0)
    message = UploadFile(
        batch=batch, spool="s", path="p", key="k", size_bytes=1000, checksum="c", report=report
    )
    receipt = UploadReceipt(
        run_id=RUN, batch_id=batch_id, key=batch_key(RUN, batch_id), outcome="stored", size_bytes=1000, upload_seconds=1.0
    )  # fmt: skip
    with client.pipeline() as pipe:
        note_stored(pipe, message, receipt, time() - 30 + batch_id, uploader="uploader-h-2")
        pipe.execute()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _started(*words: str) -> Iterator[None]:
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


class _Api:
    """Prometheus's HTTP API."""

    def __init__(self, port: int) -> None:
        self._root = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, path: str, **given: str) -> Any:
        """The data of the answer; fails if it is not a success."""
        with urllib.request.urlopen(f"{self._root}/{path}?{urllib.parse.urlencode(given)}") as reply:
            answer = json.load(reply)
        assert answer["status"] == "success", answer
        return answer["data"]

    def series(self, query: str) -> list[Any]:
        """What an instant query gives now; empty while it does not answer."""
        try:
            return list(self.ask("query", query=query)["result"])
        except urllib.error.URLError:
            return []


def _configuration(folder: Path, monitor_port: int) -> Path:
    """What is in `deploy/`, for a monitor at another port that is asked every half second."""
    shipped = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    (job,) = shipped["scrape_configs"]
    job["scrape_interval"] = "500ms"
    job["static_configs"] = [{"targets": [f"127.0.0.1:{monitor_port}"]}]
    shutil.copy(DEPLOY / "prometheus/alerts.yml", folder)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(shipped))
    return folder / "prometheus.yml"


def test_every_query_of_the_dashboard_finds_series(
    scraped_run: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    prometheus, port, monitor_port = _program("prometheus"), _free_port(), _free_port()
    spool = tmp_path / "spool"
    spool.mkdir()
    monitor = (sys.executable, "-m", "monitor", "--serve", "--redis-url", redis_url, "--monitor-port", str(monitor_port),
               "--spool", "s", "--spool-dir", str(spool))  # fmt: skip
    server = (prometheus, f"--config.file={_configuration(tmp_path, monitor_port)}", f"--storage.tsdb.path={tmp_path / 'data'}",
              f"--web.listen-address=127.0.0.1:{port}")  # fmt: skip
    api = _Api(port)
    with _started(*monitor), _started(*server):
        # Rates need two points.
        assert wait_until(lambda: bool(api.series("count_over_time(hiddenfeed_up[1m]) > 2")), 60)
        board = json.loads((DEPLOY / "grafana/hiddenfeed.json").read_text())
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
                assert match, variable
                assert api.ask(f"label/{match[2]}/values", **{"match[]": match[1]}) == [RUN]
        for panel in board["panels"]:
            for target in panel["targets"]:
                # As Grafana does for "All", and for one run.
                for chosen in (".*", RUN):
                    query = target["expr"].replace("$run", chosen)
                    assert "$" not in query
                    assert api.series(query), f"{panel['title']}: {query}"
                    labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
                    assert all(labels <= set(found["metric"]) for found in api.series(query)), panel["title"]
        groups = api.ask("rules")["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
