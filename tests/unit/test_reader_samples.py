"""The reader against what was written: by position, by id, by batch, before and after the end of a run."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import hiddenfeed
from hiddenfeed.batch_heads import BatchHeads
from hiddenfeed.dtypes import to_float32
from hiddenfeed.errors import ConfigError, DataError
from hiddenfeed.layout import index_key, tokens_key
from hiddenfeed.proof import finish
from hiddenfeed.reader import RunReader, Sample, open_run, split_run_url
from hiddenfeed.store.directory import DirectoryStore
from hiddenfeed.store.memory import MemoryStore
from tests.synthetic_run import SyntheticSample, encode_batch, synthetic_run


class CountingStore(MemoryStore):
    """Remembers every read as (key, start, length)."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[str, int, int | None]] = []

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.reads.append((key, start, length))
        return super().read(key, start, length)


def _assert_same(found: Sample, expected: SyntheticSample, *, final: bool) -> None:
    assert (found.sample_id, found.source_row) == (expected.sample_id, expected.source_row)
    assert len(found) == len(expected.input_ids)
    assert found.input_ids.dtype == np.int32
    assert np.array_equal(found.input_ids, expected.input_ids)
    assert found.loss_mask.dtype == np.uint8
    assert np.array_equal(found.loss_mask, expected.loss_mask)
    assert found.raw.dtype == expected.raw.dtype
    assert np.array_equal(found.raw, expected.raw)
    if final:
        assert found.raw_final is not None
        assert np.array_equal(found.raw_final, expected.raw_final)
    else:
        assert found.raw_final is None


