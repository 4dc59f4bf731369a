"""Quantised checkpoints: loaded, tested against the whole model, and what they give is what their numbers say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gpu_worker.agreement import compare, tolerance_for
from gpu_worker.model import ModelSource, load_pretrained
from gpu_worker.reference import Reference
from gpu_worker.selftest import SelfTest, probe
from gpu_worker.structure import dissect
from gpu_worker.taps import Selection, StateRows, TapModel
from gpu_worker.tokens import TokenBatch
from tests.quantised_models import BY_TRANSFORMERS, FORMATS, WIDTH, save_compressed
from tests.tiny_models import VOCABULARY

# Their warnings are of their own parts, and of torch's.
pytestmark = pytest.mark.filterwarnings("ignore")

SELECTION = Selection((1, 2))
TOLERANCE = tolerance_for(["bfloat16"], median=False)


def _batch() -> TokenBatch:
    lengths = np.array([60, 44, 30, 22])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.random.default_rng(0).integers(3, VOCABULARY, offsets[-1]).astype(np.int32)
    return TokenBatch(0, np.arange(4), ids, np.zeros(len(ids), np.uint8), offsets, np.array([0, 4]))


def _assert_given(folder: Path, expected: nn.Module) -> None:
    """Loaded as a worker does, the checkpoint passes the self-test, and truncated it gives what `expected` gives."""
    whole = load_pretrained(ModelSource(str(folder), None, torch.device("cpu")))
    parts = dissect(whole)
    model = TapModel(parts, SELECTION)
    assert model.compute_dtype == torch.bfloat16
    test = SelfTest(parts, SELECTION, probe(_batch(), VOCABULARY, 256), "of the test")
    del whole
    model.truncate()
    test.run(model, torch.bfloat16, TOLERANCE)
    ids = torch.from_numpy(_batch().input_ids[:60].astype(np.int64))[None]
    rows = StateRows(torch.empty(60, 2, WIDTH, dtype=torch.bfloat16), None, None)
    model.forward(ids, rows)
    reference = Reference(expected, dissect(expected)).states(ids, SELECTION)
    agreement = compare(rows.hidden_states.float().numpy(), reference.numpy(), median=False)
    assert agreement.worst(TOLERANCE) is None, agreement


@pytest.mark.parametrize("form", FORMATS)
def test_compressed_tensors_give_what_their_numbers_say(tmp_path: Path, form: str) -> None:
    _assert_given(tmp_path, save_compressed(tmp_path, form))


def test_loading_one_shows_no_progress_bars(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They would lie between the lines of the log."""
    save_compressed(tmp_path, "int-quantized")
    capfd.readouterr()
    load_pretrained(ModelSource(str(tmp_path), None, torch.device("cpu")))
    assert "%|" not in capfd.readouterr().err


@pytest.mark.parametrize("save", BY_TRANSFORMERS)
def test_checkpoints_that_transformers_quantised(tmp_path: Path, save: Callable[[Path], nn.Module]) -> None:
    _assert_given(tmp_path, save(tmp_path))
