"""Files of every kind that people have: rows, skipped rows, or one clear error."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hiddenfeed.errors import ConfigError
from producer.columns import Columns
from producer.parse_row import parse_row
from producer.rows import RowError, SkippedRow, SourceRow, Text
from producer.sources import LocalFile, RowReader, array, find_files, lines
from producer.sources.array import read_array


def json_lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write(folder: Path, data: bytes, name: str = "data.jsonl") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def reader_of(*paths: Path, say: Callable[[str], None] = lambda line: None) -> RowReader:
    return RowReader([LocalFile(path, path.name) for path in paths], Columns(), say)


def read(*paths: Path) -> list[SourceRow | SkippedRow]:
    return [parse_row(row, Columns()) for row in reader_of(*paths)]


def zstd(data: bytes) -> bytes:
    packed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return packed


def texts(rows: list[SourceRow | SkippedRow]) -> list[str]:
    return [
        row.content.text if isinstance(row, SourceRow) and isinstance(row.content, Text) else "-"
        for row in rows
    ]


def test_rows_are_numbered_over_all_files_and_blank_lines_are_none(tmp_path: Path) -> None:
    first = write(
        tmp_path, b"\n" + json_lines({"text": "a"}) + b"  \r\n\n" + json_lines({"text": "b"}), "1.jsonl"
    )
    second = write(tmp_path, json_lines({"text": "c", "id": "x"}), "2.jsonl")
    rows = read(first, second)
    assert [(row.file, row.source_row, row.sample_id) for row in rows] == [
        ("1.jsonl", 0, None),
        ("1.jsonl", 1, None),
        ("2.jsonl", 2, "x"),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b'{"text": "a"}\n{"text": "b"}',
        b'{"text": "a"}\r\n{"text": "b"}\r\n',
        b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}\n',
        gzip.compress(b'{"text": "a"}\n{"text": "b"}\n', mtime=0),
        gzip.compress(b'\xef\xbb\xbf{"text": "a"}\n', mtime=0) + gzip.compress(b'{"text": "b"}', mtime=0),
        zstd(b'{"text": "a"}\n{"text": "b"}\n'),
        b"\x50\x2a\x4d\x18\x01\x00\x00\x00x" + zstd(b'{"text": "a"}\n') + zstd(b'{"text": "b"}\n'),
        bz2.compress(b'{"text": "a"}\n{"text": "b"}\n'),
        lzma.compress(b'{"text": "a"}\n{"text": "b"}\n'),
        b'[{"text": "a"}, {"text": "b"}]',
        b'\xef\xbb\xbf \r\n[\n  {\n    "text": "a"\n  },\n  {"text": "b"},\n]\n',
        zstd(b'[{"text": "a"}\n,{"text": "b"}]\n\n'),
    ],
    ids=[
        "no last newline", "CRLF", "byte order mark", "gzip", "gzip of several members", "zstd", "zstd of several frames",
        "bzip2", "xz", "array", "array over lines", "array in zstd",
    ],
)  # fmt: skip
def test_files_that_read_well(tmp_path: Path, data: bytes) -> None:
    # The name says nothing: what a file is, its first bytes tell.
    assert texts(read(write(tmp_path, data, "data.whatever"))) == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "x"', "line 2 is not JSON"),
        (b'{"text": "\xff"}', "line 2 is not JSON"),
        (b'{"text": "\\ud800"}', "line 2 is not JSON"),
        (b'{"text": NaN}', "line 2 is not JSON"),
        (b'{"text": 1e999}', "line 2 is not JSON"),
        (b'{"text": "x"}{"text": "y"}', "line 2 is not JSON"),
        (b"\x00\x01\x02", "line 2 is not JSON"),
        (b"[" * 100_000, "line 2 is not JSON that can be read: it is nested too deeply"),
        (b'["text"]', "line 2 is not a JSON object with named fields"),
        (b"null", "line 2 is not a JSON object with named fields"),
        (b'{"title": "x"}', "line 2 has none of messages, conversations, conversation, input_ids, "),
        (b"{}", "it has nothing"),
        (b'{"text": null}', "line 2 has no value in text"),
    ],
)
def test_a_bad_line_is_skipped_with_its_reason_and_the_next_one_read(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    rows = read(write(tmp_path, json_lines({"text": "a"}) + line + b"\n" + json_lines({"text": "c"})))
    assert texts(rows) == ["a", "-", "c"]
    assert isinstance(rows[1], SkippedRow)
    assert reason in rows[1].reason
    assert rows[1].source_row == 1


def test_duplicate_keys_keep_the_last_value(tmp_path: Path) -> None:
    assert texts(read(write(tmp_path, b'{"text": "a", "text": "b"}\n'))) == ["b"]


def test_a_line_beyond_the_limit_is_skipped_without_being_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_ROW_BYTES", 40)
    exact = b'{"text": "' + b"e" * 28 + b'"}'
    assert len(exact) == 40
    data = (
        json_lines({"text": "x" * 200})
        + exact
        + b"\n"
        + json_lines({"text": "y" * 31}, {"text": "z"})
        + b"w" * 100
    )
    rows = read(write(tmp_path, data))
    assert texts(rows) == ["-", "e" * 28, "-", "z", "-"]
    assert "line 1 is longer than" in rows[0].reason  # type: ignore[union-attr]


def test_a_ten_megabyte_line_is_a_row(tmp_path: Path) -> None:
    assert texts(read(write(tmp_path, json_lines({"text": "x" * 10_000_000})))) == ["x" * 10_000_000]


def test_how_each_file_is_read_is_said_where_it_is_not_as_the_one_before(tmp_path: Path) -> None:
    paths = [
        write(tmp_path, b'broken\n{"title": "?"}\n' + json_lines({"text": "a"}), "1.jsonl"),
        write(tmp_path, json_lines({"text": "a"}), "2.jsonl"),
        write(tmp_path, json_lines({"input_ids": [1], "loss_mask": [1]}, {"text": "b"}, {"text": "c"}), "3.jsonl"),
        write(tmp_path, gzip.compress(json_lines({"text": "a"})), "4.jsonl.gz"),
    ]  # fmt: skip
    said: list[str] = []
    rows = list(reader_of(*paths, say=said.append))
    assert said == [
        "reading 1.jsonl (JSON lines): column text, ids made from row numbers",
        "reading 3.jsonl (JSON lines): column input_ids, loss mask from column loss_mask, ids made from row numbers",
        "3.jsonl also has rows of column text, ids made from row numbers",
    ]
    assert [row.source_row for row in rows] == list(range(8))


def test_a_wrong_id_skips_its_row(tmp_path: Path) -> None:
    rows = read(write(tmp_path, json_lines({"id": "a", "text": "x"}, {"id": [1], "text": "y"})))
    assert "id is a list; an id is text or a whole number" in rows[1].reason  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"PAR1xxxxxxxx", "is damaged after its beginning: Parquet magic bytes not found"),
        (b"\x28\xb5\x2f\xfdxxxx", "is damaged after its beginning"),
        (b"BZh91AY", "is damaged after its beginning"),
        (b"\xfd7zXZ\x00xx", "is damaged after its beginning"),
        (zstd(b'{"text": "a"}\n' * 5000)[:-9], "is damaged after "),
        (bz2.compress(b'{"text": "a"}\n' * 5000)[:-9], "is damaged after "),
        (lzma.compress(b'{"text": "a"}\n' * 5000)[:-9], "is damaged after "),
        (gzip.compress(b"PAR1xxxx"), "is Parquet inside gzip"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "is a pointer of Git LFS"),
        (b"PK\x03\x04xxxx", "is a zip archive"),
        ('{"text": "a"}'.encode("utf-16"), "is UTF-16 text"),
        (b'{\n "text": "a"\n}\n', "is one JSON object over many lines"),
        (b'[\n{"text": "a"},\n{"text": "b"}\n', "is damaged after element 1: its JSON array does not end"),
        (b'["text"]\n["text"]\n', "goes on after the end of its JSON array, after element 1"),
        (gzip.compress(b'{"text": "a"}\n' * 500, mtime=0)[:-20], "is damaged after "),
        (gzip.compress(b'{"text": "a"}\n', mtime=0)[:-8] + b"\0" * 8, "is damaged after "),
        (b"\x1f\x8b\x08\x00garbage-that-is-no-deflate-stream", "is damaged after its beginning"),
    ],
    ids=[
        "no parquet",
        "no zstd",
        "no bzip2",
        "no xz",
        "cut zstd",
        "cut bzip2",
        "cut xz",
        "parquet in gzip",
        "git lfs",
        "zip",
        "UTF-16",
        "one object",
        "cut array",
        "lists",
        "cut gzip",
        "gzip of a wrong sum",
        "garbled gzip",
    ],
)
def test_files_that_cannot_be_read_to_their_end(tmp_path: Path, data: bytes, what: str) -> None:
    path = write(tmp_path, data)
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert f"{path} {what}" in str(caught.value)


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    assert read(write(tmp_path, b"")) == []


def test_files_are_found_by_path_and_by_pattern(tmp_path: Path) -> None:
    second, first = write(tmp_path, b"", "b.jsonl"), write(tmp_path, b"", "a.jsonl")
    odd = write(tmp_path, b"", "we[i]rd.txt")
    assert find_files(str(first)) == [LocalFile(first, "a.jsonl")]
    assert find_files(str(tmp_path / "*.jsonl")) == [
        LocalFile(first, "a.jsonl"),
        LocalFile(second, "b.jsonl"),
    ]
    assert find_files(str(odd)) == [LocalFile(odd, "we[i]rd.txt")]


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, b"", "a.jsonl")
    assert [file.name for file in find_files(str(tmp_path / "*" / "*.jsonl"))] == ["x/a.jsonl", "y/a.jsonl"]


@pytest.mark.parametrize("name", ["nothing.jsonl", "*.parquet"])
def test_files_that_are_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is not there"):
        find_files(str(tmp_path / name))


def test_bytes_read_grow_to_the_size_of_the_files(tmp_path: Path) -> None:
    plain = write(tmp_path, json_lines(*({"text": "x" * 100} for _ in range(2000))), "a.jsonl")
    packed = write(tmp_path, gzip.compress(json_lines({"text": "y"})), "b.jsonl.gz")
    reader = reader_of(plain, packed)
    seen = [reader.bytes_read for _ in reader]
    assert seen == sorted(seen)
    assert 0 < seen[0] < seen[-1]
    assert reader.bytes_read == plain.stat().st_size + packed.stat().st_size


# --- arrays ---


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        (b'{"text": }', "element 2 is not JSON"),
        (b'{"text": "\xff"}', "element 2 is not JSON"),
        (b'{"text": NaN}', "element 2 is not JSON"),
        (b"", "element 2 is not JSON"),
        (b"7", "element 2 is not a JSON object"),
        (b'"a, ] }"', "element 2 is not a JSON object"),
        (b'[{"text": "x"}]', "element 2 is not a JSON object"),
        (b"[" * 2000 + b"]" * 2000, "element 2 is not JSON that can be read: it is nested too deeply"),
    ],
)
def test_a_bad_element_is_skipped_and_the_next_one_read(tmp_path: Path, element: bytes, reason: str) -> None:
    rows = read(write(tmp_path, b'[{"text": "a"},' + element + b',{"text": "c"}]'))
    assert texts(rows) == ["a", "-", "c"]
    assert reason in rows[1].reason  # type: ignore[union-attr]


def test_an_empty_array_has_no_rows(tmp_path: Path) -> None:
    assert read(write(tmp_path, b" [ \n ] ")) == []


# One byte at a time is slow where many tests run beside it; how slow is not the question.
@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.text(st.sampled_from('a"\\[]{},: \n\u00e9'), min_size=1, max_size=12), max_size=5),
    st.integers(1, 9),
)
def test_elements_are_cut_where_they_end_wherever_the_stream_is(said: list[str], chunk: int) -> None:
    rows = [{"text": text, "more": [{"x": [text]}, 1.5, None]} for text in said]
    packed = json.dumps(rows, ensure_ascii=False).encode()

    class Dribble(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(chunk)

    cut = [element for _, element in read_array("data", Dribble(packed))]
    assert [json.loads(element) for element in cut if isinstance(element, bytes)] == rows


def test_an_element_beyond_the_limit_is_skipped_without_being_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_ROW_BYTES", 40)
    monkeypatch.setattr(array, "_CHUNK_BYTES", 16)
    long = json.dumps({"text": '\\"],[' * 100})
    cut = [
        row for _, row in read_array("data", io.BytesIO(f'[{{"text": "a"}},{long},{{"text": "b"}}]'.encode()))
    ]
    assert cut[0] == b'{"text": "a"}'
    assert isinstance(cut[1], RowError)
    assert "element 2 is longer than" in str(cut[1])
    assert cut[2:] == [b'{"text": "b"}']