@pytest.mark.parametrize("final_state", ["none", "pre", "post"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("finished", [False, True])
def test_every_sample_by_position_by_id_and_in_a_row(dtype: str, final_state: str, finished: bool) -> None:
    store, run = MemoryStore(), synthetic_run(dtype=dtype, final_state=final_state)
    run.write(store, quarantined=[1])
    if finished:
        finish(store, run.run_id)
    reader = RunReader(store, run.run_id)
    expected = [*run.batches[0], *run.batches[2]]
    final = final_state != "none"
    assert len(reader) == len(expected)
    assert reader.sample_ids == [sample.sample_id for sample in expected]
    for position, sample in enumerate(expected):
        _assert_same(reader.read(position), sample, final=final)
        _assert_same(reader[sample.sample_id], sample, final=final)
        assert reader.position_of(sample.sample_id) == position
    for found, sample in zip(reader, expected, strict=True):
        _assert_same(found, sample, final=final)
    assert reader.batch_ids == [0, 2]
    assert [batch.facts.batch_id for batch in reader.iter_batches()] == [0, 2]
    assert [len(batch) for batch in reader.iter_batches()] == [4, 4]


def test_a_run_that_goes_on_shows_more_at_each_look() -> None:
    store, run = MemoryStore(), synthetic_run()
    run.write(store, batches=[2])
    reader = RunReader(store, run.run_id)
    assert reader.sample_ids == [sample.sample_id for sample in run.batches[2]]
    assert not reader.info().complete
    store.write(run.key(0), run.batch_file(0))
    assert len(reader) == 4
    assert reader.refresh() == 8
    assert reader.read(0).sample_id == run.batches[0][0].sample_id
    store.write(run.key(1), run.batch_file(1))
    finish(store, run.run_id)
    assert reader.refresh() == 12
    assert reader.info().complete
    assert [sample.sample_id for sample in reader] == [sample.sample_id for sample in run.samples()]


def test_a_prepared_run_without_files_is_empty() -> None:
    store, run = MemoryStore(), synthetic_run()
    run.prepare(store)
    reader = RunReader(store, run.run_id)
    assert (len(reader), reader.sample_ids, list(reader), reader.info().tokens_stored) == (0, [], [], 0)


@pytest.mark.parametrize("final_state", ["none", "post"])
def test_a_sample_is_one_ranged_read_once_its_file_is_known(final_state: str) -> None:
    store, run = CountingStore(), synthetic_run(final_state=final_state)
    run.write(store)
    finish(store, run.run_id)
    reader = RunReader(store, run.run_id)
    reader.read(0)
    store.reads.clear()
    sample = reader.read(1)
    place = run.layout(0).states
    first = len(run.batches[0][0].input_ids)
    assert store.reads[0] == (run.key(0), place.row_start(first), len(sample) * place.row_bytes)
    assert len(store.reads) == (1 if final_state == "none" else 2)


def test_a_complete_run_is_opened_without_its_plan() -> None:
    store, run = CountingStore(), synthetic_run()
    run.write(store)
    finish(store, run.run_id)
    store.reads.clear()
    RunReader(store, run.run_id).read(3)
    assert tokens_key(run.run_id) not in {key for key, _, _ in store.reads}


def test_states_are_numbers_and_taps_have_names() -> None:
    store, run = MemoryStore(), synthetic_run(taps=(0, 2, 3), final_state="pre")
    run.write(store)
    sample, expected = RunReader(store, run.run_id).read(5), run.samples()[5]
    numbers = to_float32(expected.raw, "bfloat16")
    assert np.array_equal(sample.float32(), numbers)
    assert np.array_equal(sample.tap(2), numbers[:, 1])
    assert np.array_equal(sample.final_float32(), to_float32(expected.raw_final, "bfloat16"))
    with pytest.raises(DataError, match="tap 1 is not stored; the run has 0, 2, 3"):
        sample.tap(1)
    with pytest.raises(ValueError, match="read-only"):
        sample.raw[0, 0, 0] = 1


def test_a_run_without_final_states_says_so() -> None:
    store, run = MemoryStore(), synthetic_run()
    run.write(store)
    with pytest.raises(DataError, match="keeps no final state"):
        RunReader(store, run.run_id).read(0).final_float32()


def test_what_is_not_there_is_named() -> None:
    store, run = MemoryStore(), synthetic_run()
    run.write(store)
    reader = RunReader(store, run.run_id)
    with pytest.raises(DataError, match="has no stored sample 'nobody'"):
        reader.read("nobody")
    for position in (-1, 12):
        with pytest.raises(IndexError, match=f"has no sample {position}: 12 can be read"):
            reader.read(position)
    with pytest.raises(IndexError, match="has no sample 4"):
        reader.read_batch(0).sample(4)
    with pytest.raises(DataError, match=r"batch 7 of run .* is not stored"):
        reader.read_batch(7)
    with pytest.raises(DataError, match="there is no run nothing in memory:"):
        RunReader(store, "nothing")


def test_an_id_of_two_samples_is_refused_and_positions_work() -> None:
    store, run = MemoryStore(), synthetic_run(batches=1)
    run.write(store)
    reader = RunReader(store, run.run_id)
    doubled = reader.index.set_column(0, reader.index.schema.field(0), [["same", "same", "other", "more"]])
    object.__setattr__(reader._index, "table", doubled)
    with pytest.raises(DataError, match="more than one sample 'same'; ask by position"):
        reader.read("same")
    assert reader.read("other").source_row == run.batches[0][2].source_row
    assert reader.read(1).source_row == run.batches[0][1].source_row


def test_a_file_lost_after_the_end_is_named_and_the_rest_is_readable() -> None:
    store, run = MemoryStore(), synthetic_run()
    run.write(store)
    finish(store, run.run_id)
    store.delete(run.key(0))
    reader = RunReader(store, run.run_id)
    with pytest.raises(
        DataError, match=r"batch 0 of run .* is not stored any more, though the run was complete"
    ):
        reader.read(0)
    assert reader.read(4).sample_id == run.batches[1][0].sample_id


@pytest.mark.parametrize("other", [1, 2])
def test_a_foreign_file_is_not_read(other: int) -> None:
    store, run = MemoryStore(), synthetic_run()
    run.write(store)
    store.write(run.key(0), run.batch_file(other))
    reader = RunReader(store, run.run_id)
    with pytest.raises(DataError, match=f"is not the planned batch: batch_id is {other}, not 0"):
        reader.read(0)
    with pytest.raises(DataError, match=f"is not the planned batch: batch_id is {other}, not 0"):
        reader.read_batch(0)


def test_a_file_with_other_offsets_is_not_read() -> None:
    store, run = MemoryStore(), synthetic_run()
    run.write(store)
    tensors = run.tensors(0)
    tensors["offsets"] = np.sort(tensors["offsets"] + np.array([0, 1, 0, 0, 0]))
    store.write(run.key(0), encode_batch(run.layout(0), tensors))
    with pytest.raises(DataError, match=r"does not hold sample .* where the index says"):
        RunReader(store, run.run_id).read(0)


def test_a_file_that_shrank_is_named() -> None:
    class Shrunk(MemoryStore):
        """Every file lost its last bytes after it was listed."""

        def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
            whole = super().read(key)
            kept = whole[: 4096 + 8] if key.endswith(".safetensors") else whole
            return kept[start : len(kept) if length is None else start + length]

    store, run = Shrunk(), synthetic_run()
    run.write(store)
    reader = RunReader(store, run.run_id)
    with pytest.raises(DataError, match=f"{run.key(0)} is cut short: of"):
        reader.read(0)
    with pytest.raises(DataError, match=f"{run.key(0)} is 4104 bytes long, and its header says"):
        reader.read_batch(0)


def test_an_altered_index_is_refused() -> None:
    store, run = MemoryStore(), synthetic_run()
    run.write(store)
    finish(store, run.run_id)
    data = bytearray(store.read(index_key(run.run_id)))
    data[60] ^= 1
    store.write(index_key(run.run_id), bytes(data))
    with pytest.raises(DataError, match=r"index.parquet has checksum"):
        RunReader(store, run.run_id)


def test_threads_share_a_reader() -> None:
    store, run = MemoryStore(), synthetic_run(batches=8)
    run.write(store)
    reader = RunReader(store, run.run_id)
    expected = run.samples()
    found: dict[int, list[Sample]] = {}

    def read_all(thread: int) -> None:
        found[thread] = [reader.read(position) for position in range(thread, len(expected), 4)]
        reader.refresh()

    threads = [threading.Thread(target=read_all, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, samples in found.items():
        for sample, wanted in zip(samples, expected[number::4], strict=True):
            _assert_same(sample, wanted, final=False)
    assert len(found) == 4


def test_open_run_takes_the_url_of_a_run_or_a_store_and_an_id(tmp_path: Path) -> None:
    run = synthetic_run()
    run.write(DirectoryStore(tmp_path))
    for reader in (
        open_run(f"{tmp_path}/{run.run_id}"),
        open_run(f"{tmp_path}/{run.run_id}/"),
        open_run(str(tmp_path), run.run_id),
        hiddenfeed.open_run(f"{tmp_path}/{run.run_id}"),
    ):
        assert len(reader) == 12
    info = open_run(f"{tmp_path}/{run.run_id}").info()
    assert info.url == f"{tmp_path}/{run.run_id}"
    assert (info.samples, info.batches_stored, info.size_bytes) == (
        12,
        3,
        sum(len(run.batch_file(batch)) for batch in range(3)),
    )


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://bucket/run-1", ("s3://bucket", "run-1")),
        ("s3://bucket/a/b/run-1/", ("s3://bucket/a/b", "run-1")),
        ("/data/run-1", ("/data", "run-1")),
        ("/run-1", ("/", "run-1")),
        ("run-1", (".", "run-1")),
    ],
)
def test_a_run_url_has_a_root_and_an_id(url: str, parts: tuple[str, str]) -> None:
    assert split_run_url(url) == parts


@pytest.mark.parametrize("url", ["s3://bucket", "s3://", "/", "", "/data/run.json", "/data/.."])
def test_a_url_without_a_run_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the URL of a run"):
        split_run_url(url)


def test_the_package_knows_its_names() -> None:
    assert hiddenfeed.RunReader is RunReader
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = hiddenfeed.nonsense


def test_heads_are_kept_up_to_a_limit_and_the_last_one_always() -> None:
    store, run = CountingStore(), synthetic_run(batches=4)
    run.write(store)
    infos = {info.key: info for info in store.list("")}
    one = sum(array.nbytes for name, array in run.tensors(0).items() if name != "hidden_states")
    for kept_bytes, reads in ((one * 10, [8, 0, 0]), (0, [8, 8, 0])):
        heads = BatchHeads(store, kept_bytes)
        for expected, batches in zip(reads, ([0, 1, 2, 3], [0, 1, 2, 3], [3, 3]), strict=True):
            store.reads.clear()
            for batch in batches:
                head = heads.get(batch, infos[run.key(batch)], lambda header: None)
                assert np.array_equal(head.tensors["sample_index"], run.tensors(batch)["sample_index"])
            assert len(store.reads) == expected


def test_a_batch_extracted_after_the_proof_is_read_once_the_run_is_finished_again() -> None:
    store, run = MemoryStore(), synthetic_run()
    run.write(store, quarantined=[1])
    finish(store, run.run_id)
    store.write(run.key(1), run.batch_file(1))
    reader = RunReader(store, run.run_id)
    info = reader.info()
    assert (len(reader), info.batches_stored, info.batches_quarantined) == (8, 2, 0)
    assert info.size_bytes == len(run.batch_file(0)) + len(run.batch_file(2))
    finish(store, run.run_id)
    assert (reader.refresh(), reader.info().batches_stored) == (12, 3)
