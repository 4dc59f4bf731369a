"""rq-dashboard as a process: shows our queues and jobs, never unpickles, changes nothing by a mere visit."""

from __future__ import annotations

import base64
import pickle
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from common import rq_keys
from common.queues import enqueue, failed_jobs, queue_counts
from standalone.ports import free_ports
from tests.worker_rig import QUEUE, SETTINGS, Gate, make_worker, running, state, wait_until, work

PASSWORD = "open sesame"


class Dashboard:
    """The running process."""

    def __init__(self, redis_url: str, *options: str) -> None:
        [self.port] = free_ports(1)
        command = [sys.executable, "-W", "error", "-m", "monitor.rq_dashboard", "--redis-url", redis_url]
        self.process = subprocess.Popen(
            [*command, "--dashboard-port", str(self.port), *options], stderr=subprocess.PIPE, text=True
        )
        wait_until(lambda: self.process.poll() is not None or self.answers())

    def answers(self) -> bool:
        """True once it listens."""
        try:
            self.get("/favicon.ico")
        except urllib.error.HTTPError:
            return True
        except urllib.error.URLError:
            return False
        return True

    def get(self, path: str, *, method: str = "GET", login: str = "", **headers: str) -> tuple[int, str]:
        """(status, body); raises HTTPError for 4xx and 5xx."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", method=method, headers=headers
        )
        if login:
            request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, response.read().decode("utf-8", "replace")

    def status(self, path: str, **options: str) -> int:
        """The status alone."""
        try:
            return self.get(path, **options)[0]
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def json(self, path: str) -> Any:
        """A data page."""
        return msgspec.json.decode(self.get(path)[1])

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        _, self.log = self.process.communicate(timeout=20)
        return self.process.returncode


@pytest.fixture
def dashboard(redis_url: str) -> Iterator[Dashboard]:
    """A dashboard on loopback without a password."""
    running_dashboard = Dashboard(redis_url)
    yield running_dashboard
    assert running_dashboard.stop() == 0
    # No line for every request: open pages ask every few seconds.
    assert '"GET ' not in running_dashboard.log


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def test_it_shows_queues_jobs_and_workers_by_readable_names(
    dashboard: Dashboard, redis_client: redis.Redis
) -> None:
    gate, jobs = Gate(), [work(number) for number in range(3)]
    enqueue(redis_client, jobs, SETTINGS)
    with running(make_worker(redis_client, gate, slots=1)):
        gate.wait_entered()
        [queue] = dashboard.json("/0/data/queues.json")["queues"]
        assert (queue["name"], queue["count"], queue["started_job_registry_count"]) == (QUEUE, 2, 1)
        [started] = dashboard.json(f"/0/data/jobs/{QUEUE}/started/8/asc/1.json")["jobs"]
        assert (started["id"], started["description"]) == (jobs[0].job_id, "work 0")
        wait_until(lambda: dashboard.json("/0/data/workers.json")["workers"][0]["state"] == "busy")
        [worker] = dashboard.json("/0/data/workers.json")["workers"]
        assert worker["name"].startswith("tester-")
        assert worker["queues"] == [QUEUE]
        assert worker["current_job"]["description"] == "work 0"
        gate.open()
        wait_until(lambda: queue_counts(redis_client, QUEUE).finished == 3)
    detail = dashboard.json(f"/0/data/job/{jobs[0].job_id}.json")
    assert (detail["status"], detail["result"]) == ("finished", {"text": "through the gate"})
    for page in ("/", "/0/view/workers", "/0/view/jobs", f"/0/view/job/{jobs[0].job_id}"):
        assert dashboard.get(page)[0] == 200
    for asset in set(re.findall(r'(?:src|href)="(/static/[^"]+\.(?:js|css))"', dashboard.get("/")[1])):
        assert dashboard.get(asset)[0] == 200


def test_texts_of_jobs_and_queues_are_no_html(dashboard: Dashboard, redis_client: redis.Redis) -> None:
    """Its scripts put what they get into the page as it is."""
    request = msgspec.structs.replace(work(1), description="<img src=x onerror=run()>")
    enqueue(redis_client, [request], SETTINGS)
    redis_client.sadd("rq:queues", "rq:queue:<b>q</b>")
    for path in (f"/0/data/job/{request.job_id}.json", f"/0/data/jobs/{QUEUE}/queued/8/asc/1.json"):
        data = dashboard.get(path)[1]
        assert "&lt;img src=x onerror=run()&gt;" in data
        assert "<img" not in data
    assert "&lt;b&gt;q&lt;/b&gt;" in dashboard.get("/0/data/queues.json")[1]


def test_nothing_is_ever_unpickled(dashboard: Dashboard, redis_client: redis.Redis, tmp_path: Path) -> None:
    mark = tmp_path / "unpickled"
    bomb = pickle.dumps(Bomb(mark))
    result = base64.b64encode(bomb)
    for job_id, fields in {
        "in-data": {"data": bomb},
        "in-meta": {"data": b'["f", null, [], {}]', "meta": bomb, "result": bomb},
    }.items():
        hostile: dict[Any, Any] = {
            "status": "queued",
            "origin": QUEUE,
            "created_at": "2026-01-01T00:00:00.000000Z",
            **fields,
        }
        redis_client.hset(rq_keys.job_key(job_id), mapping=hostile)
        redis_client.rpush(rq_keys.queue_key(QUEUE), job_id)
        redis_client.xadd(rq_keys.results_key(job_id), {"type": 1, "return_value": result})
    redis_client.sadd(rq_keys.QUEUES, rq_keys.queue_key(QUEUE))
    for page in (
        "/",
        "/0/view/workers",
        f"/0/view/jobs/{QUEUE}/queued/8/asc/1",
        f"/0/data/jobs/{QUEUE}/queued/8/asc/1.json",
        "/0/view/job/in-data",
        "/0/data/job/in-data.json",
        "/0/view/job/in-meta",
        "/0/data/job/in-meta.json",
    ):
        assert dashboard.status(page) in (200, 503), page
    dashboard.status("/job/in-meta/requeue", method="POST")
    assert not mark.exists()
    assert redis_client.hget(rq_keys.job_key("in-meta"), "meta") == bomb


def test_requeueing_needs_a_post_from_its_own_pages_and_nothing_can_be_deleted(
    dashboard: Dashboard, redis_client: redis.Redis
) -> None:
    jobs = [work(number, function="os.system") for number in range(3)]
    enqueue(redis_client, jobs, SETTINGS)
    with running(make_worker(redis_client, Gate())):
        wait_until(lambda: len(failed_jobs(redis_client, QUEUE)) == 3)
    assert dashboard.status(f"/requeue/{QUEUE}") == 405
    assert dashboard.status(f"/requeue/{QUEUE}", method="POST", Origin="http://evil.example") == 403
    for path in (f"/job/{jobs[0].job_id}/delete", f"/queue/{QUEUE}/failed/empty", f"/queue/{QUEUE}/compact"):
        assert dashboard.status(path, method="POST") == 403
    assert [state(redis_client, job) for job in jobs] == ["failed"] * 3
    assert "Empty queue" not in dashboard.get(f"/0/view/jobs/{QUEUE}/failed/8/asc/1")[1]

    own = f"http://127.0.0.1:{dashboard.port}"
    assert dashboard.status(f"/job/{jobs[0].job_id}/requeue", method="POST", Origin=own) == 200
    assert [state(redis_client, job) for job in jobs] == ["queued", "failed", "failed"]
    assert dashboard.status(f"/requeue/{QUEUE}", method="POST") == 200
    assert [state(redis_client, job) for job in jobs] == ["queued"] * 3
    assert redis_client.hget(rq_keys.job_key(jobs[0].job_id), "meta") is None


def test_with_a_password_every_page_asks_for_it(redis_url: str) -> None:
    options = ("--dashboard-host", "0.0.0.0", "--dashboard-password", PASSWORD)
    dashboard = Dashboard(redis_url, *options)
    for login in ("", "hiddenfeed:wrong", f"someone:{PASSWORD}", "hiddenfeed:", "häßlich:ÿ"):
        for page in ("/", "/0/data/queues.json", "/static/css/main.css"):
            assert dashboard.status(page, login=login) == 401, (login, page)
    assert dashboard.get("/", login=f"hiddenfeed:{PASSWORD}")[0] == 200
    assert dashboard.stop() == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--dashboard-host", "0.0.0.0"], "can be reached from other machines; give --dashboard-password"),
        (["--dashboard-host", "::"], "can be reached from other machines; give --dashboard-password"),
        (["--redis-url", "redis://127.0.0.1:1/0"], "Redis at 127.0.0.1:1 is not there: connection refused"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(redis_url: str, options: list[str], reason: str) -> None:
    refused = Dashboard(redis_url, *options)
    _, errors = refused.process.communicate(timeout=20)
    assert refused.process.returncode != 0
    [line] = errors.splitlines()
    assert line.startswith("error: ")
    assert reason in line


def test_a_port_that_is_taken_is_one_sentence(dashboard: Dashboard, redis_url: str) -> None:
    second = subprocess.run(
        [
            sys.executable,
            "-m",
            "monitor.rq_dashboard",
            "--redis-url",
            redis_url,
            "--dashboard-port",
            str(dashboard.port),
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 2
    assert second.stderr.splitlines()[-1].startswith(
        f"error: --dashboard-port: cannot listen on 127.0.0.1:{dashboard.port}"
    )
