"""The page's server: what it serves, what it allows a browser, and whom it lets change things."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import redis
from starlette.testclient import TestClient

from common.check_words import STATES_TITLE
from common.history import rates_of
from common.queues import FailedJob, QueueCounts
from hiddenfeed.errors import ConfigError, TransientError
from monitor import web
from monitor.bootstrap import check_token
from monitor.control import Control
from monitor.facts import QueueFacts
from monitor.snapshot import take_snapshot
from monitor.trim import trimmed
from monitor.views import Snapshot
from monitor.web import Current, kept_seconds, make_app
from tests.monitor_scene import NOW, QUEUE, RUN, device, points, scene, worker

TOKEN = "correct-horse"
PAGE = Path(web.__file__).parent / "page"


def _snapshot() -> Snapshot:
    return take_snapshot(scene(), NOW)


def _client(**more: object) -> TestClient:
    return TestClient(make_app(Current(_snapshot), 1.0, **more))  # type: ignore[arg-type]


class _Markup(HTMLParser):
    """Collects what a strict policy would refuse, and ids."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []
        self.ids: list[str] = []
        self.labelled: set[str] = set()
        self.fields: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.refused += [f"{tag} {name}" for name in given if name == "style" or name.startswith("on")]
        if (tag == "script" and "src" not in given) or tag == "style":
            self.refused.append(tag)
        self.ids += [given["id"] or ""] if "id" in given else []
        if tag == "label":
            self.labelled.add(given.get("for") or "")
        if tag in ("input", "select"):
            self.fields.append(given.get("id") or "")


def test_page_is_readable_without_its_script_and_keeps_its_own_policy() -> None:
    reply = _client().get("/")
    assert RUN in reply.text
    assert "Is every GPU busy?" in reply.text
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    markup = _Markup()
    markup.feed(reply.text)
    assert markup.refused == []
    assert len(markup.ids) == len(set(markup.ids))
    assert set(markup.fields) <= markup.labelled


def test_an_event_is_bounded_however_large_the_fleet_is() -> None:
    fleet = [worker(f"gpu_worker-node{number // 8}-{number}-0000") for number in range(1000)]
    fleet[777] = worker("gpu_worker-node97-777-0000", last_heartbeat=NOW - 60)
    uploads = tuple(QueueFacts(name=f"upload-node{number}", counts=QueueCounts()) for number in range(125))
    whole = take_snapshot(scene(workers=tuple(fleet), uploads=uploads), NOW)
    cut = trimmed(whole)
    assert len(msgspec.json.encode(cut)) < 60_000
    (run,) = cut.runs
    assert (run.workers[0].worker, run.workers[0].state) == ("gpu_worker-node97-777-0000", "silent")
    assert cut.processes[0].name == run.workers[0].worker
    assert len(run.workers) + run.more_workers == 1002
    assert len(cut.processes) + cut.more_processes == 1000
    assert len(cut.uploads) + cut.more_uploads == 125
    # The overview still shows every one of them.
    assert sum(len(host.states) for host in run.hosts) == 1002
    assert [host.host for host in run.hosts if "s" in host.states] == ["node97"]
    assert trimmed(_snapshot()) == _snapshot()


def test_an_error_of_megabytes_is_cut() -> None:
    (run,), reason = scene().runs, "broken: " + "x" * 5_000_000
    failed = tuple(FailedJob(f"{QUEUE}-{number:06d}", reason, reason) for number in range(20))
    counts = QueueCounts(failed=20, scheduled=20)
    extract = QueueFacts(name=QUEUE, counts=counts, failed=failed, retrying=failed[:3])
    uploads = QueueFacts(name="upload-default", counts=counts, failed=failed[:1], retrying=failed[:1])
    stuck = worker("gpu_worker-h-1", running=0, waiting=reason)
    whole = take_snapshot(
        scene(runs=(msgspec.structs.replace(run, extract=extract),), uploads=(uploads,), workers=(stuck,)),
        NOW,
    )
    (error,) = {each.error for each in (*whole.runs[0].failures, *whole.runs[0].retries)}
    assert (len(error), error[:8], error[-2:]) == (2001, "broken: ", "x…")
    assert len(msgspec.json.encode(whole)) < 200_000
    assert len(msgspec.json.encode(trimmed(whole))) < 60_000


def test_workers_that_have_been_gone_for_long_hide_nobody() -> None:
    (run,) = scene().runs
    long_gone = tuple(
        msgspec.structs.replace(device(f"gpu_worker-a-{number}"), last_at=NOW - 5000) for number in range(60)
    )
    progress = msgspec.structs.replace(run.progress, workers=(*long_gone, *run.progress.workers))
    whole = take_snapshot(scene(runs=(msgspec.structs.replace(run, progress=progress),)), NOW)
    assert {worker.worker for worker in trimmed(whole).runs[0].workers[:2]} == {
        "gpu_worker-h-1",
        "gpu_worker-h-2",
    }


