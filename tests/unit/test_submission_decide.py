"""What is done about a batch that is not in the store, over all states of its two jobs."""

from __future__ import annotations

import itertools

import pytest

from common.queues import LOST
from producer.decide import MAX_LOST, UPLOAD_PATIENCE_SECONDS, Missing, Verdict, decide, judge

STATES = (
    None,
    LOST,
    "queued",
    "started",
    "scheduled",
    "deferred",
    "finished",
    "failed",
    "canceled",
    "stopped",
)
GOING = ("queued", "started", "scheduled", "deferred")


@pytest.mark.parametrize(("extract", "upload"), list(itertools.product(STATES, STATES)))
def test_every_pair_of_states_has_one_verdict(extract: str | None, upload: str | None) -> None:
    verdict = judge(Missing(1, extract, upload))
    if extract in GOING or upload in GOING or (extract, upload) == ("finished", LOST):
        assert verdict is Verdict.WAIT
    elif extract == "failed" or upload == "failed":
        assert verdict is Verdict.FAILED
    else:
        assert verdict is Verdict.ENQUEUE


@pytest.mark.parametrize(
    ("extract", "upload", "verdict", "story"),
    [
        (None, None, Verdict.ENQUEUE, "Redis was wiped, or never heard of it"),
        ("finished", None, Verdict.ENQUEUE, "extracted, and its upload was lost with Redis"),
        ("finished", "finished", Verdict.ENQUEUE, "uploaded, and then somebody deleted the object"),
        ("finished", "started", Verdict.WAIT, "on its way to the store"),
        ("queued", "finished", Verdict.WAIT, "the uploader found its file gone and sent it back"),
        ("queued", "failed", Verdict.WAIT, "extracted again after its upload failed"),
        ("failed", None, Verdict.FAILED, "cannot be extracted"),
        ("finished", "failed", Verdict.FAILED, "cannot be uploaded"),
        (LOST, None, Verdict.ENQUEUE, "its queue's list was lost, and nobody will come for it"),
        (LOST, "queued", Verdict.WAIT, "on its way to the store, whatever became of a second extraction"),
        ("canceled", None, Verdict.ENQUEUE, "taken off by a cancel, and taken up again"),
    ],
)
def test_stories(extract: str | None, upload: str | None, verdict: Verdict, story: str) -> None:
    assert judge(Missing(1, extract, upload)) is verdict, story


def test_a_lost_upload_is_waited_for_as_long_as_its_uploaders_may_find_the_file() -> None:
    assert judge(Missing(1, "finished", LOST, UPLOAD_PATIENCE_SECONDS - 1)) is Verdict.WAIT
    late = Missing(1, "finished", LOST, UPLOAD_PATIENCE_SECONDS)
    assert judge(late) is Verdict.ENQUEUE
    assert late.lost


def test_a_decision_keeps_the_order_of_batches() -> None:
    missing = [
        Missing(batch, state, None) for batch, state in enumerate([None, "queued", "failed", None, "started"])
    ]
    decision = decide(missing, {})
    assert [
        [batch.batch_id for batch in part] for part in (decision.enqueue, decision.wait, decision.failed)
    ] == [
        [0, 3],
        [1, 4],
        [2],
    ]


def test_a_batch_that_gets_lost_again_and_again_has_failed() -> None:
    lost, wiped = Missing(1, "finished", None), Missing(1, None, None)
    assert lost.lost
    assert not wiped.lost
    assert not Missing(1, "finished", "queued").lost
    assert decide([lost], {1: MAX_LOST - 1}).enqueue == (lost,)
    assert decide([lost], {1: MAX_LOST}).failed == (lost,)
    # What Redis forgot says nothing against the batch.
    assert decide([wiped], {1: MAX_LOST}).enqueue == (wiped,)
