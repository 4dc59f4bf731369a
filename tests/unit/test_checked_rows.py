"""What the guards are told of a chunk: norms, zeros and ids of its real rows, of every state; computed where the states are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpu_worker.guards import BatchGuard, GuardError
from gpu_worker.host_ring import ChunkTensors
from gpu_worker.taps import StateRows
from gpu_worker.tokens import TokenBatch
from gpu_worker.transfer import check_tensors

TAPS, HIDDEN, LENGTHS = (1, 3), 16, (5, 3)
TOKENS = sum(LENGTHS)
#: Two samples, the second padded.
IDS = torch.tensor([[10, 11, 12, 13, 14], [20, 21, 22, 0, 0]])
REAL = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7])


def _rows(dtype: torch.dtype) -> StateRows:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(TOKENS, len(TAPS), HIDDEN, generator=generator).to(dtype)
    return StateRows(states, torch.randn(TOKENS, HIDDEN, generator=generator).to(dtype), REAL)


def _guard() -> BatchGuard:
    batch = TokenBatch(
        batch_id=7,
        source_rows=np.array([11, 12]),
        input_ids=IDS.flatten()[REAL].numpy().astype(np.int32),
        loss_mask=np.ones(TOKENS, np.uint8),
        offsets=np.array([0, 5, 8]),
        micro_batches=np.array([0, 2]),
    )
    return BatchGuard(batch, TAPS, "post", HIDDEN, None)


def _tell(made: ChunkTensors) -> dict[str, str]:
    guard = _guard()
    guard.chunk(made.norms.numpy(), made.nonzero.numpy(), made.seen_ids.numpy())
    return guard.finish()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_numbers_of_every_state_and_the_ids_of_real_rows(dtype: torch.dtype) -> None:
    rows = _rows(dtype)
    assert rows.final is not None
    rows.hidden_states[2, 1, :4] = 0
    rows.final[0, :6] = 0
    made = check_tensors(rows, IDS)
    states = torch.cat([rows.hidden_states, rows.final[:, None]], dim=1).double()
    np.testing.assert_allclose(made.norms.numpy(), states.square().sum(-1).sqrt().numpy(), rtol=1e-5)
    assert made.norms.dtype == torch.float32
    assert made.nonzero.tolist() == (states != 0).sum(dim=(0, 2)).tolist()
    assert made.nonzero.tolist() == [TOKENS * HIDDEN, TOKENS * HIDDEN - 4, TOKENS * HIDDEN - 6]
    assert made.seen_ids.tolist() == [10, 11, 12, 13, 14, 20, 21, 22]
    assert _tell(made)["norm_median"].count(",") == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("state", "name"), [(0, "tap 1"), (1, "tap 3"), (2, "the final state")])
def test_one_value_that_is_not_finite_is_found_in_any_state(value: float, state: int, name: str) -> None:
    rows = _rows(torch.bfloat16)
    assert rows.final is not None
    (rows.final if state == 2 else rows.hidden_states[:, state])[6, 9] = value
    with pytest.raises(GuardError, match=f"{name} is not finite in 1 of 8 rows, first in source row 12"):
        _tell(check_tensors(rows, IDS))


def test_a_row_of_zeros_and_a_state_of_mostly_zeros_are_found() -> None:
    rows = _rows(torch.bfloat16)
    rows.hidden_states[3, 0] = 0
    with pytest.raises(GuardError, match="tap 1 is all zeros in 1 of 8 rows, first in source row 11"):
        _tell(check_tensors(rows, IDS))
    rows = _rows(torch.bfloat16)
    assert rows.final is not None
    rows.final[:, : HIDDEN // 2 + 1] = 0
    with pytest.raises(GuardError, match=r"56% of the values of the final state are zero \(at most 50%\)"):
        _tell(check_tensors(rows, IDS))


def test_rows_taken_from_other_places_than_those_of_the_tokens_are_found() -> None:
    rows = _rows(torch.bfloat16)
    rows.real = torch.tensor([0, 1, 2, 3, 4, 5, 6, 8])
    with pytest.raises(GuardError, match="1 row of other token ids than planned, first in source row 12"):
        _tell(check_tensors(rows, IDS))
