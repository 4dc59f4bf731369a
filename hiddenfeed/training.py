"""Training batches of a run: padded arrays, shuffled anew in every epoch, read ahead by threads. numpy only.

`torch.from_numpy` takes every array as it is and copies nothing; states keep their bits, so
`torch.from_numpy(batch.hidden_states).view(torch.bfloat16)` are the stored ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hiddenfeed.dtypes import raw_dtype
from hiddenfeed.epoch_plan import plan_epoch
from hiddenfeed.errors import ConfigError, DataError
from hiddenfeed.reader import RunReader
from hiddenfeed.words import count_text

#: Training batches whose samples are under way while one is trained on.
_AHEAD = 2


class TrainingBatch(NamedTuple):
    """B samples of up to N tokens, padded with zeros at their ends. Arrays are writable, and nobody else's.

    A named tuple, so that `torch.utils.data.DataLoader` turns it into one of tensors.
    """

    #: [B, N, K, H] as stored; uint16 for bfloat16. Taps in the order of the run's.
    hidden_states: npt.NDArray[Any]
    #: [B, N, H] as stored; None if the run keeps no final state.
    final_hidden_states: npt.NDArray[Any] | None
    #: int64 [B, N]
    input_ids: npt.NDArray[np.int64]
    #: uint8 [B, N], 1 = a token the model is trained to predict, aligned with the token itself; 0 at padding.
    loss_mask: npt.NDArray[np.uint8]
    #: bool [B, N], False at padding.
    attention_mask: npt.NDArray[np.bool_]
    #: int64 [B], tokens of each sample.
    lengths: npt.NDArray[np.int64]
    #: int64 [B], positions of the samples in the run, which `run.read` takes.
    positions: npt.NDArray[np.int64]


class TrainingBatches:
    """The training batches of a run, epoch by epoch.

    Iterate over it, or over `epoch(n)`; or hand it to `torch.utils.data.DataLoader` with `batch_size=None`, for
    which it is a map-style data set, and call `set_epoch` before each epoch.
    """

    def __init__(
        self,
        run: RunReader,
        *,
        tokens: int = 16_384,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        mixed_files: int = 64,
        threads: int = 8,
    ) -> None:
        """A batch holds at most `tokens` tokens, padding included, but for a sample that is longer by itself.

        Of `world_size` processes each names its `rank` and gets its own part, all equally many batches: what
        is left over changes from epoch to epoch. `mixed_files` batch files are mixed at a time, and `threads`
        samples are read at a time. What is stored now is what there is: later files of a run that goes on are
        not seen. Raises ConfigError for numbers that make no sense and for a run without samples.
        """
        if tokens < 1 or mixed_files < 1 or threads < 1 or not 0 <= rank < world_size:
            raise ConfigError(
                f"tokens={tokens}, mixed_files={mixed_files} and threads={threads} must be at least 1, "
                f"and rank={rank} one of 0..world_size-1 of world_size={world_size}"
            )
        if not len(run):
            raise ConfigError(f"run {run.run_id} has no samples that could be trained on yet")
        self.run = run
        self._tokens, self._seed, self._mixed_files, self._threads = tokens, seed, mixed_files, threads
        self._rank, self._world_size = rank, world_size
        self._lengths = run.lengths
        self._files: npt.NDArray[np.int32] = run.index["batch_id"].to_numpy()
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Shuffle anew: the order follows from the seed and the epoch's number alone."""
        everything = plan_epoch(
            self._lengths,
            self._files,
            tokens=self._tokens,
            mixed_files=self._mixed_files,
            seed=self._seed,
            epoch=epoch,
        )
        if len(everything) < self._world_size:
            raise ConfigError(
                f"run {self.run.run_id} makes {count_text(len(everything), 'training batch', 'training batches')} of {self._tokens:,} tokens, "
                f"too few for {count_text(self._world_size, 'process', 'processes')}"
            )
        each = len(everything) // self._world_size
        self._plan = everything[self._rank :: self._world_size][:each]

    def epoch(self, number: int) -> Iterator[TrainingBatch]:
        """The batches of one epoch, for this rank."""
        self.set_epoch(number)
        return iter(self)

    def __len__(self) -> int:
        """Batches of the epoch that was set, for this rank."""
        return len(self._plan)

    def __getitem__(self, place: int) -> TrainingBatch:
        """The batch at a place of 0..len-1 of the epoch; raises IndexError outside."""
        if not 0 <= place < len(self):
            raise IndexError(f"there is no training batch {place}: the epoch has {len(self)}")
        with ThreadPoolExecutor(self._threads, thread_name_prefix="hiddenfeed-read") as pool:
            return _filled(*self._begin(self._plan[place], pool))

    def __iter__(self) -> Iterator[TrainingBatch]:
        """All batches of the epoch; while one is used, the samples of the next two are read."""
        plan = iter(self._plan)
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="hiddenfeed-read")
        under_way: deque[tuple[TrainingBatch, list[Future[None]]]] = deque()
        try:
            for positions in plan:
                under_way.append(self._begin(positions, pool))
                if len(under_way) > _AHEAD:
                    yield _filled(*under_way.popleft())
            while under_way:
                yield _filled(*under_way.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _begin(
        self, positions: npt.NDArray[np.int64], pool: ThreadPoolExecutor
    ) -> tuple[TrainingBatch, list[Future[None]]]:
        """An empty batch, and who fills it."""
        document, lengths = self.run.document, self._lengths[positions]
        shape = (len(positions), int(lengths.max()))
        taps, hidden, dtype = len(document.identity.taps), document.hidden_size, document.identity.dtype
        final = document.identity.final_state != "none"
        batch = TrainingBatch(
            hidden_states=np.zeros((*shape, taps, hidden), raw_dtype(dtype)),
            final_hidden_states=np.zeros((*shape, hidden), raw_dtype(dtype)) if final else None,
            input_ids=np.zeros(shape, np.int64),
            loss_mask=np.zeros(shape, np.uint8),
            attention_mask=np.arange(shape[1]) < lengths[:, None],
            lengths=lengths,
            positions=positions,
        )
        return batch, [pool.submit(self._fill, batch, row) for row in range(len(positions))]

    def _fill(self, batch: TrainingBatch, row: int) -> None:
        sample = self.run.read(int(batch.positions[row]))
        n = len(sample)
        if n != batch.lengths[row]:
            raise DataError(
                f"run {self.run.run_id} was refreshed, and its positions have changed; begin anew"
            )
        batch.hidden_states[row, :n] = sample.raw
        if batch.final_hidden_states is not None:
            batch.final_hidden_states[row, :n] = sample.raw_final
        batch.input_ids[row, :n] = sample.input_ids
        batch.loss_mask[row, :n] = sample.loss_mask


def _filled(batch: TrainingBatch, fillers: list[Future[None]]) -> TrainingBatch:
    """The batch once all its samples are in it; raises the first error of reading one."""
    for filler in fillers:
        filler.result()
    return batch
