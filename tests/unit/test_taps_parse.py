"""Every way of naming layers against the ids that other systems use for the same states."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiddenfeed.errors import ConfigError
from hiddenfeed.taps import parse_taps


@pytest.mark.parametrize(
    ("spec", "num_blocks", "taps"),
    [
        ("0,15,30", 30, (0, 15, 30)),
        (" 15 , 0,30 ", 30, (0, 15, 30)),
        ("blocks:0,29", 30, (1, 30)),
        ("BLOCKS: 1,7", 30, (2, 8)),
        ("vllm:0,2,30", 30, (0, 2, 30)),
        ("hf:0,29", 30, (0, 29)),
        ("eagle3", 30, (2, 15, 27)),
        ("eagle3", 32, (2, 16, 29)),
        ("eagle3", 7, (2, 3, 4)),
        ("dflash:1", 30, (16,)),
        ("dflash:3", 36, (2, 18, 34)),
    ],
)
def test_a_specification_means_these_taps(spec: str, num_blocks: int, taps: tuple[int, ...]) -> None:
    assert parse_taps(spec, num_blocks).taps == taps


@pytest.mark.parametrize(
    ("num_blocks", "blocks"),
    [
        (28, (1, 7, 13, 19, 25)),
        (30, (1, 8, 14, 20, 27)),
        (32, (1, 8, 15, 22, 29)),
        (36, (1, 9, 17, 25, 33)),
        (40, (1, 10, 19, 28, 37)),
        (48, (1, 12, 23, 34, 45)),
        (64, (1, 16, 31, 46, 61)),
    ],
)
def test_dflash_is_five_outputs_of_blocks(num_blocks: int, blocks: tuple[int, ...]) -> None:
    expected = tuple(block + 1 for block in blocks)
    assert parse_taps("dflash", num_blocks).taps == expected
    assert parse_taps("dflash:5", num_blocks).taps == expected
    assert parse_taps("blocks:" + ",".join(map(str, blocks)), num_blocks).taps == expected


def test_meaning_names_the_ids_of_others() -> None:
    meaning = parse_taps("blocks:1,14,29", 30).meaning
    assert "states after 2, 15, 30 of 30 blocks" in meaning
    assert "vLLM ids 2, 15, 30" in meaning
    assert "block outputs 1, 14, 29" in meaning
    assert "hidden_states[2, 15]" in meaning
    assert "before the final norm" in meaning


@pytest.mark.parametrize(
    ("spec", "num_blocks", "reason"),
    [
        ("31", 30, r"31 is not a tap .* taps are 0\.\.30"),
        ("-1,2", 30, r"-1 is not a tap"),
        ("blocks:30", 30, r"30 is not a block id .*blocks:0\.\.29"),
        ("blocks:-1", 30, r"-1 is not a block id"),
        ("vllm:31", 30, r"31 is not a vLLM id .*vllm:0\.\.30"),
        ("hf:30", 30, r"hidden_states\[30\] of this model is after the final norm"),
        ("hf:31", 30, r"31 is not a transformers hidden_states index .*hf:0\.\.29"),
        ("2,2", 30, r"tap 2 more than once"),
        ("0-5", 30, r"write out every number of a range"),
        ("0..5", 30, r"write out every number of a range"),
        ("1,,2", 30, r"'' is not a number"),
        ("1,two", 30, r"'two' is not a number"),
        ("blocks:", 30, r"'' is not a number"),
        ("1e3", 30, r"'1e3' is not a number"),
        ("9999999999", 30, r"is not a number"),
        ("", 30, r"not understood"),
        ("layers:1", 30, r"not understood"),
        ("eagle", 30, r"not understood"),
        ("eagle3:4", 30, r"not understood"),
        ("dflash:0", 30, r"'0' is not a number of taps"),
        ("dflash:x", 30, r"'x' is not a number of taps"),
        ("eagle3", 6, r"too few"),
        ("eagle3", 2, r"need 5 blocks"),
        ("dflash", 4, r"need 5 blocks"),
        ("dflash", 7, r"too few"),
        ("1", 0, r"has no taps"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(spec: str, num_blocks: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_taps(spec, num_blocks)


@pytest.mark.parametrize("spec", ["31", "-1", "2,2", "blocks:30", "blocks:3,3", "vllm:31", "hf:-1", "hf:31"])
def test_a_number_that_cannot_be_is_refused_with_the_range_and_what_others_call_it(spec: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_taps(spec, 30)
    said = str(refused.value)
    assert said.startswith(f"taps {spec!r}")
    assert "taps are 0..30 (states after that many blocks)" in said
    assert "which is blocks:0..29 for taps 1..30, vllm:0..30, hf:0..29" in said


def _taps_or_reason(spec: str, num_blocks: int) -> tuple[tuple[int, ...], str]:
    try:
        return parse_taps(spec, num_blocks).taps, ""
    except ConfigError as error:
        return (), str(error)


@given(st.text(alphabet="0123456789,:-. blocksvmhfdaegi3x", max_size=30), st.integers(1, 100))
def test_any_text_gives_taps_in_range_or_a_config_error(spec: str, num_blocks: int) -> None:
    taps, reason = _taps_or_reason(spec, num_blocks)
    assert bool(taps) != bool(reason)
    assert list(taps) == sorted(set(taps))
    assert all(0 <= tap <= num_blocks for tap in taps)


@given(st.data(), st.integers(1, 200))
def test_conventions_agree_on_every_state(data: st.DataObject, num_blocks: int) -> None:
    taps = sorted(data.draw(st.sets(st.integers(1, num_blocks), min_size=1, max_size=6)))
    shuffled = data.draw(st.permutations(taps))
    canonical = parse_taps(",".join(map(str, shuffled)), num_blocks)
    assert canonical.taps == tuple(taps)
    assert parse_taps("vllm:" + ",".join(map(str, shuffled)), num_blocks) == canonical
    assert parse_taps("blocks:" + ",".join(str(tap - 1) for tap in shuffled), num_blocks) == canonical
    if num_blocks not in taps:
        assert parse_taps("hf:" + ",".join(map(str, shuffled)), num_blocks) == canonical


@given(st.integers(1, 300), st.integers(1, 12))
def test_presets_give_distinct_taps_before_the_last_block_or_are_refused(num_blocks: int, count: int) -> None:
    for spec, expected in (("eagle3", 3), (f"dflash:{count}", count)):
        taps, reason = _taps_or_reason(spec, num_blocks)
        if taps:
            assert len(taps) == expected
            assert 1 <= taps[0] <= taps[-1] <= max(num_blocks - 2, num_blocks // 2 + 1)
        else:
            assert re.search("too few|need 5 blocks", reason)
