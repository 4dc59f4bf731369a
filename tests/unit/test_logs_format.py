"""What a process says: for people on a terminal, JSON elsewhere, fields in both."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from common.logs import get_logger, setup_logging
from common.settings.catalogue import LogSettings


@pytest.fixture(autouse=True)
def _restored_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("hiddenfeed").setLevel(logging.NOTSET)


class Terminal(io.StringIO):
    """A stream that people look at."""

    def isatty(self) -> bool:
        return True


def test_elsewhere_it_is_one_json_object_per_line() -> None:
    stream = io.StringIO()
    setup_logging(LogSettings(), "uploader", stream)
    get_logger("worker", host="a").bind(run="r").warning(
        "lease lost", job="j", path=Path("x"), role="overridden?"
    )
    entry = msgspec.json.decode(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry.pop("time"))
    assert entry == {
        "level": "warning",
        "role": "uploader",
        "source": "worker",
        "message": "lease lost",
        "host": "a",
        "run": "r",
        "job": "j",
        "path": "x",
    }


def test_on_a_terminal_it_is_a_sentence() -> None:
    stream = Terminal()
    setup_logging(LogSettings(), "uploader", stream)
    log = get_logger("worker")
    log.info("job finished", job="j", seconds=1.5)
    log.error("no")
    lines = [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()]
    assert lines == ["worker: job finished (job=j seconds=1.5)", "error worker: no"]


def test_what_is_logged_forges_no_line_and_moves_no_cursor() -> None:
    stream = Terminal()
    setup_logging(LogSettings(), "uploader", stream)
    get_logger("worker").info("column \x1b[31mred", name="a\n12:00:00 error worker: forged\u2028\x9b")
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("column \\x1b[31mred (name=a\\n12:00:00 error worker: forged\\u2028\\x9b)")


def test_half_a_character_is_logged_as_what_it_is() -> None:
    stream = io.StringIO()
    setup_logging(LogSettings(log_format="json"), "uploader", stream)
    get_logger("worker").info("row skipped", why="\ud800 alone", row=3)
    entry = msgspec.json.decode(stream.getvalue())
    assert (entry["message"], entry["why"], entry["row"]) == ("row skipped", "\\ud800 alone", "3")


def test_an_exception_brings_its_traceback() -> None:
    stream = io.StringIO()
    setup_logging(LogSettings(log_format="json"), "uploader", stream)
    try:
        raise ValueError("odd")
    except ValueError:
        get_logger("worker").exception("failed")
    assert "ValueError: odd" in msgspec.json.decode(stream.getvalue())["traceback"]


def test_the_level_holds_for_us_and_libraries_only_warn() -> None:
    stream = Terminal()
    setup_logging(LogSettings(log_level="debug"), "uploader", stream)
    get_logger("worker").debug("ours")
    logging.getLogger("rq.job").info("theirs")
    logging.getLogger("rq.job").warning("their warning")
    assert [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()] == [
        "debug worker: ours",
        "warning rq.job: their warning",
    ]
