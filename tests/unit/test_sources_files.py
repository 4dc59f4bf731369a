"""Files of every kind that people have: rows, skipped rows, or one clear error."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hiddenfeed.errors import ConfigError
from producer import sources
from producer.rows import Shape, Text
from producer.sources import RowReader, SkippedRow, SourceRow, find_files


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write(folder: Path, data: bytes, name: str = "data.jsonl") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def read(*paths: Path) -> list[SourceRow | SkippedRow]:
    return list(RowReader(paths))


def texts(rows: list[SourceRow | SkippedRow]) -> list[str]:
    return [
        row.content.text if isinstance(row, SourceRow) and isinstance(row.content, Text) else "-"
        for row in rows
    ]


def test_rows_are_numbered_over_all_files_and_blank_lines_are_none(tmp_path: Path) -> None:
    first = write(tmp_path, b"\n" + lines({"text": "a"}) + b"  \r\n\n" + lines({"text": "b"}), "1.jsonl")
    second = write(tmp_path, lines({"text": "c", "id": "x"}), "2.jsonl")
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
    ],
    ids=["no last newline", "CRLF", "byte order mark", "gzip", "gzip of several members"],
)
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
        (b'{"prompt": "x"}', "the row has no text, as which the file is read; it has prompt"),
        (b"{}", "the row has no text, as which the file is read; it has nothing"),
        (b'{"text": null}', "the row has no text"),
    ],
)
def test_a_bad_line_is_skipped_with_its_reason_and_the_next_one_read(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    rows = read(write(tmp_path, lines({"text": "a"}) + line + b"\n" + lines({"text": "c"})))
    assert texts(rows) == ["a", "-", "c"]
    assert isinstance(rows[1], SkippedRow)
    assert reason in rows[1].reason
    assert rows[1].source_row == 1


def test_duplicate_keys_keep_the_last_value(tmp_path: Path) -> None:
    assert texts(read(write(tmp_path, b'{"text": "a", "text": "b"}\n'))) == ["b"]


def test_a_line_beyond_the_limit_is_skipped_without_being_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_LINE_BYTES", 40)
    exact = b'{"text": "' + b"e" * 28 + b'"}'
    assert len(exact) == 40
    data = lines({"text": "x" * 200}) + exact + b"\n" + lines({"text": "y" * 31}, {"text": "z"}) + b"w" * 100
    rows = read(write(tmp_path, data))
    assert texts(rows) == ["-", "e" * 28, "-", "z", "-"]
    assert "line 1 is longer than" in rows[0].reason  # type: ignore[union-attr]


def test_a_ten_megabyte_line_is_a_row(tmp_path: Path) -> None:
    assert texts(read(write(tmp_path, lines({"text": "x" * 10_000_000})))) == ["x" * 10_000_000]


def test_each_file_is_recognised_at_its_first_row_that_shows_it(tmp_path: Path) -> None:
    first = write(tmp_path, b'broken\n{"prompt": "?"}\n' + lines({"text": "a"}), "1.jsonl")
    second = write(tmp_path, lines({"input_ids": [1], "loss_mask": [1]}), "2.jsonl")
    heard: list[tuple[str, str]] = []

    def hear(path: Path, shape: Shape) -> None:
        heard.append((path.name, shape.content))

    rows = list(RowReader([first, second], hear))
    assert heard == [("1.jsonl", "text"), ("2.jsonl", "input_ids")]
    reasons = [row.reason for row in rows if isinstance(row, SkippedRow)]
    assert reasons[1] == "line 2 has none of messages, conversations, input_ids, text; it has prompt"


def test_a_wrong_id_skips_its_row(tmp_path: Path) -> None:
    rows = read(write(tmp_path, lines({"id": "a", "text": "x"}, {"id": [1], "text": "y"})))
    assert "id is a list; an id is text or a whole number" in rows[1].reason  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"PAR1xxxxxxxx", "is a Parquet file"),
        (b"\x28\xb5\x2f\xfdxxxx", "is compressed with zstd"),
        (b"BZh91AY", "is compressed with bzip2"),
        (b"\xfd7zXZ\x00xx", "is compressed with xz"),
        (b"PK\x03\x04xxxx", "is a zip archive"),
        ('{"text": "a"}'.encode("utf-16"), "is UTF-16 text"),
        (b'[\n{"text": "a"},\n{"text": "b"}\n]\n', "is a JSON array; one object per line is read"),
        (gzip.compress(b'{"text": "a"}\n' * 500, mtime=0)[:-20], "is damaged after line"),
        (gzip.compress(b'{"text": "a"}\n', mtime=0)[:-8] + b"\0" * 8, "is damaged after line"),
        (b"\x1f\x8b\x08\x00garbage-that-is-no-deflate-stream", "is damaged after line 0"),
    ],
    ids=[
        "parquet",
        "zstd",
        "bzip2",
        "xz",
        "zip",
        "UTF-16",
        "array",
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
    assert find_files(str(first)) == [first]
    assert find_files(str(tmp_path / "*.jsonl")) == [first, second]
    assert find_files(str(odd)) == [odd]


@pytest.mark.parametrize("name", ["nothing.jsonl", "*.parquet"])
def test_files_that_are_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is not there"):
        find_files(str(tmp_path / name))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a folder; name a file or a pattern like .*/\*\.jsonl"):
        find_files(str(tmp_path))


def test_bytes_read_grow_to_the_size_of_the_files(tmp_path: Path) -> None:
    plain = write(tmp_path, lines(*({"text": "x" * 100} for _ in range(2000))), "a.jsonl")
    packed = write(tmp_path, gzip.compress(lines({"text": "y"})), "b.jsonl.gz")
    reader = RowReader([plain, packed])
    seen = [reader.bytes_read for _ in reader]
    assert seen == sorted(seen)
    assert 0 < seen[0] < seen[-1]
    assert reader.bytes_read == plain.stat().st_size + packed.stat().st_size
