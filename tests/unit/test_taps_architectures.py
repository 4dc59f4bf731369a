"""Every tap of every architecture against an independent forward of the whole model, sample by sample."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gpu_worker.agreement import compare, tolerance_for
from gpu_worker.structure import dissect
from gpu_worker.taps import Selection, StateRows, TapModel
from hiddenfeed.errors import ConfigError
from tests.tiny_models import BLOCKS, CONFIGS, HIDDEN, MIXTURES, VOCABULARY, WITHOUT_EMBEDDINGS, make_model

LENGTHS = (23, 17, 17, 9, 1)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _samples() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, VOCABULARY, (length,), generator=generator) for length in LENGTHS]


def _padded(samples: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.full((len(samples), len(samples[0])), 7)
    for row, sample in enumerate(samples):
        ids[row, : len(sample)] = sample
    is_real = torch.arange(ids.shape[1]) < torch.tensor([len(sample) for sample in samples])[:, None]
    return ids, is_real.flatten().nonzero().flatten()


def _reference(model: nn.Module, samples: list[torch.Tensor]) -> list[torch.Tensor]:
    """transformers' own hidden states, one sample at a time: n + 1 tensors of [T, H], the last one normed."""
    whole: Any = model
    with torch.inference_mode():
        outputs = [
            whole(input_ids=sample[None], output_hidden_states=True, use_cache=False).hidden_states
            for sample in samples
        ]
        if whole.config.model_type in WITHOUT_EMBEDDINGS:
            embed = whole.get_input_embeddings()
            # The last but one is the last one before its norm.
            outputs = [
                (embed(sample[None]), *output[:-2], output[-1])
                for sample, output in zip(samples, outputs, strict=True)
            ]
    return [torch.cat([output[tap][0] for output in outputs]).float() for tap in range(BLOCKS + 1)]


def _extract(model: TapModel, samples: list[torch.Tensor], dtype: torch.dtype) -> StateRows:
    ids, real = _padded(samples)
    rows = sum(LENGTHS)
    final = torch.empty(rows, HIDDEN, dtype=dtype) if model.selection.final_state != "none" else None
    taken = StateRows(torch.empty(rows, len(model.selection.taps), HIDDEN, dtype=dtype), final, real)
    model.forward(ids, taken)
    return taken


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", CONFIGS)
def test_taps_equal_the_whole_model(architecture: str, dtype: str) -> None:
    model = make_model(architecture, DTYPES[dtype])
    samples = _samples()
    reference = _reference(model, samples)
    parts = dissect(model)
    norm = copy.deepcopy(parts.norm)
    assert norm is not None
    taps = TapModel(parts, Selection(tuple(range(BLOCKS + 1)), "post"))
    taken = _extract(taps, samples, DTYPES[dtype])

    states = taken.hidden_states.float()
    with torch.inference_mode():
        normed = norm(taken.hidden_states[:, BLOCKS]).float()
    ours = torch.stack([*(states[:, tap] for tap in range(BLOCKS)), normed], dim=1).numpy()
    median = architecture in MIXTURES and dtype != "float32"
    agreement = compare(ours, torch.stack(reference, dim=1).numpy(), median=median)
    assert agreement.worst(tolerance_for([dtype], median=median)) is None, agreement
    if dtype == "float32":
        assert max(agreement.errors) < 2e-5, agreement

    assert taken.final is not None
    # State-space models keep the stream between blocks in float32, and norm it before it is rounded.
    within = 2**-6 if architecture in WITHOUT_EMBEDDINGS and dtype != "float32" else 0.0
    np.testing.assert_allclose(taken.final.float().numpy(), normed.numpy(), rtol=within, atol=within)
    _assert_neighbours_would_be_noticed(ours, torch.stack(reference, dim=1).numpy(), dtype)


def _assert_neighbours_would_be_noticed(ours: Any, reference: Any, dtype: str) -> None:
    """The same comparison, one tap off, must fail for every tap: else this test proves nothing."""
    for tap in range(1, BLOCKS + 1):
        shifted = compare(ours[:, tap : tap + 1], reference[:, tap - 1 : tap], median=False)
        assert shifted.worst(tolerance_for([dtype], median=False)) == 0, tap


@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("final_state", ["none", "pre"])
def test_truncation_changes_no_bit(architecture: str, final_state: str) -> None:
    samples = _samples()
    selection = Selection((0, 1, 3), final_state)
    whole = _extract(TapModel(dissect(make_model(architecture)), selection), samples, torch.float32)

    parts = dissect(make_model(architecture))
    model = TapModel(parts, selection)
    model.truncate()
    assert parts.num_blocks == (BLOCKS if final_state == "pre" else 3)
    truncated = _extract(model, samples, torch.float32)
    assert torch.equal(truncated.hidden_states, whole.hidden_states)
    if final_state == "pre":
        assert truncated.final is not None
        assert whole.final is not None
        assert torch.equal(truncated.final, whole.final)


def test_a_model_that_passes_over_blocks_or_runs_them_twice_is_refused() -> None:
    """As some do without a picture, or in loops: nothing would be there for a tap, or something else."""
    for wrong, came in (
        (lambda blocks: blocks[:2], 1),
        (lambda blocks: [blocks[0], blocks[0], *blocks[2:]], 3),
    ):
        model: Any = make_model("llama")
        parts = dissect(model)
        taps = TapModel(parts, Selection((1, 3)))
        whole: Any = parts.decoder.layers
        parts.decoder.layers = nn.ModuleList(wrong([*whole]))
        with pytest.raises(ConfigError, match=rf"^{came} states? came where 2 were wanted"):
            _extract(taps, _samples(), torch.float32)


def test_truncated_blocks_are_freed() -> None:
    model = make_model("llama")
    before = sum(weight.numel() for weight in model.parameters())
    taps = TapModel(dissect(model), Selection((1,)))
    taps.truncate()
    left = {name for name, _ in model.named_parameters() if ".layers." in name}
    assert left
    assert all(".layers.0." in name for name in left)
    assert sum(weight.numel() for weight in model.parameters()) < before


def test_hooks_are_taken_off_again() -> None:
    model = TapModel(dissect(make_model("llama")), Selection((0, 2)))
    model.release()
    for block in model.parts.blocks:
        assert not block._forward_hooks
        assert not block._forward_pre_hooks


@pytest.mark.parametrize("taps", [(5,), (0, 9), (-1, 2)])
def test_taps_out_of_range_are_refused(taps: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"not all in 0\.\.4 of a model with 4 blocks"):
        TapModel(dissect(make_model("llama")), Selection(taps))


def test_encoder_decoder_is_refused() -> None:
    import transformers

    config = transformers.T5Config(
        vocab_size=32, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    with pytest.raises(ConfigError, match="encoder-decoder"):
        dissect(transformers.T5ForConditionalGeneration(config))


def test_model_without_recognisable_blocks_is_refused() -> None:
    model = make_model("llama")
    model.config.num_hidden_layers = 7  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="list of 7 decoder blocks"):
        dissect(model)
