"""Tokens that a model cannot take are refused before they reach the device, with the row they are in."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_worker.input_check import check_input
from gpu_worker.salvage import SampleError
from gpu_worker.structure import dissect
from gpu_worker.taps import Selection, TapModel
from gpu_worker.tokens import TokenBatch
from tests.tiny_models import VOCABULARY, make_model

#: The model has positions for 256.
LENGTHS = (256, 100, 4)


@pytest.fixture(scope="module")
def model() -> TapModel:
    return TapModel(dissect(make_model("llama")), Selection((1,)))


def _batch(lengths: tuple[int, ...] = LENGTHS) -> TokenBatch:
    tokens = sum(lengths)
    return TokenBatch(
        batch_id=0,
        source_rows=np.array([31, 32, 33]),
        input_ids=(np.arange(tokens) % VOCABULARY).astype(np.int32),
        loss_mask=np.ones(tokens, np.uint8),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        micro_batches=np.array([0, 3]),
    )


def test_the_last_id_and_the_last_position_may_be_used(model: TapModel) -> None:
    assert _batch().input_ids.max() == VOCABULARY - 1
    check_input(model, _batch())


@pytest.mark.parametrize("wrong", [-1, VOCABULARY, 2**31 - 1])
@pytest.mark.parametrize(("token", "row"), [(0, 31), (255, 31), (256, 32), (359, 33)])
def test_ids_out_of_range_name_their_row_and_the_range(
    model: TapModel, wrong: int, token: int, row: int
) -> None:
    batch = _batch()
    batch.input_ids[token] = wrong
    reason = f"^token id {wrong} in source row {row} is not one of the model's {VOCABULARY} ids$"
    with pytest.raises(SampleError, match=reason) as caught:
        check_input(model, batch)
    assert caught.value.check == "input"


def test_a_sample_longer_than_the_models_positions_is_named(model: TapModel) -> None:
    reason = "^the sample in source row 32 has 257 tokens, and the model has positions for 256$"
    with pytest.raises(SampleError, match=reason) as caught:
        check_input(model, _batch((256, 257, 4)))
    assert caught.value.check == "input"
