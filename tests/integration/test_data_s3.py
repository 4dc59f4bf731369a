"""Rows in a real S3: one object, a pattern, a prefix, a saved dataset; read in ranges, of one version."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hiddenfeed.errors import ConfigError, TransientError
from hiddenfeed.store.s3_client import parse_s3_url
from producer.columns import Columns
from producer.parse_row import parse_row
from producer.rows import SourceRow, Text
from producer.sources import DataFile, RowReader, find_files, s3
from producer.sources.files import hash_data
from tests.conftest import S3Access


class Bucket:
    """Objects below the test's own prefix, whose name no key of a run could have."""

    def __init__(self, access: S3Access) -> None:
        self.access = access
        self.bucket, prefix = parse_s3_url(access.url)
        self.prefix = f"{prefix}/rows of mine"
        self.url = f"s3://{self.bucket}/{self.prefix}"

    def put(self, name: str, data: bytes) -> None:
        with self.access.client() as client:
            client.put_object(Bucket=self.bucket, Key=f"{self.prefix}/{name}", Body=data)

    def find(self, name: str) -> list[DataFile]:
        return find_files(f"{self.url}/{name}", self.access.options)


@pytest.fixture
def bucket(s3: S3Access) -> Bucket:
    return Bucket(s3)


def lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def parquet(tmp_path: Path, *texts: str) -> bytes:
    pq.write_table(
        pa.table({"text": list(texts), "other": ["x" * 1000] * len(texts)}), tmp_path / "p", row_group_size=2
    )
    return (tmp_path / "p").read_bytes()


def stream(*texts: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"text": pa.string()})) as writer:
        writer.write_table(pa.table({"text": list(texts)}))
    whole: bytes = sink.getvalue().to_pybytes()
    return whole


def texts(files: list[DataFile]) -> list[str]:
    rows = [parse_row(row, Columns()) for row in RowReader(files, Columns())]
    return [
        row.content.text if isinstance(row, SourceRow) and isinstance(row.content, Text) else "-"
        for row in rows
    ]


def test_objects_are_found_and_read_as_files_are(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small ranges, so that every file takes several.
    monkeypatch.setattr(s3, "_READ_BYTES", 100)
    written = {
        "a.jsonl": lines(*(f"a{n}" for n in range(30))), "b/part-10.jsonl.gz": gzip.compress(lines("b10")),
        "b/part-9.parquet": parquet(tmp_path, "b9", "b9 too", "b9 also"), "b/README.md": b"not rows", "b/deep/er.arrow": stream("deep"),
    }  # fmt: skip
    for name, data in written.items():
        bucket.put(name, data)
    (one,) = bucket.find("a.jsonl")
    assert (one.name, one.where, one.state()[0]) == (
        "a.jsonl",
        f"{bucket.url}/a.jsonl",
        len(written["a.jsonl"]),
    )
    assert texts([one]) == [f"a{n}" for n in range(30)]
    folder = bucket.find("b")
    assert [file.name for file in folder] == ["deep/er.arrow", "part-9.parquet", "part-10.jsonl.gz"]
    assert texts(folder) == ["deep", "b9", "b9 too", "b9 also", "b10"]
    assert [file.name for file in bucket.find("b/part-*")] == ["part-9.parquet", "part-10.jsonl.gz"]
    assert [file.name for file in bucket.find("**/*.arrow")] == ["er.arrow"]
    (tmp_path / "here.parquet").write_bytes(written["b/part-9.parquet"])
    assert hash_data(bucket.find("b/part-9*")) == hash_data(find_files(str(tmp_path / "here.parquet")))


def test_a_saved_dataset_is_read_from_its_prefix(bucket: Bucket) -> None:
    bucket.put("set/x.arrow", stream("x"))
    bucket.put("set/cache-0.arrow", stream("not of it"))
    state: dict[str, Any] = {"_data_files": [{"filename": "x.arrow"}]}
    bucket.put("set/state.json", json.dumps(state).encode())
    assert texts(bucket.find("set/")) == ["x"]
    state["_data_files"].append({"filename": "y.arrow"})
    bucket.put("set/state.json", json.dumps(state).encode())
    with pytest.raises(ConfigError, match=r"set/y\.arrow is missing"):
        bucket.find("set")


def test_an_object_that_changes_is_not_mixed(bucket: Bucket) -> None:
    bucket.put("a.jsonl", lines("before"))
    files = bucket.find("a.jsonl")
    before = files[0].state()
    bucket.put("a.jsonl", lines("behind"))
    assert files[0].state() != before
    with pytest.raises(ConfigError, match=r"a\.jsonl was changed while it was read"):
        texts(files)
    with bucket.access.client() as client:
        client.delete_object(Bucket=bucket.bucket, Key=f"{bucket.prefix}/a.jsonl")
    with pytest.raises(ConfigError, match=r"a\.jsonl is not there any more"):
        files[0].state()


def test_reading_waits_while_s3_is_away(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("a.jsonl", lines("a"))
    said: list[str] = []
    files = find_files(f"{bucket.url}/a.jsonl", bucket.access.options, said.append)
    whole, failed = s3.S3File._read, list[int]()

    def once_away(self: s3.S3File, start: int, length: int) -> bytes:
        if not failed:
            failed.append(start)
            raise TransientError("S3 is not reachable")
        return whole(self, start, length)

    monkeypatch.setattr(s3.S3File, "_read", once_away)
    assert texts(files) == ["a"]
    assert said == ["waiting: S3 is not reachable"]


@pytest.mark.parametrize("name", ["nothing.jsonl", "nothing/", "nothing*"])
def test_objects_that_are_not_there(bucket: Bucket, name: str) -> None:
    bucket.put("a.jsonl", b"")
    with pytest.raises(ConfigError, match="is not there"):
        bucket.find(name)


def test_a_bucket_that_is_not_there(bucket: Bucket) -> None:
    with pytest.raises(ConfigError, match="bucket 'no-such-bucket-here' does not exist"):
        find_files("s3://no-such-bucket-here/x/*.jsonl", bucket.access.options)
