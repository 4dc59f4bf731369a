"""Whether a model can take the tokens of a batch; asked before anything of it reaches the device."""

from __future__ import annotations

import numpy as np

from gpu_worker.salvage import SampleError
from gpu_worker.taps import TapModel
from gpu_worker.tokens import TokenBatch
from hiddenfeed.words import count_text


def check_input(model: TapModel, batch: TokenBatch) -> None:
    """Raise SampleError for tokens that the model cannot take; on a GPU they would end the process."""
    unknown = np.flatnonzero((batch.input_ids < 0) | (batch.input_ids >= model.vocabulary))
    if len(unknown):
        row = int(batch.source_rows[batch.sample_of_token(int(unknown[0]))])
        raise SampleError(
            f"token id {int(batch.input_ids[unknown[0]])} in source row {row} is not one of the model's "
            f"{model.vocabulary} ids",
            "input",
        )
    longest = int(batch.lengths.argmax())
    if model.max_positions is not None and batch.lengths[longest] > model.max_positions:
        raise SampleError(
            f"the sample in source row {int(batch.source_rows[longest])} has "
            f"{count_text(int(batch.lengths[longest]), 'token')}, and the model has positions for {model.max_positions}",
            "input",
        )
