"""The table of jobs in hand: who may end one."""

from __future__ import annotations

import threading

from common.worker.context import JobContext
from common.worker.lease import Claim
from common.worker.slots import Slot, SlotState, SlotTable


def make_slot(name: str = "e", deadline: float | None = None) -> Slot:
    """A slot of a job that is not anywhere."""
    return Slot(
        Claim("q", f"job-{name}", name, {}), JobContext(job_id=f"job-{name}", worker_name="w"), deadline
    )


def test_a_job_is_ended_by_its_thread_or_given_away_never_both() -> None:
    table, first, second = SlotTable(), make_slot("a"), make_slot("b")
    table.add(first)
    table.add(second)
    assert table.begin_settling(first)
    assert not table.drop(first)
    assert table.drop(second)
    assert not table.begin_settling(second)
    assert (first.state, second.state) == (SlotState.SETTLING, SlotState.DROPPED)


def test_room_is_made_when_a_job_ends() -> None:
    table, slot = SlotTable(), make_slot()
    assert table.wait_for_room(lambda: 1, timeout=0)
    table.add(slot)
    assert not table.wait_for_room(lambda: 1, timeout=0)
    assert table.wait_for_room(lambda: 2, timeout=0)
    thread = threading.Thread(target=table.remove, args=(slot,))
    thread.start()
    assert table.wait_for_room(lambda: 1, timeout=20)
    thread.join()


def test_a_deadline_is_news_once_and_not_for_a_job_that_is_ending() -> None:
    table, late, ending, endless = SlotTable(), make_slot("a", 10.0), make_slot("b", 10.0), make_slot("c")
    for slot in (late, ending, endless):
        table.add(slot)
    table.begin_settling(ending)
    assert table.mark_hung(10.0) == []
    assert table.mark_hung(10.1) == [late]
    assert table.mark_hung(11.0) == []


def test_a_lost_lease_is_news_once_and_the_handler_can_see_it() -> None:
    table, slot = SlotTable(), make_slot("a")
    table.add(slot)
    assert table.mark_lost({"b"}) == []
    assert table.mark_lost({"a", "b"}) == [slot]
    assert table.mark_lost({"a"}) == []
    assert slot.context.lost.is_set()


def test_a_counter_that_is_not_a_number_counts_as_none() -> None:
    claim = Claim("q", "j", "e", {b"hf_failures": b"2", b"hf_starts": b"many", b"hf_transients": b"-1"})
    assert [
        claim.counter(name) for name in ("hf_failures", "hf_starts", "hf_transients", "hf_takeovers")
    ] == [2, 0, 0, 0]
