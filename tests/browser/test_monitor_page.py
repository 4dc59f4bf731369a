"""The live page in a browser: a run that goes on, a worker that is killed, a full spool, a finished run, and access."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import Any

import pytest
import redis

from common.history import Point, write_point
from common.messages import BatchReport, ExtractBatch, UploadFile, UploadReceipt
from common.queues import JobRequest, enqueue, extract_job_id, extract_queue_name
from common.rq_keys import WORKERS, failed_key, job_key, worker_key
from common.run_state import RunRecord, note_stored, register_run, set_run_state
from common.settings.catalogue import QueueSettings
from common.worker.presence import Presence
from hiddenfeed.layout import batch_key, complete_key, tokens_key
from hiddenfeed.store import open_store
from producer.end_report_page import render_report
from standalone.process import wait_until
from tests.end_reports import example_report
from tests.worker_rig import FUNCTION, SETTINGS, Work

RUN = "shown-0123456789ab"
BATCHES = 40
LEASE_SECONDS = SETTINGS.lease_seconds
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
#: The part of a sheet that is printed on, in CSS pixels.
A4 = {"width": 688, "height": 1017}
TOKEN = "correct-horse"
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def shown_run(redis_client: redis.Redis) -> redis.Redis:
    """A run of forty batches, two of them stored."""
    register_run(
        redis_client,
        RunRecord(
            run_id=RUN, model="Qwen/Qwen3-8B", samples=10 * BATCHES, tokens=1000 * BATCHES, batches=BATCHES,
            squares=10**6 * BATCHES, submitted_at=time() - 60,
        ),
    )  # fmt: skip
    for batch_id, ago in ((0, 20.0), (1, 10.0)):
        _store_batch(redis_client, batch_id, time() - ago)
    return redis_client


def _store_batch(client: redis.Redis, batch_id: int, at: float, worker: str = "gpu_worker-h-1") -> None:
    """Count a batch as stored, as an uploader does."""
    batch = ExtractBatch(
        run_id=RUN, batch_id=batch_id, tokens=tokens_key(RUN), row_group=batch_id, samples=10, tokens_total=1000,
        longest=200, squares=10**6,
    )  # fmt: skip
    report = BatchReport(
        worker=worker, device="cuda:0", read_seconds=0.5, forward_seconds=8.0, stall_seconds=0.2, write_seconds=1.0,
        total_seconds=10.0, padded_tokens=1010,
        guards={"norm_min": "5.2,61", "norm_max": "97,1234", "zero_fraction": "0.001,0", "canary_cosine": "0.9991",
                "canary_error": "0.012"},
    )  # fmt: skip
    message = UploadFile(
        batch=batch, spool="default", path="p", key="k", size_bytes=500_000_000, checksum="c", report=report
    )
    receipt = UploadReceipt(
        run_id=RUN, batch_id=batch_id, key=batch_key(RUN, batch_id), outcome="stored", size_bytes=500_000_000,
        upload_seconds=2.5,
    )  # fmt: skip
    with client.pipeline() as pipe:
        note_stored(pipe, message, receipt, at, uploader="uploader-h-2")
        pipe.execute()


@contextmanager
def _process(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _served(redis_url: str, *more: str) -> Iterator[str]:
    """The address of a monitor's page."""
    words = [
        "-m",
        "monitor",
        "--serve",
        "--redis-url",
        redis_url,
        "--monitor-port",
        "0",
        "--refresh-seconds",
        "0.2",
    ]
    words += ["--lease-seconds", str(LEASE_SECONDS), "--heartbeat-seconds", "1", *more]
    with _process(*words) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.search(r"http://\S+/", line)
        assert match, line
        yield match[0]


@contextmanager
def _opened(browser: Any, url: str, size: dict[str, int] = DESK, scheme: str = "light") -> Iterator[Any]:
    """The live page; whatever the browser complains of, a broken policy too, fails the test."""
    context = browser.new_context(viewport=size, color_scheme=scheme)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        page.goto(url)
        page.wait_for_selector("#app:not([hidden])")
        yield page
    finally:
        context.close()
    assert complaints == []


