"""The live view: all five answers, cut to the window, with nothing from Redis taken for markup."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from common.queues import FailedJob, QueueCounts
from monitor.facts import QueueFacts
from monitor.live import view
from monitor.snapshot import take_snapshot
from monitor.terminal import render
from monitor.views import Snapshot
from tests.monitor_scene import NOW, QUEUE, scene, worker


def _shown(snapshot: Snapshot, width: int = 160, height: int = 50) -> str:
    console = Console(
        file=io.StringIO(), width=width, height=height, force_terminal=True, color_system="standard"
    )
    with console.capture() as capture:
        console.print(view(snapshot, console))
    return capture.get()


def _plain(text: str) -> str:
    return "".join(
        part.partition("m")[2] if index else part for index, part in enumerate(text.split("\x1b["))
    )


def test_answers_and_workers_are_shown() -> None:
    text = _plain(_shown(take_snapshot(scene(), NOW)))
    for question in (
        "Is every GPU busy?",
        "Is upload keeping up?",
        "When will it be done?",
        "What went wrong?",
        "Is the disk filling?",
    ):
        assert question in text
    assert "50.0%" in text
    assert "extract batch 7" in text
    (lane,) = [line for line in text.splitlines() if line.startswith("h-1")]
    assert "busy" in lane
    assert "████████" in lane
    assert " 101 " in lane
    assert "✕ 3 samples set aside: values that are not finite" in text
    assert "checked: 99 batches, recomputed samples agree by 0.99912 or more" in text


def test_lines_for_a_script_say_what_norms_leave_out_and_how_sure_the_time_left_is() -> None:
    lines = render(take_snapshot(scene(), NOW)).splitlines()
    head = lines.index(
        "  norms of tokens, without the first of each sample, and zeros: the most extreme so far"
    )
    assert lines[head + 1].split("  ")[1] == "state"
    assert "61.5 in batch 3" in lines[head + 3]
    (pace,) = [line for line in lines if line.startswith("  ") and " left (" in line]
    assert re.search(r"about 1 min 4\d s left \(1 min \d\d s to 1 min \d\d s\)", pace)


def test_a_silent_worker_is_red() -> None:
    facts = scene(workers=(worker("gpu_worker-h-1", last_heartbeat=NOW - 50), worker("gpu_worker-h-2")))
    assert "\x1b[1;31msilent" in _shown(take_snapshot(facts, NOW))


def test_a_large_fleet_fits_the_window_and_shows_first_what_needs_a_look() -> None:
    many = [worker(f"gpu_worker-{number:03}") for number in range(300)]
    many[250] = worker("gpu_worker-250", last_heartbeat=NOW - 50)
    text = _plain(_shown(take_snapshot(scene(workers=tuple(many)), NOW), height=40))
    assert len(text.splitlines()) <= 40
    (silent,) = [line for line in text.splitlines() if line.startswith("250 ")]
    assert "silent" in silent
    assert "more" in text


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("height", [24, 60])
def test_a_window_of_any_size_shows_what_matters_and_cuts_no_number(width: int, height: int) -> None:
    many = tuple(worker(f"gpu_worker-node{number}-4711-3fa9") for number in range(20))
    facts = scene(
        workers=(*many, *scene().workers), hands={"gpu_worker-h-1": (f"{QUEUE}-000101", f"{QUEUE}-000102")}
    )
    lines = _plain(_shown(take_snapshot(facts, NOW), width, height)).splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    head = next(line for line in lines if line.startswith("worker "))
    assert {"worker", "state", "tokens/s", "busy", "time", "batch", "last"} <= set(head.split())
    (lane,) = [line for line in lines if line.startswith("h-1 ")] if height == 60 else [""]
    assert "…" not in lane
    assert height == 24 or "101-102" in lane


@pytest.mark.parametrize(("width", "height"), [(40, 10), (20, 5), (200, 8), (30, 60)])
def test_a_tiny_window_answers_the_questions_at_a_glance(width: int, height: int) -> None:
    lines = _plain(_shown(take_snapshot(scene(), NOW), width, height)).splitlines()
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("✓ GPUs   2 of 2 bu")
    assert lines[3].startswith("✕ wrong  1 problem")
    if height > 5:
        assert lines[5].startswith("50.0% running demo-01234")


def test_texts_from_redis_are_no_markup_and_no_commands() -> None:
    evil = "[red]x[/red]\x1b]0;owned\x07"
    failed = (FailedJob(evil, evil, evil),)
    upload = QueueFacts(name=f"upload-{evil}", counts=QueueCounts(failed=1), failed=failed)
    facts = scene(
        uploads=(upload,),
        workers=(worker(evil, waiting=evil, running=0, queue=QUEUE),),
        store=evil,
        redis_error=evil,
    )
    text = _shown(take_snapshot(facts, NOW))
    assert "\x1b]0" not in text
    assert "[red]x[/red]" in text