def test_script_asks_for_ids_that_the_page_has_and_never_sets_markup() -> None:
    script = "".join(path.read_text() for path in sorted(PAGE.glob("*.js")))
    asked = set(re.findall(r'byId\("([^"]+)"\)', script)) | set(
        re.findall(r'\b(?:part|table)\("([^"]+)"', script)
    )
    markup = _Markup()
    markup.feed((PAGE / "index.html").read_text())
    assert asked <= set(markup.ids)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|https?://(?!www\.w3\.org)", script
    )


def test_page_says_as_the_terminal_does_what_norms_leave_out() -> None:
    title = STATES_TITLE[0].upper() + STATES_TITLE[1:]
    assert f'"{title}"' in (PAGE / "page.js").read_text()
    assert STATES_TITLE in _client().get("/").text


def test_assets_are_served_with_the_policy_and_nothing_else_is() -> None:
    client = _client()
    for name, kind in (("page.js", "javascript"), ("chart.js", "javascript"), ("page.css", "css")):
        reply = client.get(f"/assets/{name}")
        assert kind in reply.headers["content-type"]
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert client.get("/assets/../web.py").status_code == 404
    assert client.get("/assets/%2e%2e/web.py").status_code == 404


def test_history_is_what_happened_between_points() -> None:
    asked = []

    def history(run_id: str) -> object:
        asked.append(run_id)
        return rates_of(points())

    rows = _client(history=history).get(f"/history.json?run={RUN}").json()
    assert asked == [RUN]
    assert len(rows) == 12
    assert rows[0]["upload_bytes_per_second"] == 10**8

    def away(run_id: str) -> object:
        raise TransientError("Redis is not there")

    reply = _client(history=away).get("/history.json?run=x")
    assert (reply.status_code, reply.json()["message"]) == (503, "Redis is not there")


@pytest.mark.parametrize("run", ["", "../x", "a b", "x" * 101])
def test_history_of_what_is_no_run_is_a_wrong_question(run: str) -> None:
    reply = _client(history=lambda _: []).get("/history.json", params={"run": run})
    assert reply.status_code == 400
    assert "is not allowed" in reply.json()["message"]


def test_one_page_too_many_is_told_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a burst, all of which is let in before the first one is counted."""
    monkeypatch.setattr(web, "_MOST_PAGES", 0)
    refused = _client().get("/events")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "10")
    pages = web._Pages(Current(_snapshot), 1.0)

    async def burst() -> list[bytes]:
        return [part async for part in pages._events()]

    assert anyio.run(burst) == [b"retry: 10000\n\n"]


def test_a_client_that_goes_away_in_mid_change_leaves_no_traceback() -> None:
    """A real server would log what the application raises."""
    app = make_app(Current(_snapshot), 1.0, control=Control(None, TOKEN))  # type: ignore[arg-type]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/control", "headers": [], "query_string": b""}
    anyio.run(app, scope, receive, send)
    assert sent[0]["status"] == 400


@pytest.mark.parametrize("token", ["corréct-horse", "correct horse", "correct\nhorse"])
def test_a_token_that_no_browser_can_send_is_refused_at_the_start(token: str) -> None:
    with pytest.raises(ConfigError, match="--monitor-token may hold letters without accents"):
        check_token(token)
    check_token(TOKEN)


def test_nothing_can_be_changed_without_a_token() -> None:
    class NoRedis:
        """Fails whoever touches it."""

    control = Control(NoRedis(), None)  # type: ignore[arg-type]
    client = _client(control=control)
    assert client.get("/controls.json").json()["enabled"] is False
    assert client.post("/control", json={"action": "pause", "run": RUN}).status_code == 403
    guarded = _client(control=Control(NoRedis(), TOKEN))  # type: ignore[arg-type]
    change = {"action": "pause", "run": RUN}
    for header in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": TOKEN},
        {"Authorization": "Bearer "},
    ):
        assert guarded.post("/control", json=change, headers=header).status_code == 401
    authorised = {"Authorization": f"Bearer {TOKEN}"}
    assert guarded.post("/control", content=b"x" * 5000, headers=authorised).status_code == 413
    for body in (b"", b"[]", b'{"action": "forget"}', b'{"action": "pause", "more": 1}'):
        assert guarded.post("/control", content=body, headers=authorised).status_code == 400
    assert guarded.get("/control").status_code == 405


def test_a_large_fleet_is_looked_at_less_often() -> None:
    assert kept_seconds(_snapshot()) == 0.5
    many = take_snapshot(scene(workers=tuple(worker(f"gpu_worker-{number}") for number in range(1000))), NOW)
    assert kept_seconds(many) == pytest.approx(2.0)


def test_many_who_ask_cost_one_look() -> None:
    looks = []

    def read() -> Snapshot:
        looks.append(1)
        return _snapshot()

    client = TestClient(make_app(Current(read), 1.0))
    replies = [client.get("/snapshot.json") for _ in range(5)]
    assert len(looks) == 1
    assert msgspec.json.decode(replies[-1].content, type=Snapshot).runs[0].run_id == RUN


def test_redis_refusing_is_a_sentence(redis_client: redis.Redis) -> None:
    control = Control(redis_client, TOKEN)
    answered = control.apply(f"Bearer {TOKEN}", b'{"action":"pause","run":"nobody"}')
    assert answered.status == 400
    assert "there is no run 'nobody'" in answered.message