def _keep(page: Any, name: str) -> None:
    """Pictures for people to look at, on a desk and a phone, in light and dark, where HFTESTS_SCREENSHOTS says."""
    if folder := os.environ.get("HFTESTS_SCREENSHOTS"):
        before = page.viewport_size
        for scheme, size in ((scheme, size) for scheme in ("light", "dark") for size in (DESK, PHONE)):
            page.set_viewport_size(size)
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=str(Path(folder) / f"{name}-{scheme}-{size['width']}.png"), full_page=True)
        page.set_viewport_size(before)
        page.emulate_media(color_scheme=None)


def _says(page: Any, selector: str, text: str, seconds: float = 10) -> None:
    """Wait until an element of the page holds the text."""
    page.wait_for_function(
        "([selector, text]) => document.querySelector(selector)?.textContent.includes(text)",
        arg=[selector, text],
        timeout=seconds * 1000,
    )


def test_numbers_change_and_a_killed_worker_turns_red_within_the_lease(
    browser: Any, shown_run: redis.Redis, redis_url: str
) -> None:
    queue = extract_queue_name(RUN)
    jobs = [
        JobRequest(
            queue=queue,
            function=FUNCTION,
            job_id=extract_job_id(RUN, batch),
            payload=Work("wait"),
            description="x",
        )
        for batch in (5, 6, 7)
    ]
    enqueue(shown_run, jobs, QueueSettings())
    worker = _process("-m", "tests.worker_process", redis_url, queue, "role=gpu_worker", "slots=2")
    with worker as process, _served(redis_url) as url, _opened(browser, url) as page:
        page.wait_for_selector('#lanes li[data-state="busy"]')
        _says(page, "#lanes", "batch 5-6")
        _says(page, "#run-share", "5.0%")
        _says(page, "#answers", "1 of 1 worker busy")
        for batch_id in range(2, 12):
            _store_batch(shown_run, batch_id, time(), "gpu_worker-h-1")
        _says(page, "#run-share", "30.0%")
        _says(page, "#run-numbers", "12,000")
        _says(page, "#findings li.good", "every number of 12 batches was checked before it was stored")
        _says(page, "#states tbody tr:last-child", "1234 in batch 0")
        _says(page, "#run-numbers", "about ")
        _keep(page, "running")

        process.send_signal(signal.SIGKILL)
        page.wait_for_selector('#lanes li[data-state="silent"]', timeout=(LEASE_SECONDS + 2) * 1000)
        red = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--bad').trim()")
        page.wait_for_function(
            "(red) => { const probe = document.body.appendChild(document.createElement('i')); probe.style.color = red; "
            "const chip = document.querySelector('#lanes li[data-state=\"silent\"] .chip'); "
            "const same = chip && getComputedStyle(chip).color === getComputedStyle(probe).color; "
            "probe.remove(); return same; }",
            arg=red,
        )
        _says(page, "#answers li.bad", "1 silent")
        _keep(page, "silent")


