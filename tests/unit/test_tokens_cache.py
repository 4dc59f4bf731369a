"""The token file of a run: fetched once, verified, shared, mended; and batches out of it."""

from __future__ import annotations

import errno
import io
import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.planned_run import RunSpec, put_run
from common.messages import ExtractBatch
from gpu_worker.tokens import KEEP_SECONDS, TokenCache, TokenFile
from hiddenfeed.checksum import file_checksum
from hiddenfeed.errors import ConfigError, DataError, PermanentError, TransientError
from hiddenfeed.plan_file import TOKENS_SCHEMA
from hiddenfeed.run import RunDocument
from hiddenfeed.store.base import ObjectInfo
from hiddenfeed.store.directory import DirectoryStore

LENGTHS = np.array([30, 25, 20, 12, 9, 7, 4, 2])


class CountingStore(DirectoryStore):
    """A folder that counts what is fetched from it."""

    downloads = 0

    def download(self, key: str, path: Path) -> ObjectInfo:
        self.downloads += 1
        return super().download(key, path)


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    made = CountingStore(tmp_path / "store")
    made.check(create=True)
    return made


@pytest.fixture
def planned(store: CountingStore) -> tuple[RunDocument, list[ExtractBatch]]:
    return _plan(store)


def _plan(store: DirectoryStore, seed: int = 0) -> tuple[RunDocument, list[ExtractBatch]]:
    spec = RunSpec(
        model="m",
        model_identity="m",
        hidden_size=8,
        num_blocks=4,
        vocabulary=100,
        taps=(1,),
        micro_batch_tokens=40,
        batch_tokens=60,
        seed=seed,
    )
    return put_run(store, spec, LENGTHS)


def test_fetched_once_and_shared(tmp_path: Path, store: CountingStore, planned: Any) -> None:
    document, _ = planned
    for _ in range(3):
        TokenCache(tmp_path / "cache").open(store, document).close()
    assert store.downloads == 1


