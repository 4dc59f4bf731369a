"""Training batches: each sample once an epoch, padded right, shuffled anew, split among ranks, wherever they are read."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiddenfeed.dtypes import to_float32
from hiddenfeed.epoch_plan import plan_epoch
from hiddenfeed.errors import ConfigError, DataError
from hiddenfeed.proof import finish
from hiddenfeed.reader import RunReader, open_run
from hiddenfeed.store.directory import DirectoryStore
from hiddenfeed.store.memory import MemoryStore
from hiddenfeed.training import TrainingBatch, TrainingBatches
from tests.synthetic_run import SyntheticRun, synthetic_run


def _plan(lengths: list[int], files: list[int], **given: int) -> list[list[int]]:
    settings = {"tokens": 16, "mixed_files": 2, "seed": 0, "epoch": 0} | given
    plan = plan_epoch(np.array(lengths, np.int64), np.array(files, np.int32), **settings)
    return [batch.tolist() for batch in plan]


def _opened(tmp_path: Path, run: SyntheticRun) -> RunReader:
    store = DirectoryStore(tmp_path)
    run.write(store)
    finish(store, run.run_id)
    return open_run(f"{tmp_path}/{run.run_id}")


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    per_file=st.integers(1, 7),
    tokens=st.integers(1, 100),
    mixed_files=st.integers(1, 5),
    epoch=st.integers(0, 3),
)
def test_every_sample_is_in_one_batch_and_no_batch_costs_more_than_allowed(
    lengths: list[int], per_file: int, tokens: int, mixed_files: int, epoch: int
) -> None:
    files = [place // per_file for place in range(len(lengths))]
    plan = _plan(lengths, files, tokens=tokens, mixed_files=mixed_files, epoch=epoch)
    assert sorted(position for batch in plan for position in batch) == list(range(len(lengths)))
    for batch in plan:
        assert len(batch) == 1 or len(batch) * max(lengths[position] for position in batch) <= tokens
        assert len({files[position] for position in batch}) <= mixed_files


def test_an_epochs_order_follows_from_seed_and_number_alone() -> None:
    lengths, files = [3, 9, 4, 4, 8, 2, 7, 5] * 8, [place // 8 for place in range(64)]
    assert _plan(lengths, files) == _plan(lengths, files)
    assert _plan(lengths, files) != _plan(lengths, files, epoch=1)
    assert _plan(lengths, files) != _plan(lengths, files, seed=1)


def test_samples_of_one_length_share_a_batch() -> None:
    plan = _plan([10, 2] * 8, [0] * 16, tokens=20)
    assert sorted(map(len, plan)) == [2, 2, 2, 2, 8]


@pytest.mark.parametrize("final_state", ["none", "post"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_batch_holds_its_samples_and_zeros(tmp_path: Path, dtype: str, final_state: str) -> None:
    run = synthetic_run(dtype=dtype, final_state=final_state)
    reader = _opened(tmp_path, run)
    seen: list[int] = []
    for batch in TrainingBatches(reader, tokens=20, mixed_files=2):
        assert batch.hidden_states.shape == (*batch.input_ids.shape, 3, 8)
        assert batch.input_ids.shape[1] == batch.lengths.max()
        for row, position in enumerate(batch.positions.tolist()):
            _assert_row(batch, row, reader, position, dtype)
        seen += batch.positions.tolist()
    assert sorted(seen) == list(range(len(reader)))


def _assert_row(batch: TrainingBatch, row: int, reader: RunReader, position: int, dtype: str) -> None:
    sample, n = reader.read(position), int(batch.lengths[row])
    assert n == len(sample)
    assert batch.attention_mask[row].tolist() == [place < n for place in range(batch.input_ids.shape[1])]
    assert np.array_equal(batch.input_ids[row, :n], sample.input_ids)
    assert np.array_equal(batch.loss_mask[row, :n], sample.loss_mask)
    assert np.array_equal(to_float32(batch.hidden_states, dtype)[row, :n], sample.hidden_states)
    rest: list[npt.NDArray[np.generic]] = [batch.hidden_states, batch.input_ids, batch.loss_mask]
    if batch.final_hidden_states is None:
        assert sample.raw_final is None
    else:
        assert sample.raw_final is not None
        assert np.array_equal(batch.final_hidden_states[row, :n], sample.raw_final)
        rest.append(batch.final_hidden_states)
    assert not any(array[row, n:].any() for array in rest)


def test_by_place_and_in_a_row_are_the_same_and_epochs_differ(tmp_path: Path) -> None:
    batches = TrainingBatches(_opened(tmp_path, synthetic_run()), tokens=14)
    first = [batch.positions.tolist() for batch in batches]
    assert [batches[place].positions.tolist() for place in range(len(batches))] == first
    second = [batch.positions.tolist() for batch in batches.epoch(1)]
    assert second != first
    assert [batch.positions.tolist() for batch in batches.epoch(0)] == first
    with pytest.raises(IndexError, match=f"the epoch has {len(batches)}"):
        batches[len(batches)]


def test_ranks_share_an_epoch_evenly(tmp_path: Path) -> None:
    reader = _opened(tmp_path, synthetic_run())
    alone = TrainingBatches(reader, tokens=8)
    ranks = [TrainingBatches(reader, tokens=8, rank=rank, world_size=3) for rank in range(3)]
    assert {len(rank) for rank in ranks} == {len(alone) // 3}
    taken = [position for rank in ranks for batch in rank for position in batch.positions.tolist()]
    assert len(taken) == len(set(taken))


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    reader = _opened(tmp_path, synthetic_run())
    with pytest.raises(ConfigError, match="rank=2 one of"):
        TrainingBatches(reader, rank=2, world_size=2)
    with pytest.raises(ConfigError, match="too few for 1,000 processes"):
        TrainingBatches(reader, world_size=1000)
    run, store = synthetic_run(), MemoryStore()
    run.prepare(store)
    with pytest.raises(ConfigError, match="has no samples"):
        TrainingBatches(RunReader(store, run.run_id))


def test_a_sample_that_cannot_be_read_ends_the_epoch(tmp_path: Path) -> None:
    run = synthetic_run()
    reader = _opened(tmp_path, run)
    (tmp_path / run.key(1)).write_bytes(b"")
    with pytest.raises(DataError, match="000001"):
        list(TrainingBatches(reader, tokens=14))


def test_a_refreshed_run_is_not_mistaken_for_the_one_before(tmp_path: Path) -> None:
    run, store = synthetic_run(longest=50), DirectoryStore(tmp_path)
    run.write(store, batches=[2])
    reader = open_run(f"{tmp_path}/{run.run_id}")
    batches = TrainingBatches(reader)
    run.write(store)
    reader.refresh()
    with pytest.raises(DataError, match="was refreshed"):
        list(batches)


def test_a_reader_sent_to_another_process_opens_the_run_again(tmp_path: Path) -> None:
    run, store = synthetic_run(), DirectoryStore(tmp_path)
    run.write(store, batches=[0])
    reader = open_run(f"{tmp_path}/{run.run_id}")
    # What sending it does.
    sent = copy.deepcopy(TrainingBatches(reader)).run
    again = copy.copy(reader)
    assert again is not reader
    assert again.store is not reader.store
    assert again.read(0).sample_id == reader.read(0).sample_id == sent.read(0).sample_id
    run.write(store)
    with pytest.raises(
        DataError, match="had 4 samples when its reader was sent to this process and has 12 now"
    ):
        copy.copy(reader)
    with pytest.raises(TypeError, match="open the run with open_run"):
        copy.copy(RunReader(store, run.run_id))
