"""Which run a GPU worker serves next: a decision from facts."""

from __future__ import annotations

from common.run_state import RunRecord, RunStateName
from gpu_worker.runs import Candidate, choose_run


def _run(
    run_id: str, queued: int = 1, *, model: str = "m", state: RunStateName = "active", priority: int = 0
) -> Candidate:
    record = RunRecord(
        run_id=run_id,
        state=state,
        model=model,
        samples=1,
        tokens=1,
        batches=1,
        submitted_at=0.0,
        priority=priority,
    )
    return Candidate(record, queued)


def test_nothing_to_do() -> None:
    assert choose_run([], current=None, loaded_model=None) is None
    assert choose_run([_run("a", 0)], current=None, loaded_model=None) is None
    assert choose_run([], current="gone", loaded_model="m") is None


def test_oldest_with_work_first() -> None:
    assert choose_run([_run("a", 0), _run("b"), _run("c")], current=None, loaded_model=None) == "b"


def test_loaded_model_before_older_runs() -> None:
    runs = [_run("a", model="x"), _run("b", model="y"), _run("c", model="y")]
    assert choose_run(runs, current="done", loaded_model="y") == "b"


def test_current_run_until_it_has_no_work() -> None:
    assert choose_run([_run("a"), _run("b")], current="b", loaded_model="m") == "b"
    assert choose_run([_run("a"), _run("b", 0)], current="b", loaded_model="m") == "a"


def test_stays_with_the_current_run_while_nobody_has_work() -> None:
    assert choose_run([_run("a", 0), _run("b", 0)], current="b", loaded_model="m") == "b"


def test_paused_and_cancelled_runs_are_left() -> None:
    runs = [_run("a", state="paused"), _run("b", state="cancelled"), _run("c", state="complete")]
    assert choose_run(runs, current="a", loaded_model="m") is None
    assert choose_run([*runs, _run("d")], current="a", loaded_model="m") == "d"


def test_higher_priority_interrupts() -> None:
    runs = [_run("urgent", model="x", priority=5), _run("a", priority=1), _run("b")]
    assert choose_run(runs, current="b", loaded_model="m") == "urgent"
    assert choose_run([_run("urgent", 0, priority=5), *runs[1:]], current="b", loaded_model="m") == "a"


def test_pinned_run_alone() -> None:
    runs = [_run("a"), _run("b")]
    assert choose_run(runs, current=None, loaded_model=None, pinned="b") == "b"
    assert choose_run(runs, current=None, loaded_model=None, pinned="c") is None
    assert choose_run([_run("a"), _run("b", 0)], current=None, loaded_model=None, pinned="b") is None
