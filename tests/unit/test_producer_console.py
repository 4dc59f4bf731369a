"""The live line, the log lines in its place, and what they say of pace."""

from __future__ import annotations

import io

import pytest

from common.eta import Estimate
from common.pace import Pace
from common.queues import QueueCounts
from common.run_state import Progress
from producer.console import LIVE_SECONDS, PLAIN_SECONDS, Console
from producer.pace import standing_line
from producer.submission import Standing


class Terminal(io.StringIO):
    """A stream that a person looks at."""

    def isatty(self) -> bool:
        return True

    def shown(self) -> str:
        """What the last line looks like now."""
        line = ""
        for part in self.getvalue().rpartition("\n")[2].split("\r"):
            line = part + line[len(part) :]
        return line.rstrip()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_terminal_has_one_live_line_that_is_renewed_and_cleared() -> None:
    terminal, clock = Terminal(), Clock()
    console = Console(terminal, clock)
    console.progress("{} of 10".format, 1)
    assert terminal.shown() == "1 of 10"
    console.progress("{} of 10".format, 2)
    assert terminal.shown() == "1 of 10"
    clock.now += LIVE_SECONDS
    console.progress(lambda: "3")
    assert terminal.shown() == "3"
    console.clear()
    assert terminal.shown() == ""
    assert "\n" not in terminal.getvalue()


def test_a_live_line_is_no_longer_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    terminal = Terminal()
    Console(terminal, Clock()).progress(lambda: "x" * 100)
    assert terminal.shown() == "x" * 29


def test_results_go_to_stdout_behind_the_cleared_line(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    console = Console(terminal, Clock())
    console.progress(lambda: "working")
    console.result("done")
    assert terminal.shown() == ""
    assert capsys.readouterr().out == "done\n"


def test_elsewhere_progress_is_a_log_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    stream, clock = io.StringIO(), Clock()
    console, asked = Console(stream, clock), []

    def text() -> str:
        asked.append(clock.now)
        return f"at {clock.now:.0f}"

    with caplog.at_level("INFO", logger="hiddenfeed"):
        for second in range(25):
            clock.now = float(second)
            console.progress(text)
    assert [record.getMessage() for record in caplog.records] == ["at 0", "at 10", "at 20"]
    # What is not shown is not even made.
    assert asked == [0.0, PLAIN_SECONDS, 2 * PLAIN_SECONDS]
    assert stream.getvalue() == ""


def standing(**changes: object) -> Standing:
    facts = {
        "state": "active",
        "counts": QueueCounts(queued=8, started=3),
        "progress": Progress(run_id="r", batches=12, tokens=3400, bytes=3 * 2**20),
        "pending": 20,
    }
    return Standing(**{**facts, **changes})  # type: ignore[arg-type]


def pace(arrivals: int) -> Pace:
    """Of 660 tokens a second, 6,600 in each batch."""
    made = Pace()
    for batch in range(arrivals + 1):
        made.look(10.0 * batch, Progress(run_id="r", batches=batch, tokens=batch * 6600, last_at=batch))
    return made


def test_what_a_person_reads() -> None:
    left = Estimate(seconds=75.0, low_seconds=60.0, high_seconds=90.0)
    said = "about 1 min 15 s left (1 min 00 s to 1 min 30 s)"
    line = standing_line(standing(), pace(4), left, tokens=33_000, batches=40, workers=2)
    assert line == f"10%, 12 of 40 batches, 3.0 MiB, 660 tokens/s, {said}, 28 queued, 3 running"
    early = standing_line(standing(), pace(2), None, tokens=33_000, batches=40, workers=2)
    assert early == "10%, 12 of 40 batches, 3.0 MiB, 660 tokens/s, 28 queued, 3 running"
    # Nothing has come for so long that nobody can say any more.
    late = pace(4)
    late.look(1000.0, Progress(run_id="r", batches=4, tokens=4 * 6600, last_at=4))
    assert "left" not in standing_line(standing(), late, left, tokens=33_000, batches=40, workers=2)
    bare = standing_line(standing(), Pace(), None, tokens=10_000, batches=40, workers=0)
    assert bare == "34%, 12 of 40 batches, 3.0 MiB, 28 queued, 3 running, no GPU worker is there"
    paused = standing(state="paused", counts=QueueCounts(queued=1, scheduled=2, failed=3))
    assert standing_line(paused, Pace(), left, tokens=1, batches=40, workers=0).endswith(
        "MiB, 21 queued, 2 to be tried again, 3 failed, paused"
    )