def test_a_full_spool_and_then_a_finished_run(
    browser: Any, shown_run: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    spool, store = tmp_path / "spool", open_store(str(tmp_path / "store"))
    store.check(create=True)
    (spool / RUN).mkdir(parents=True)
    (spool / RUN / "000002-abc.safetensors").write_bytes(bytes(1_020_000))
    more = ["--spool", "here", "--spool-dir", str(spool), "--spool-cap-bytes", "1MiB", "--store", store.url]
    with _served(redis_url, *more) as url, _opened(browser, url) as page:
        _says(page, "#answers li:nth-child(5).bad", "97% of 1.0 MiB used by 1 file")
        _keep(page, "full")
        (spool / RUN / "000002-abc.safetensors").unlink()
        for batch_id in range(2, BATCHES):
            _store_batch(shown_run, batch_id, time())
        _says(page, "#run-state", "proving")
        store.write(complete_key(RUN), b"{}")
        _says(page, "#run-state", "complete, proved")
        _says(page, "#run-share", "100.0%")
        _says(page, "#answers li:nth-child(5).good", "0% of 1.0 MiB")
        _keep(page, "complete")


def test_history_is_there_after_a_restart_and_can_be_read_by_keyboard(
    browser: Any, shown_run: redis.Redis, redis_url: str
) -> None:
    for number in range(30):
        at = time() - 10 * (30 - number)
        point = Point(
            at=round(at, 1), batches=number, tokens=1000 * number, bytes=500_000_000 * number, backlog=number % 7,
            queued=9, started=3, failed=0, workers=2, uploaders=1, spool_bytes=10**9 * (number % 9),
            spool_cap_bytes=50 * 10**9,
        )  # fmt: skip
        write_point(shown_run, RUN, "monitor-before", point)
    # Of the monitor that wrote them, nothing is left.
    shown_run.delete(f"hiddenfeed:history:{RUN}:turn")
    with _served(redis_url) as url, _opened(browser, url) as page:
        page.wait_for_selector("#chart-rates svg.chart path.c1")
        said = page.evaluate(
            "import('/assets/words.js').then((words) => [words.counted(1, 'batch', 'batches'), words.counted(2000, 'host'), "
            "words.percent(0.9996, 1), words.percent(0.29), words.moment(86400, 86400) === words.clock(86400), "
            "words.moment(2 * 86400, 86400).includes('Jan')])"
        )
        assert said == ["1 batch", "2,000 hosts", "99.9%", "29%", True, True]
        label = page.get_attribute("#chart-spool svg.chart", "aria-label")
        assert "highest 7.5 GiB" in label
        page.focus("#chart-backlog svg.chart")
        page.keyboard.press("End")
        page.keyboard.press("ArrowLeft")
        assert re.search(r"\d\d:\d\d:\d\d: files \d", page.inner_text("#chart-backlog .reading"))
        page.reload()
        page.wait_for_selector("#chart-rates svg.chart path.c1")


def test_failures_are_text_with_a_command_and_changes_need_the_token(
    browser: Any, shown_run: redis.Redis, redis_url: str
) -> None:
    job = extract_job_id(RUN, 3)
    shown_run.zadd(failed_key(extract_queue_name(RUN)), {job: time() + 1000})
    for field, value in {"description": f"extract batch 3 {EVIL}", "hf_error": EVIL}.items():
        shown_run.hset(job_key(job), field, value)
    with _served(redis_url, "--monitor-token", TOKEN) as url, _opened(browser, url) as page:
        _says(page, "#failed .why", EVIL)
        assert page.locator("img").count() == 0
        assert page.inner_text("#failed code") == f"python -m producer retry-failed {RUN}"
        page.click("#failed button")
        _says(page, "#failed button", "Copied")
        # The browser itself complains of a 401, rightly.
        page.fill("#token", TOKEN)
        page.click("#pause")
        _says(page, "#control-answer", f"{RUN} is paused.")
        _says(page, "#run-state", "paused")
        assert page.is_disabled("#pause")
        page.select_option("#setting", "upload_parallelism")
        page.fill("#value", "9")
        page.press("#value", "Enter")
        _says(page, "#control-answer", "upload_parallelism is 9")
        assert shown_run.hget("hiddenfeed:live", "upload_parallelism") == b"9"
        _keep(page, "failed")


def test_what_is_answered_is_about_the_run_that_is_shown(
    browser: Any, shown_run: redis.Redis, redis_url: str
) -> None:
    """The first run ends while the page is open: it follows the next one, unless somebody chose."""
    record = RunRecord(
        run_id="next-0",
        model="m",
        samples=10,
        tokens=1000,
        batches=1,
        squares=10**6,
        submitted_at=time() - 30,
    )
    with _served(redis_url) as url, _opened(browser, url) as page:
        _says(page, "#run-name", RUN)
        register_run(shown_run, record)
        _says(page, "#run", "next-0")
        _says(page, "#run-name", RUN)
        set_run_state(shown_run, RUN, "cancelled")
        _says(page, "#run-name", "next-0")
        assert "next-0" not in page.inner_text("#answers li:nth-child(3)")
        page.select_option("#run", RUN)
        _says(page, "#run-name", RUN)
        _says(page, "#answers li:nth-child(3)", f"{RUN} is cancelled")


def _sign_on(client: redis.Redis, name: str) -> None:
    """A GPU worker that has work in hand, as its heartbeat tells it."""
    presence = Presence(name, "gpu_worker")
    presence.serve(extract_queue_name(RUN), "", 3)
    client.hset(worker_key(name), items=[part for pair in presence.fields(3)[1].items() for part in pair])
    client.sadd(WORKERS, worker_key(name))


def test_page_is_accessible_and_fits_a_phone(browser: Any, shown_run: redis.Redis, redis_url: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    for number in range(60):
        _sign_on(shown_run, f"gpu_worker-node{number // 8}-{number}-abcd")
    with _served(redis_url, "--monitor-token", TOKEN, "--lease-seconds", "300") as url:
        for scheme, size in ((scheme, size) for scheme in ("light", "dark") for size in (DESK, PHONE)):
            with _opened(browser, url, size, scheme) as page:
                page.wait_for_selector("#controls:not([hidden])")
                _says(page, "#hosts li:last-child", "node7: 4 busy")
                assert page.locator("#lanes li[data-worker]").count() == 12
                found = axe.Axe().run(page)
                assert found.violations_count == 0, found.generate_report()
                assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
                if (scheme, size) == ("dark", PHONE):
                    _keep(page, "fleet")
                # The first stop of the keyboard leads past the navigation.
                page.keyboard.press("Tab")
                assert page.evaluate("document.activeElement.className") == "skip"
                page.click("#lanes-all")
                assert page.locator("#lanes li[data-worker]").count() == 48
                _says(page, "#lanes li:last-child", "and 13 more")


def test_end_report_is_accessible_and_fits_phone_and_paper_without_a_network(
    browser: Any, tmp_path: Path
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    (tmp_path / "report.html").write_text(render_report(example_report()))
    for scheme, size in ((scheme, size) for scheme in ("light", "dark") for size in (DESK, PHONE)):
        context = browser.new_context(viewport=size, color_scheme=scheme, offline=True)
        page = context.new_page()
        asked: list[str] = []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.goto((tmp_path / "report.html").as_uri())
        assert asked == [(tmp_path / "report.html").as_uri()]
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        context.close()
    # The last one was dark and narrow: on paper it is neither.
    context = browser.new_context(viewport=A4, color_scheme="dark")
    page = context.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    _keep(page, "report")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    cut = "[...document.querySelectorAll('table')].filter((table) => table.scrollWidth > table.parentElement.clientWidth)"
    assert page.evaluate(f"{cut}.length") == 0
    if folder := os.environ.get("HFTESTS_SCREENSHOTS"):
        page.pdf(path=str(Path(folder) / "report.pdf"), format="A4", print_background=False)
    context.close()


def test_a_monitor_that_ends_is_said_and_one_that_comes_back_is_followed(
    browser: Any, shown_run: redis.Redis, redis_url: str
) -> None:
    with _served(redis_url) as url:
        port = re.search(r":(\d+)/", url)
        assert port
        context = browser.new_context(viewport=DESK)
        page = context.new_page()
        page.goto(url)
        page.wait_for_selector("#app:not([hidden])")
    try:
        page.wait_for_selector("#link:not([hidden])")
        _says(page, "#link", "what is shown is old")
        with _served(redis_url, "--monitor-port", port[1]):
            assert wait_until(lambda: page.is_hidden("#link") or page.wait_for_timeout(100), 20)
    finally:
        context.close()
