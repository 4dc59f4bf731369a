"""What was checked, in sentences: of a healthy run, of one in which something failed, and of one that has just begun."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from common.check_words import findings
from common.checks import Check, Checks
from monitor.plain import render_plain
from monitor.snapshot import take_snapshot
from monitor.terminal import render
from tests.monitor_scene import CHECKED, NOW, scene


def test_what_went_wrong_comes_first_and_the_worst_of_the_rest_with_its_batch() -> None:
    found = [(finding.verdict, finding.text) for finding in findings(CHECKED, 2)]
    assert found == [
        ("bad", "3 samples set aside: values that are not finite"),
        ("warn", "2 forward passes ran out of memory and went on in halves; nothing was lost"),
        (
            "good",
            "every number of 99 batches was checked before it was stored: finite, not zero, of the planned tokens; "
            "0.12% of a tap's values were zero at most",
        ),
        (
            "good",
            "a sample of each of 98 batches was computed again alone and gave the same: cosine 0.99912 at least "
            "(batch 42), relative error 0.012 at most (batch 17)",
        ),
        (
            "good",
            "before its first batch every model was held against the whole one, sample by sample: cosine 0.99987 at "
            "least, relative error 0.0045 at most",
        ),
    ]


def test_nothing_checked_yet() -> None:
    assert [(each.verdict, each.text) for each in findings(Checks(), 0)] == [
        ("unknown", "no batch has been checked yet")
    ]


@pytest.mark.parametrize("check", get_args(Check))
def test_every_check_has_words(check: str) -> None:
    (finding,) = findings(Checks(failed={check: 1}), 0)
    assert finding.verdict == "bad"
    assert finding.text.startswith("1 sample set aside: ")


def test_every_face_shows_them() -> None:
    snapshot = take_snapshot(scene(), NOW)
    (run,) = snapshot.runs
    assert (run.checks, run.findings) == (CHECKED, findings(CHECKED, 0))
    for shown in (render(snapshot), render_plain(snapshot).replace("&#x27;", "'")):
        for finding in run.findings:
            assert finding.text in shown
        assert "1234 in batch 9" in shown
    decoded = msgspec.json.decode(msgspec.json.encode(snapshot))
    assert decoded["runs"][0]["checks"]["canary_cosine"] == {"value": 0.99912, "batch": 42}
