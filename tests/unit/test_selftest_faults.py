"""The start-up self-test: passes on a healthy model, and finds each of the faults it is there for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gpu_worker.agreement import tolerance_for
from gpu_worker.selftest import SAMPLES, TOKENS, SelfTest, probe, probe_among
from gpu_worker.structure import DecoderParts, dissect
from gpu_worker.taps import Selection, TapModel
from gpu_worker.tokens import TokenBatch
from hiddenfeed.errors import ConfigError
from tests.tiny_models import CONFIGS, MIXTURES, VOCABULARY, make_model


def _batch(lengths: list[int]) -> TokenBatch:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    random = np.random.default_rng(0)
    return TokenBatch(
        batch_id=0,
        source_rows=np.arange(len(lengths)),
        input_ids=random.integers(3, VOCABULARY, offsets[-1]).astype(np.int32),
        loss_mask=np.zeros(offsets[-1], np.uint8),
        offsets=offsets,
        micro_batches=np.array([0, len(lengths)]),
    )


SAMPLES_OF_RUN = _batch([40, 30, 22, 9, 4])


def _run(
    parts: DecoderParts,
    selection: Selection,
    *,
    dtype: str = "float32",
    taken: Selection | None = None,
    **kind: Any,
) -> Any:
    """Self-test of `selection`, with a model that takes `taken` (the same, unless a fault is wanted)."""
    test = SelfTest(parts, selection, probe(SAMPLES_OF_RUN, VOCABULARY, 256))
    model = TapModel(parts, taken or selection)
    model.truncate()
    for name, value in kind.items():
        setattr(model, name, value(model))
    result = test.run(model, getattr(torch, dtype), tolerance_for([dtype], median=model.is_mixture))
    assert min(result.agreement.cosines) > 0.99
    return result.norms


@pytest.mark.parametrize("final_state", ["none", "pre", "post"])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_healthy_models_pass(architecture: str, final_state: str) -> None:
    taps = (0, 2) if final_state == "none" else (1, 4)
    baseline = _run(dissect(make_model(architecture)), Selection(taps, final_state))
    assert baseline.shape == (2 if final_state == "none" else 3,)
    assert (baseline > 0).all()


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe", "qwen3_5_text"])
def test_healthy_models_pass_in_low_precision(architecture: str) -> None:
    assert (architecture in MIXTURES) == (architecture == "qwen3_moe")
    model = make_model(architecture, torch.bfloat16)
    _run(dissect(model), Selection((1, 2, 3)), dtype="bfloat16")


def test_tap_that_is_one_off() -> None:
    parts = dissect(make_model("llama", torch.bfloat16))
    with pytest.raises(ConfigError, match="self-test failed: tap 3 of a padded batch is not what"):
        _run(parts, Selection((1, 3)), dtype="bfloat16", taken=Selection((1, 2)))


def test_norm_too_much() -> None:
    parts = dissect(make_model("llama"))
    norm = parts.norm
    assert norm is not None

    def normed(model: TapModel) -> Any:
        healthy = model.forward

        def forward(ids: Any, rows: Any) -> None:
            healthy(ids, rows)
            rows.hidden_states[:, -1] = norm(rows.hidden_states[:, -1])

        return forward

    with pytest.raises(ConfigError, match="self-test failed: tap 4"):
        _run(parts, Selection((1, 4)), forward=normed)
    with pytest.raises(ConfigError, match="self-test failed: tap 2"):
        _run(dissect(make_model("llama")), Selection((1, 2)), forward=normed)


def test_leak_through_padding() -> None:
    parts = dissect(make_model("llama"))
    for block in parts.blocks:
        # Attention that looks to the right meets the padding.
        block.self_attn.is_causal = False  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="self-test failed"):
        _run(parts, Selection((2,)))


def test_states_of_another_sample() -> None:
    def swapped(model: TapModel) -> Any:
        healthy = model.forward

        def forward(ids: Any, rows: Any) -> None:
            healthy(ids.roll(1, 0), rows)

        return forward

    with pytest.raises(ConfigError, match="self-test failed"):
        _run(dissect(make_model("llama")), Selection((2,)), forward=swapped)


def test_weights_that_are_not_finite() -> None:
    model = make_model("llama")
    with torch.no_grad():
        next(dissect(model).blocks[1].parameters())[0] = float("nan")
    with pytest.raises(ConfigError, match="not finite for tap 2: its weights are broken"):
        _run(dissect(model), Selection((1, 2)))


@pytest.mark.parametrize("whole", [True, False])
def test_a_model_whose_code_raises_is_one_sentence(whole: bool) -> None:
    """Whole, or only as we run it: without its last blocks and its norm."""
    parts = dissect(make_model("llama"))

    def fault(module: Any, *arguments: Any) -> None:
        raise KeyError("a part\n that is gone")

    if whole:
        parts.blocks[0].register_forward_pre_hook(fault)
    reason = "^model of the test cannot be run as hiddenfeed does: .*a part.* that is gone"
    with pytest.raises(ConfigError, match=reason) as caught:
        _run(parts, Selection((1,)), forward=lambda model: fault)
    assert "\n" not in str(caught.value)


def test_a_model_whose_blocks_hand_over_something_else_is_refused() -> None:
    def narrow(model: TapModel) -> Any:
        model.parts.blocks[0].register_forward_hook(
            lambda module, given, state: state[..., :-1], prepend=True
        )
        return model.hidden_size

    with pytest.raises(ConfigError, match=r"shape \[3, 40, 31\] where \[batch, tokens, 32\] was expected"):
        _run(dissect(make_model("llama")), Selection((1,)), hidden_size=narrow)


def test_state_too_large_for_the_stored_dtype() -> None:
    """float16 ends at 65504: states beyond it must not be stored as infinite."""
    model = make_model("llama")
    with torch.no_grad():
        dissect(model).decoder.get_parameter("embed_tokens.weight").mul_(1e7)
    with pytest.raises(ConfigError, match="self-test failed: tap 0"):
        _run(dissect(model), Selection((0, 1)), dtype="float16")


def test_probe_takes_a_few_short_pieces_of_different_length() -> None:
    samples = probe(_batch([500, 400, 300, 200, 190]), VOCABULARY, None)
    assert samples.samples == SAMPLES
    assert samples.lengths.tolist() == [TOKENS, TOKENS - 50, TOKENS - 100]
    assert samples.source_rows.tolist() == [0, 2, 4]


def test_probe_has_no_sample_of_a_few_tokens_where_there_are_others() -> None:
    assert probe(_batch([40, 30, 20, 3]), VOCABULARY, None).source_rows.tolist() == [0, 1, 2]
    assert probe(_batch([40, 3]), VOCABULARY, None).source_rows.tolist() == [0, 1]


def test_probe_of_a_single_sample() -> None:
    samples = probe(_batch([1]), VOCABULARY, 256)
    assert samples.lengths.tolist() == [1]


def test_probe_passes_over_samples_that_the_model_does_not_know() -> None:
    batch = _batch([40, 30, 20, 10])
    batch.input_ids[[5, 45]] = VOCABULARY, -1
    assert probe(batch, VOCABULARY, 25).source_rows.tolist() == [2, 3]
    assert probe(batch, VOCABULARY, 15).lengths.tolist() == [15, 1]
    batch.input_ids[[75, 95]] = VOCABULARY
    with pytest.raises(ConfigError, match="tokenizer and the model do not belong together"):
        probe(batch, VOCABULARY, 25)
    assert probe_among([batch, _batch([7, 5])], VOCABULARY, 25).lengths.tolist() == [7, 1]
    with pytest.raises(ConfigError, match=r"do not belong together \(looked at were 2 batches\)"):
        probe_among([batch, batch], VOCABULARY, 25)
    with pytest.raises(ConfigError, match="none of the run's batches can be read"):
        probe_among([], VOCABULARY, 25)
