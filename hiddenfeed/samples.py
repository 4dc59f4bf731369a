"""What a reader hands out: one sample, or one batch file as arrays. numpy only.

States keep the bits they are stored in (`raw`, uint16 for bfloat16); `float32` gives numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hiddenfeed.batch_file import BatchFacts
from hiddenfeed.dtypes import to_float32
from hiddenfeed.errors import DataError


@dataclass(frozen=True)
class Sample:
    """One conversation of n tokens with its states. Arrays are read-only."""

    sample_id: str
    #: Row of the sample in the input.
    source_row: int
    #: int32 [n]
    input_ids: npt.NDArray[np.int32]
    #: uint8 [n], 1 = a token the model is trained to predict, aligned with the token itself.
    loss_mask: npt.NDArray[np.uint8]
    #: Canonical taps, in the order of the states' second dimension.
    taps: tuple[int, ...]
    #: As stored: `bfloat16`, `float16` or `float32`.
    dtype: str
    #: [n, K, H] as stored; uint16 for bfloat16.
    raw: npt.NDArray[Any]
    #: `none`, `pre` or `post` the final norm.
    final_norm: str
    #: [n, H] as stored; None if the run keeps no final state.
    raw_final: npt.NDArray[Any] | None
    #: What the states were computed with (`device`, `dtype` of the forward pass and others); empty if the file does not say.
    computed: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.input_ids)

    @property
    def hidden_states(self) -> npt.NDArray[np.float32]:
        """States of all taps, float32 [n, K, H]; converted at every call."""
        return to_float32(self.raw, self.dtype)

    def float32(self) -> npt.NDArray[np.float32]:
        """The same as `hidden_states`."""
        return self.hidden_states

    def tap(self, tap: int) -> npt.NDArray[np.float32]:
        """States after `tap` blocks, float32 [n, H]; raises DataError for a tap that is not stored."""
        if tap not in self.taps:
            raise DataError(f"tap {tap} is not stored; the run has {', '.join(map(str, self.taps))}")
        return to_float32(self.raw[:, self.taps.index(tap)], self.dtype)

    def final_float32(self) -> npt.NDArray[np.float32]:
        """The state for the language-model head, float32 [n, H]; raises DataError if the run keeps none."""
        if self.raw_final is None:
            raise DataError("the run keeps no final state")
        return to_float32(self.raw_final, self.dtype)


@dataclass(frozen=True)
class Batch:
    """One batch file of S samples and T tokens, held whole. Arrays are read-only."""

    facts: BatchFacts
    #: string [S]
    sample_ids: pa.Array
    #: By name, as in the file: hidden_states [T, K, H], final_hidden_states, offsets, sample_index, …
    tensors: dict[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        """Number of samples."""
        return self.facts.samples

    def sample(self, position: int) -> Sample:
        """The sample at `position` of the file; raises IndexError outside 0..S-1. Shares the batch's memory."""
        if not 0 <= position < len(self):
            raise IndexError(f"batch {self.facts.batch_id} has no sample {position}: it has {len(self)}")
        offsets = self.tensors["offsets"]
        tokens = slice(int(offsets[position]), int(offsets[position + 1]))
        final = self.tensors.get("final_hidden_states")
        return Sample(
            sample_id=self.sample_ids[position].as_py(),
            source_row=int(self.tensors["sample_index"][position]),
            input_ids=self.tensors["input_ids"][tokens],
            loss_mask=self.tensors["loss_mask"][tokens],
            taps=self.facts.taps,
            dtype=self.facts.dtype,
            raw=self.tensors["hidden_states"][tokens],
            final_norm=self.facts.final_norm,
            raw_final=None if final is None else final[tokens],
        )

    def __iter__(self) -> Iterator[Sample]:
        return (self.sample(position) for position in range(len(self)))
