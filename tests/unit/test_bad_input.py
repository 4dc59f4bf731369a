"""A corpus of malformed files, made here: each gives its skipped rows with a reason, or one clear error; no row is hidden."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.settings.catalogue import DataSettings, PlanSettings
from hiddenfeed.errors import ConfigError
from producer.console import Console
from producer.prepare import Prepared, prepare
from producer.recipe import Recipe, make_recipe
from producer.sources import find_files
from tests.tiny_chat import VOCABULARY, write_model_folder, write_rows

TURNS = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "fine"}]
GOOD = json.dumps({"messages": TURNS}).encode()


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """A recipe of one good file; each case puts its own in its place."""
    folder = tmp_path_factory.mktemp("corpus")
    model = write_model_folder(folder / "model")
    data = write_rows(folder / "data.jsonl", [{"messages": TURNS}])
    settings = DataSettings(data=str(data), model=str(model), taps="1")
    return make_recipe(settings, PlanSettings(), lambda line: None)


def prepared(recipe: Recipe, path: Path) -> Prepared:
    files = find_files(str(path))
    mine = replace(
        recipe,
        data=DataSettings(data=str(path), model=recipe.data.model),
        files=files,
        file_states=[file.state() for file in files],
    )
    folder = path.parent / "out"
    folder.mkdir()
    return prepare(mine, folder, Console(io.StringIO()))


def outcome(recipe: Recipe, path: Path) -> tuple[list[int], dict[int, str]]:
    """(rows planned, reason of each row skipped), after it was seen that no row is in both or in neither."""
    result = prepared(recipe, path)
    planned: list[int] = sorted(pq.read_table(result.tokens_path)["source_row"].to_pylist())
    skipped = pq.read_table(result.skipped_path).to_pylist()
    assert {row["source_file"] for row in skipped} <= {path.name}
    reasons = {row["source_row"]: row["reason"] for row in skipped}
    assert sorted([*planned, *reasons]) == list(range(result.tally.rows))
    assert (result.tally.samples, result.tally.skipped) == (len(planned), len(skipped))
    assert sum(result.tally.causes.values()) == len(skipped)
    return planned, reasons


def messages(*turns: Any) -> bytes:
    return json.dumps({"messages": list(turns)}).encode()


def row(**columns: Any) -> bytes:
    return json.dumps(columns).encode()


def nested(depth: int) -> str:
    return '{"x":' * depth + "1" + "}" * depth


USER, BOT = TURNS
BAD_LINES = {
    "cut short": (b'{"messages": [{"role": "user"', "line 2 is not JSON"),
    "no UTF-8": (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', "line 2 is not JSON"),
    "overlong UTF-8": (b'{"text": "\xc0\xaf"}', "line 2 is not JSON"),
    "lone surrogate": (b'{"messages": [{"role": "user", "content": "\\ud83d"}]}', "line 2 is not JSON"),
    "NaN": (b'{"messages": NaN}', "line 2 is not JSON"),
    "infinite id": (b'{"id": Infinity, "messages": []}', "line 2 is not JSON"),
    "number beyond floats": (b'{"id": 1e999, "messages": []}', "line 2 is not JSON"),
    "two rows on a line": (GOOD + GOOD, "line 2 is not JSON"),
    "single quotes": (b"{'messages': []}", "line 2 is not JSON"),
    "comment": (b"// a comment", "line 2 is not JSON"),
    "trailing comma": (b'{"messages": [],}', "line 2 is not JSON"),
    "zeros": (bytes(64), "line 2 is not JSON"),
    "control character": (b'{"text": "a\x01b"}', "line 2 is not JSON"),
    "nested too deeply": (b"[" * 100_000, "nested too deeply"),
    "nested too deeply in a message": (
        b'{"messages": [{"role": "user", "content": "a", "x": ' + nested(5000).encode() + b"}]}",
        "nested too deeply",
    ),
    "a list": (b'["messages"]', "is not a JSON object with named fields"),
    "null": (b"null", "is not a JSON object with named fields"),
    "a number": (b"17", "is not a JSON object with named fields"),
    "nothing in it": (b"{}", "it has nothing"),
    "other columns": (b'{"title": "x", "url": "y"}', "it has title, url"),
    "messages missing": (row(messages=None, id="a"), "has no value in messages"),
    "messages empty": (row(messages=[]), "messages is empty: a conversation without messages"),
    "messages text": (row(messages="hello"), "messages is text, not a list"),
    "messages one object": (row(messages=USER), "messages is an object, not a list"),
    "messages null inside": (messages(None, BOT), "messages[0] is missing, not a message"),
    "message text": (messages("hello", BOT), "messages[0] is text, not a message"),
    "no role": (messages({"content": "x"}, BOT), "messages[0] has no role"),
    "role a number": (messages({"role": 1, "content": "x"}, BOT), "messages[0] has no role"),
    "role unknown": (messages({"role": "narrator", "content": "x"}, BOT), "unknown role 'narrator'"),
    "content a number": (messages({"role": "user", "content": 5}, BOT), "messages[0]: content is a number"),
    "content an object": (messages({"role": "user", "content": {}}, BOT), "messages[0]: content is an object"),
    "an image": (messages({"role": "user", "content": [{"type": "image", "url": "x"}]}, BOT), "a part of type image"),
    "parts in parts": (messages({"role": "user", "content": [["x"]]}, BOT), "a part of type a list"),
    "all content missing": (
        messages({"role": "user", "content": None}, {"role": "assistant", "content": None}),
        "messages[1] is an assistant's turn that says nothing",
    ),
    "silent assistant": (messages(USER, {"role": "assistant", "content": " \n"}), "an assistant's turn that says nothing"),
    "no assistant": (messages(USER), "no assistant's turn"),
    "tools text": (row(messages=TURNS, tools="search"), "tools is text"),
    "calls text": (messages(USER, {**BOT, "tool_calls": "f()"}), "tool_calls is text"),
    "prompt alone": (row(prompt="x"), "prompt has no response beside it"),
    "response missing": (row(prompt="x", response=None), "response is missing, not text"),
    "response empty": (row(prompt="x", response=""), "response is empty"),
    "text": (row(text="plain"), "plain text has no assistant's turns"),
    "text empty": (row(text=" "), "text is empty"),
    "text a list": (row(text=["x"]), "text is a list, not text"),
    "ids negative": (row(input_ids=[1, -2], loss_mask=[1, 1]), "input_ids[1] is -2, which is no token id"),
    "ids as text": (row(input_ids=["1"], loss_mask=[1]), "input_ids[0] is text, not a whole number"),
    "ids one text": (row(input_ids="1 2", loss_mask=[1]), "input_ids is text, not a list"),
    "ids broken": (row(input_ids=[1.5], loss_mask=[1]), "input_ids[0] is a number, not a whole number"),
    "ids with null": (row(input_ids=[1, None], loss_mask=[1, 1]), "input_ids[1] is missing"),
    "ids nested": (row(input_ids=[[1]], loss_mask=[[1]]), "input_ids[0] is a list"),
    "ids empty": (row(input_ids=[], loss_mask=[]), "input_ids is empty"),
    "ids beyond 64 bits": (row(input_ids=[2**64], loss_mask=[1]), "input_ids"),
    "ids beyond 32 bits": (row(input_ids=[2**40], loss_mask=[1]), "which is no token id"),
    "ids beyond the vocabulary": (row(input_ids=[VOCABULARY], loss_mask=[1]), "outside the model's vocabulary"),
    "ids without mask": (row(input_ids=[1]), "input_ids came without loss_mask or labels"),
    "mask too short": (row(input_ids=[1, 2], loss_mask=[1]), "loss_mask has 1 entries for 2 input_ids"),
    "mask no mask": (row(input_ids=[1, 2], loss_mask=[0, 2]), "loss_mask[1] is 2; it must be 0 or 1"),
    "mask all zero": (row(input_ids=[1, 2], loss_mask=[0, 0]), "0 tokens to be predicted"),
    "labels shifted": (row(input_ids=[1, 2, 3], labels=[2, 3, -100]), "labels must be the token itself"),
    "padding alone": (row(input_ids=[1, 2], labels=[1, 2], attention_mask=[0, 0]), "padding alone"),
    "id a list": (row(id=[1], messages=TURNS), "id is a list; an id is text or a whole number"),
    "id a fraction": (row(id=1.5, messages=TURNS), "id is a number; an id is text or a whole number"),
    "id too long": (row(id="x" * 1001, messages=TURNS), "id has 1001 characters"),
}  # fmt: skip


#: Where brackets do not come in pairs, nobody can say where the next element of an array begins.
UNPAIRED = ("cut short", "nested too deeply")
PACKED = [
    (case, packed)
    for packed in ("line", "element")
    for case in BAD_LINES
    if packed == "line" or case not in UNPAIRED
]


@pytest.fixture(scope="module")
def reasons_of(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """(case, how rows are packed) -> why its row was skipped; between each two bad rows is a good one, which was not."""
    found: dict[tuple[str, str], str] = {}
    for packed in ("line", "element"):
        cases = [case for case, there in PACKED if there == packed]
        rows = [GOOD] + [row for case in cases for row in (BAD_LINES[case][0], GOOD)]
        path = tmp_path_factory.mktemp(packed) / "bad"
        path.write_bytes(b"\n".join(rows) if packed == "line" else b"[" + b",\n".join(rows) + b"]")
        planned, reasons = outcome(recipe, path)
        assert planned == list(range(0, len(rows), 2))
        found |= {(case, packed): reasons[2 * number + 1] for number, case in enumerate(cases)}
    return found


@pytest.mark.parametrize(("case", "packed"), PACKED)
def test_a_bad_row_costs_itself_and_no_other(
    reasons_of: dict[tuple[str, str], str], case: str, packed: str
) -> None:
    found, expected = reasons_of[case, packed], BAD_LINES[case][1]
    assert expected.replace("line 2", packed).replace("line", packed) in re.sub(
        rf"{packed} \d+", packed, found
    )
    assert "\n" not in found


@pytest.mark.parametrize("case", UNPAIRED)
def test_an_element_without_its_brackets_is_the_end_of_an_array(
    recipe: Recipe, tmp_path: Path, case: str
) -> None:
    (tmp_path / "bad").write_bytes(b"[" + b",\n".join([GOOD, BAD_LINES[case][0], GOOD]) + b"]")
    with pytest.raises(ConfigError, match="bad is damaged after element 1: its JSON array does not end"):
        outcome(recipe, tmp_path / "bad")


def test_odd_rows_that_are_good(recipe: Recipe, tmp_path: Path) -> None:
    ids = ["../x", "/etc/passwd", "a\x00b", "row-0", 7, -1, "ä" * 1000, "", None]
    rows = [row(id=name, messages=TURNS) for name in ids]
    rows += [
        b'{"messages": 3, "messages": ' + json.dumps(TURNS).encode() + b"}",
        b'\t {"messages": ' + json.dumps(TURNS).encode() + b"} \r",
        messages({"role": "user", "content": "a\u2028b\x85c\ufeff \U0001f600 \u202e"}, BOT),
        row(messages=TURNS, notes="x" * 10_000_000),
        messages({"role": "user", "content": "hello " * 5000}, BOT),
        row(conversations=[{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]),
        row(instruction="a", output="b"),
        row(input_ids=[1, 2], labels=[-100, 2]),
    ]
    (tmp_path / "odd").write_bytes(b"\xef\xbb\xbf\r\n" + b"\r\n\r\n".join(rows))
    planned, reasons = outcome(recipe, tmp_path / "odd")
    # The five thousand words are cut to the longest sample, and with them the answer goes.
    assert list(reasons) == [13]
    assert "0 tokens to be predicted within --max-length" in reasons[13]
    assert len(planned) == len(rows) - 1
    names = pq.read_table(tmp_path / "out" / "tokens.parquet")["sample_id"].to_pylist()
    assert {"../x", "/etc/passwd", "a\x00b", "row-0", "7", "-1", "row-7", "row-8"} <= set(names)


def test_rows_of_one_id_are_told(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(
        b"\n".join([row(id=name, messages=TURNS) for name in ("a", 1, "1", "a", "row-5", None)])
    )
    planned, reasons = outcome(recipe, tmp_path / "bad")
    assert planned == [0, 1, 4]
    assert list(reasons) == [2, 3, 5]
    assert all("is taken by an earlier row" in reason for reason in reasons.values())


def table(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    whole: bytes = sink.getvalue().to_pybytes()
    return whole


TALK = pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))
BAD_TABLES = {
    "missing messages": (table(messages=pa.array([TURNS, None, TURNS], TALK)), "row 1 has no value in messages"),
    "missing message": (table(messages=pa.array([TURNS, [None], TURNS], TALK)), "messages[0] is missing, not a message"),
    "missing fields": (table(messages=pa.array([TURNS, [{"role": None}], TURNS], TALK)), "messages[0] has no role"),
    "no UTF-8": (
        table(messages=[json.dumps(TURNS)] * 3, id=pa.array([b"a", b"\xff", b"c"], pa.binary()).view(pa.string())),
        "row 1: column id cannot be read",
    ),
    "ids negative": (
        table(input_ids=[[1], [-1], [2]], loss_mask=[[1], [1], [1]]), "input_ids[0] is -1, which is no token id",
    ),
    "ids as text": (table(input_ids=[["1"], ["2"]], loss_mask=[[1], [1]], messages=pa.array([TURNS, None], TALK)), "text, not a whole"),
    "ids beyond 64 bits": (
        table(input_ids=pa.array([[1], [2**64 - 1], [2]], pa.list_(pa.uint64())), loss_mask=[[1], [1], [1]]), "beyond 64 bits",
    ),
    "ids as bytes": (table(id=pa.array([b"a", b"b"]), messages=pa.array([TURNS, TURNS], TALK)), "id is bytes"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_row_of_a_table_costs_itself(recipe: Recipe, tmp_path: Path, case: str) -> None:
    data, reason = BAD_TABLES[case]
    (tmp_path / "bad").write_bytes(data)
    if case == "ids as bytes":
        with pytest.raises(ConfigError, match="no sample is left of 2 rows; mostly: 2 × id is bytes"):
            outcome(recipe, tmp_path / "bad")
        return
    planned, reasons = outcome(recipe, tmp_path / "bad")
    assert planned == ([0] if case == "ids as text" else [0, 2])
    assert reason in reasons[1]


LINES = b"".join(row(id=number, messages=TURNS) + b"\n" for number in range(2000))
WHOLE_TABLE = table(messages=pa.array([TURNS] * 50, TALK))
BAD_FILES = {
    "empty": (b"", "has no rows"),
    "blank": (b" \n\r\n\t\n", "has no rows"),
    "byte order mark alone": (b"\xef\xbb\xbf", "has no rows"),
    "empty gzip": (gzip.compress(b""), "has no rows"),
    "gzip cut": (gzip.compress(LINES)[:-300], "is damaged after line"),
    "gzip cut in its head": (gzip.compress(LINES)[:5], "is damaged after its beginning"),
    "gzip of a wrong sum": (gzip.compress(LINES)[:-8] + bytes(8), "is damaged after line"),
    "gzip and more": (gzip.compress(LINES) + b"more", "is damaged after line"),
    "zstd cut": (pa.Codec("zstd").compress(LINES, asbytes=True)[:-20], "is damaged after"),
    "zstd and more": (pa.Codec("zstd").compress(LINES, asbytes=True) + b"more", "is damaged after"),
    "bzip2 cut": (bz2.compress(LINES)[:-300], "is damaged after"),
    "xz cut": (lzma.compress(LINES)[:-20], "is damaged after"),
    "zip": (b"PK\x03\x04" + bytes(40), "is a zip archive; unpack it"),
    "UTF-16": (LINES.decode().encode("utf-16"), "is UTF-16 text; write it as UTF-8"),
    "UTF-16 without its mark": (GOOD.decode().encode("utf-16-le"), "mostly: 1 × line 1 is not JSON"),
    "CSV": (b"role,content\nuser,hello\n", "mostly: 2 × line 1 is not JSON"),
    "a page of the web": (b"<!doctype html>\n<title>404</title>\n", "mostly: 2 × line 1 is not JSON"),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "is a pointer of Git LFS"),
    "old Mac lines": (GOOD + b"\r" + GOOD, "mostly: 1 × line 1 is not JSON"),
    "one object over lines": (json.dumps({"messages": TURNS}, indent=1).encode(), "is one JSON object over many lines"),
    "two arrays inside an object": (
        row(train=[{"messages": TURNS}], test=[{"messages": TURNS}]),
        "is one JSON object with several lists of rows (train, test); write the one that is wanted",
    ),
    "an array of rows of no kind inside an object": (row(list=[{"x": 1}]), "has none of messages, "),
    "array cut": (b"[" + GOOD + b"," + GOOD, "is damaged after element 1: its JSON array does not end"),
    "array and more": (b"[" + GOOD + b"]" + GOOD, "goes on after the end of its JSON array"),
    "array of nothing": (b"[]", "has no rows"),
    "string that does not end": (b'[{"messages": "' + b"x" * 100, "is damaged after element 0"),
    "Parquet cut": (WHOLE_TABLE[:-10], "is damaged after its beginning"),
    "Parquet cut to its magic": (WHOLE_TABLE[:4], "is damaged after its beginning"),
    "Parquet of a garbled end": (WHOLE_TABLE[:-60] + b"\xff" * 40 + WHOLE_TABLE[-20:], "is damaged after its beginning"),
    "Parquet without columns of ours": (table(title=["a"], url=["b"]), "has none of messages, "),
    "Parquet of no rows": (table(messages=pa.array([], TALK)), "has no rows"),
    "Parquet in gzip": (gzip.compress(WHOLE_TABLE), "is Parquet inside gzip; unpack it"),
    "Parquet, encrypted": (b"PARE" + bytes(40), "is an encrypted Parquet file"),
    "Arrow cut": (b"ARROW1\x00\x00" + bytes(40), "is damaged after its beginning"),
    "Arrow stream cut": (b"\xff\xff\xff\xff\x10\x00\x00\x00", "is damaged"),
    "Feather 1": (b"FEA1" + bytes(40), "is a Feather file of the first version"),
    "Avro": (b"Obj\x01" + bytes(40), "is an Avro file; write it as Parquet"),
    "SQLite": (b"SQLite format 3\x00" + bytes(40), "is an SQLite database"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_file_that_cannot_be_read_is_one_error_that_names_it(
    recipe: Recipe, tmp_path: Path, case: str
) -> None:
    data, message = BAD_FILES[case]
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        outcome(recipe, tmp_path / "bad")
    assert str(caught.value).startswith(str(tmp_path / "bad"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_corpus_is_a_corpus() -> None:
    assert len(BAD_LINES) + len(BAD_TABLES) + len(BAD_FILES) > 100
