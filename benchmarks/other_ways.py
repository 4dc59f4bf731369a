"""How hidden states are usually extracted, written plainly: the other side of the `vs_…` ratios.

All three run the whole decoder with `output_hidden_states=True`, without its head, and keep the same
taps. Nothing is checked, and only the third stores anything.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpu_worker.model import ModelSource, load_pretrained
from gpu_worker.structure import dissect

_BATCH = 16


class OtherWays:
    """A whole model and some samples of the data, in the order of the data."""

    def __init__(
        self, source: ModelSource, taps: Sequence[int], samples: Sequence[npt.NDArray[np.int32]], folder: Path
    ) -> None:
        """`samples` are token ids, int32 [n] each; `folder` gets the files."""
        self._model: Any = dissect(load_pretrained(source)).decoder
        self._device, self._taps, self._folder = source.device, list(taps), folder
        self._samples = [torch.from_numpy(sample.astype(np.int64)) for sample in samples]
        self.tokens = sum(len(sample) for sample in samples)
        folder.mkdir(parents=True)

    def seconds(self) -> dict[str, float]:
        """Seconds that each way takes for all samples: `one_by_one`, `unsorted_16`, `per_sample_files`."""
        found = {}
        for name in ("one_by_one", "unsorted_16", "per_sample_files"):
            begin = time.perf_counter()
            with torch.inference_mode():
                getattr(self, f"_{name}")()
            found[name] = time.perf_counter() - begin
        return found

    def _one_by_one(self) -> None:
        for sample in self._samples:
            self._states(sample[None], None).cpu()

    def _unsorted_16(self) -> None:
        """Sixteen at a time as they come, padded on the right, with a mask."""
        for first in range(0, len(self._samples), _BATCH):
            some = self._samples[first : first + _BATCH]
            ids = torch.nn.utils.rnn.pad_sequence(some, batch_first=True)
            lengths = torch.tensor([len(sample) for sample in some])
            mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
            states = self._states(ids, mask).cpu()
            for row, sample in enumerate(some):
                states[row, : len(sample)].clone()

    def _per_sample_files(self) -> None:
        """One by one, and each a file of its own."""
        for number, sample in enumerate(self._samples):
            states = self._states(sample[None], None).cpu()
            torch.save({"input_ids": sample, "hidden_states": states}, self._folder / f"data_{number}.ckpt")

    def _states(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """[B, L, K · H]"""
        output = self._model(
            input_ids=ids.to(self._device),
            attention_mask=None if mask is None else mask.to(self._device),
            output_hidden_states=True,
            use_cache=False,
        )
        return torch.cat([output.hidden_states[tap] for tap in self._taps], dim=-1)