def test_processes_at_once_fetch_once(tmp_path: Path, store: CountingStore, planned: Any) -> None:
    document, _ = planned
    threads = [
        threading.Thread(target=lambda: TokenCache(tmp_path / "cache").open(store, document).close())
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.downloads == 1


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damaged_copy_is_fetched_again(
    tmp_path: Path, store: CountingStore, planned: Any, damage: str
) -> None:
    document, manifests = planned
    cache = TokenCache(tmp_path / "cache")
    opened = cache.open(store, document)
    opened.close()
    data = bytearray(opened.path.read_bytes())
    data[20] ^= 1
    opened.path.write_bytes(data if damage == "flipped" else data[:-7])
    again = cache.open(store, document)
    assert store.downloads == 2
    assert again.read(manifests[0]).tokens == manifests[0].tokens_total
    again.close()


def _damage(path: Path, how: str) -> None:
    """In place, as a disk does it: other processes have the file open."""
    if how == "cut":
        os.truncate(path, 1)
        return
    data = bytearray(path.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little") + 8
    with path.open("r+b") as file:
        file.write(bytes(byte ^ 1 for byte in data[:-footer]))


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_copy_that_is_damaged_while_in_use_is_fetched_again(
    tmp_path: Path, store: CountingStore, planned: Any, how: str
) -> None:
    document, manifests = planned
    opened = TokenCache(tmp_path / "cache").open(store, document)
    expected = [opened.read(manifest).input_ids.tolist() for manifest in manifests]
    _damage(opened.path, how)
    assert [opened.read(manifest).input_ids.tolist() for manifest in manifests] == expected
    assert store.downloads == 2
    opened.close()


def test_a_copy_is_mended_once_for_all_processes(tmp_path: Path, store: CountingStore, planned: Any) -> None:
    document, manifests = planned
    opened = [TokenCache(tmp_path / "cache").open(store, document) for _ in range(3)]
    _damage(opened[0].path, "flipped")
    for file in opened:
        assert file.read(manifests[0]).tokens == manifests[0].tokens_total
        file.close()
    assert store.downloads == 2


def test_a_copy_that_the_disk_does_not_give_is_fetched_again(
    tmp_path: Path, store: CountingStore, planned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, manifests = planned
    cache = TokenCache(tmp_path / "cache")
    cache.open(store, document).close()
    calls: list[Path] = []

    def broken_at_first(path: Path, algorithm: str) -> str:
        calls.append(path)
        if len(calls) == 1:
            raise OSError(errno.EIO, "Input/output error")
        return file_checksum(path, algorithm)

    monkeypatch.setattr("gpu_worker.tokens.file_checksum", broken_at_first)
    opened = cache.open(store, document)
    assert opened.read(manifests[0]).samples == manifests[0].samples
    assert store.downloads == 2
    opened.close()


def test_a_damaged_copy_waits_for_a_store_that_is_away(
    tmp_path: Path, store: CountingStore, planned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, manifests = planned
    opened = TokenCache(tmp_path / "cache").open(store, document)
    _damage(opened.path, "cut")

    def away(key: str, path: Path) -> ObjectInfo:
        raise TransientError("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(store, "download", away)
        with pytest.raises(TransientError, match="away"):
            opened.read(manifests[0])
    assert opened.read(manifests[0]).samples == manifests[0].samples
    opened.close()


@pytest.mark.parametrize(
    "trouble", ["the store's folder gone", "tokens missing there", "a folder in its place"]
)
def test_what_keeps_a_copy_from_being_mended_may_pass(
    tmp_path: Path, store: CountingStore, planned: Any, trouble: str
) -> None:
    """It fails no job: whoever took it away can bring it back."""
    document, manifests = planned
    opened = TokenCache(tmp_path / "cache").open(store, document)
    _damage(opened.path, "cut")
    away, there = tmp_path / "away", store.root
    if trouble == "tokens missing there":
        there = store.root / document.tokens.key
    if trouble == "a folder in its place":
        opened.path.unlink()
        opened.path.mkdir()
    else:
        there.rename(away)
    with pytest.raises(TransientError, match=r"is damaged, and cannot be fetched again|is gone"):
        opened.read(manifests[0])
    if trouble == "a folder in its place":
        opened.path.rmdir()
    else:
        away.rename(there)
    assert opened.read(manifests[0]).samples == manifests[0].samples
    opened.close()


def test_a_bit_that_turns_over_in_a_token_is_seen(tmp_path: Path, store: CountingStore, planned: Any) -> None:
    """Nothing else would tell: another token is as good as this one."""
    document, manifests = planned
    path = tmp_path / "tokens.parquet"
    store.download(document.tokens.key, path)
    with pq.ParquetFile(path) as whole:
        columns = [whole.metadata.row_group(0).column(number) for number in range(whole.metadata.num_columns)]
    chunk = next(column for column in columns if column.path_in_schema.startswith("input_ids"))
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    path.write_bytes(data)
    file = TokenFile(path)
    with pytest.raises(DataError, match="CRC"):
        file.read(manifests[0])
    file.close()


def test_file_that_changed_since_planning_is_refused(
    tmp_path: Path, store: CountingStore, planned: Any
) -> None:
    document, _ = planned
    data = bytearray(store.read(document.tokens.key))
    data[20] ^= 1
    store.write(document.tokens.key, bytes(data))
    with pytest.raises(DataError, match="is not the file that the run was planned with"):
        TokenCache(tmp_path / "cache").open(store, document)
    assert not list((tmp_path / "cache").glob("*/*.parquet*"))


def test_missing_file_is_named(tmp_path: Path, store: CountingStore, planned: Any) -> None:
    document, _ = planned
    store.delete(document.tokens.key)
    with pytest.raises(DataError, match=rf"{document.tokens.key} is missing"):
        TokenCache(tmp_path / "cache").open(store, document)


def test_folder_that_cannot_be_written_is_named(tmp_path: Path, store: CountingStore, planned: Any) -> None:
    document, _ = planned
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(ConfigError, match="cannot be written"):
        TokenCache(tmp_path / "cache").open(store, document)


def test_files_of_runs_long_gone_make_room(tmp_path: Path, store: CountingStore) -> None:
    cache = TokenCache(tmp_path / "cache")
    old, recent, new = (_plan(store, seed)[0] for seed in range(3))
    for document in (old, recent):
        cache.open(store, document).close()
    ages = {old.run_id: KEEP_SECONDS + 60, recent.run_id: KEEP_SECONDS - 3600}
    for run_id, age in ages.items():
        os.utime(tmp_path / "cache" / run_id, (time.time() - age,) * 2)
    cache.open(store, new).close()
    assert {folder.name for folder in (tmp_path / "cache").iterdir()} == {recent.run_id, new.run_id}


def test_batch_is_what_was_planned(tmp_path: Path, store: CountingStore, planned: Any) -> None:
    document, manifests = planned
    opened = TokenCache(tmp_path / "cache").open(store, document)
    rows = []
    for manifest in manifests:
        batch = opened.read(manifest)
        assert batch.samples == manifest.samples
        assert batch.lengths.tolist() == LENGTHS[batch.source_rows].tolist()
        assert batch.micro_batches[0] == 0
        assert batch.micro_batches[-1] == batch.samples
        for first, last in zip(batch.micro_batches, batch.micro_batches[1:], strict=False):
            lengths = batch.lengths[first:last]
            assert (np.diff(lengths) <= 0).all()
            assert lengths.max() * len(lengths) <= 40
        assert opened.source_rows(manifest.row_group) == tuple(batch.source_rows.tolist())
        rows += batch.source_rows.tolist()
    assert sorted(rows) == list(range(len(LENGTHS)))
    opened.close()


@pytest.mark.parametrize("field", ["samples", "tokens_total", "longest"])
def test_manifest_that_promises_something_else(
    tmp_path: Path, store: CountingStore, planned: Any, field: str
) -> None:
    document, manifests = planned
    opened = TokenCache(tmp_path / "cache").open(store, document)
    wrong = msgspec.structs.replace(manifests[0], **{field: getattr(manifests[0], field) + 1})
    with pytest.raises(PermanentError, match="batch 0: the manifest promises"):
        opened.read(wrong)
    for stray in ({"row_group": 1}, {"row_group": 99}, {"batch_id": 10**15, "row_group": 10**15}):
        with pytest.raises(PermanentError, match="the run has"):
            opened.read(msgspec.structs.replace(manifests[0], **stray))
    opened.close()


def test_a_file_of_another_number_of_batches_is_refused(
    tmp_path: Path, store: CountingStore, planned: Any
) -> None:
    document, manifests = planned
    fewer = msgspec.structs.replace(document.plan, batches=len(manifests) - 1)
    other = msgspec.structs.replace(document, plan=fewer)
    reason = rf"holds {len(manifests)} batches and the run {len(manifests) - 1}$"
    with pytest.raises(DataError, match=reason):
        TokenCache(tmp_path / "cache").open(store, other)


def _file(path: Path, **columns: list[Any]) -> TokenFile:
    table = {
        "sample_id": ["a", "b", "c"],
        "source_row": [0, 1, 2],
        "input_ids": [[1, 2], [3], [4]],
        "loss_mask": [[1, 0], [1], [0]],
        "micro_batch": [0, 0, 1],
    } | columns
    # Of the same types, though another program may not have said that nothing is missing.
    schema = pa.schema([pa.field(column.name, column.type) for column in TOKENS_SCHEMA])
    sink = io.BytesIO()
    pq.write_table(pa.table(table, schema=schema), sink)
    path.write_bytes(sink.getvalue())
    return TokenFile(path)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"micro_batch": [0, 2, 2]}, "not ordered by micro-batch"),
        ({"micro_batch": [0, 1, 0]}, "not ordered by micro-batch"),
        ({"micro_batch": [1, 1, 2]}, "not ordered by micro-batch"),
        ({"input_ids": [[1, 2], [], [4]], "loss_mask": [[1, 0], [], [0]]}, "a sample has no tokens"),
        ({"loss_mask": [[1], [1, 1], [0]]}, "not one mask entry per token"),
        ({"loss_mask": [[1, 0], None, [0]]}, "is empty or has rows with missing values"),
        ({"source_row": [0, None, 2]}, "is empty or has rows with missing values"),
    ],
)
def test_rows_that_make_no_batch(tmp_path: Path, columns: dict[str, list[Any]], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        _file(tmp_path / "tokens.parquet", **columns).batch(0)


def test_file_that_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "tokens.parquet"
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match="is not a parquet file"):
        TokenFile(path)
    sink = io.BytesIO()
    pq.write_table(pa.table({"input_ids": [[1]]}), sink)
    path.write_bytes(sink.getvalue())
    with pytest.raises(DataError, match="must have a column sample_id of string"):
        TokenFile(path)
