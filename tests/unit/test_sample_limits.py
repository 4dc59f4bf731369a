"""From rows to samples: limits, masks, vocabulary, ids; each row ends as a sample or with its reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.settings.catalogue import DataSettings
from hiddenfeed.errors import ConfigError
from producer.rows import Content, Conversation, RowError, Text, Tokens
from producer.sample_ids import SampleIds
from producer.samples import Sample, SampleMaker
from producer.sources import SkippedRow, SourceRow
from tests.tiny_chat import CHATML, VOCABULARY, loss_spans, tiny_tokenizer

TALK = Conversation([{"role": "user", "content": "you"}, {"role": "assistant", "content": "fine"}])


def make(*contents: Content, **settings: Any) -> list[Sample | SkippedRow]:
    data = DataSettings(**settings)
    maker = SampleMaker(tiny_tokenizer(), loss_spans(CHATML, data.loss_mask), VOCABULARY, data)
    return maker.make([SourceRow("d", row, None, content) for row, content in enumerate(contents)])


def reason(result: Sample | SkippedRow) -> str:
    assert isinstance(result, SkippedRow)
    return result.reason


def masked(result: Sample | SkippedRow) -> list[int]:
    assert isinstance(result, Sample)
    assert result.mask.dtype == np.uint8
    assert result.ids.dtype == np.int32
    assert len(result.mask) == len(result.ids)
    return result.mask.tolist()  # type: ignore[no-any-return]


def tokens(*ids: int, mask: list[int] | None = None) -> Tokens:
    return Tokens(np.array(ids, np.int32), None if mask is None else np.array(mask, np.uint8))


def test_kinds_may_be_mixed_and_keep_their_order() -> None:
    skipped = SkippedRow("d", 1, "x", "bad")
    maker = SampleMaker(
        tiny_tokenizer(), loss_spans(CHATML, "all"), VOCABULARY, DataSettings(loss_mask="all")
    )
    rows: list[SourceRow | SkippedRow] = [
        SourceRow("d", 0, None, Text("hello")),
        skipped,
        SourceRow("d", 2, "t", tokens(5)),
        SourceRow("d", 3, None, TALK),
    ]
    results = maker.make(rows)
    assert results[1] is skipped
    assert [result.sample_id for result in results if isinstance(result, Sample)] == ["row-0", "t", "row-3"]
    assert [result.source_row for result in results] == [0, 1, 2, 3]


def test_a_conversation_that_is_refused_does_not_disturb_its_neighbours() -> None:
    first, second, third = make(TALK, Conversation([{"role": "user", "content": "x"}]), TALK)
    assert masked(first) == masked(third)
    assert "no assistant's turn" in reason(second)


def test_text_needs_to_be_asked_for_whole() -> None:
    assert "--loss-mask all takes every token" in reason(make(Text("hello"))[0])
    (sample,) = make(Text("hello"), loss_mask="all")
    assert set(masked(sample)) == {1}


def test_bos_is_added_to_text_once_and_to_conversations_never() -> None:
    bos = 0
    plain, own, chat = make(Text("hello"), Text("<s>hello"), TALK, loss_mask="all")
    assert isinstance(plain, Sample)
    assert isinstance(own, Sample)
    assert isinstance(chat, Sample)
    assert plain.ids.tolist() == own.ids.tolist()
    assert plain.ids.tolist().count(bos) == 1
    assert bos not in chat.ids


def test_eos_is_not_doubled_at_the_end() -> None:
    once, twice = make(Text("hello</s>"), Text("hello</s></s>"), loss_mask="all")
    assert isinstance(once, Sample)
    assert isinstance(twice, Sample)
    assert once.ids.tolist() == twice.ids.tolist()


def test_given_tokens_take_their_mask_or_none() -> None:
    given_mask, none, zero = make(tokens(1, 2, mask=[0, 1]), tokens(1, 2), tokens(1, 2, mask=[0, 0]))
    assert masked(given_mask) == [0, 1]
    assert "input_ids came without loss_mask or labels" in reason(none)
    assert "the loss mask is 0 everywhere" in reason(zero)
    assert [masked(result) for result in make(tokens(1, 2), tokens(3, 4, mask=[0, 0]), loss_mask="all")] == [
        [1, 1]
    ] * 2
    assert "last-turn needs messages" in reason(make(tokens(1, 2, mask=[0, 1]), loss_mask="last-turn")[0])


def test_ids_outside_the_vocabulary_are_refused_wherever_they_are() -> None:
    inside, outside = make(tokens(0, VOCABULARY - 1), tokens(1, 2, VOCABULARY), loss_mask="all")
    assert masked(inside) == [1, 1]
    assert (
        reason(outside)
        == f"token id {VOCABULARY} at position 2 is outside the model's vocabulary of {VOCABULARY}"
    )
    # Even where truncation would cut it off: the row is not what it says it is.
    assert "outside the model's vocabulary" in reason(
        make(tokens(1, 2, VOCABULARY), max_length=2, loss_mask="all")[0]
    )


def test_length_limits() -> None:
    short, exact, long = make(
        tokens(1), tokens(1, 2), tokens(1, 2, 3), min_length=2, max_length=2, loss_mask="all"
    )
    assert reason(short) == "1 tokens are fewer than --min-length 2"
    assert masked(exact) == masked(long) == [1, 1]
    assert isinstance(exact, Sample)
    assert isinstance(long, Sample)
    assert (exact.truncated, long.truncated) == (False, True)
    dropped = make(tokens(1, 2, 3), max_length=2, overlength="drop", loss_mask="all")[0]
    assert reason(dropped) == "3 tokens are more than --max-length 2"


def test_truncation_that_leaves_nothing_to_predict_is_a_skip() -> None:
    cut, kept = make(tokens(1, 2, 3, mask=[0, 0, 1]), tokens(1, 2, 3, mask=[0, 1, 1]), max_length=2)
    assert reason(cut) == "no token is to be predicted within --max-length 2, of 3 tokens"
    assert masked(kept) == [0, 1]


def test_a_model_without_a_template_is_an_error_once_a_conversation_comes() -> None:
    maker = SampleMaker(tiny_tokenizer(), None, VOCABULARY, DataSettings(loss_mask="all"))
    assert isinstance(maker.make([SourceRow("d", 0, None, Text("x"))])[0], Sample)
    with pytest.raises(ConfigError, match="no chat template: give one with --chat-template FILE"):
        maker.make([SourceRow("d", 1, None, TALK)])


# --- ids ---


def test_the_second_of_two_equal_ids_is_skipped() -> None:
    maker = SampleMaker(tiny_tokenizer(), None, VOCABULARY, DataSettings(loss_mask="all"))
    rows = [SourceRow("d", row, name, tokens(1)) for row, name in enumerate(["a", "b", "a"])]
    results = maker.make(rows[:2]) + maker.make(rows[2:])
    assert reason(results[2]) == "id 'a' is taken by an earlier row"
    assert isinstance(results[2], SkippedRow)
    assert results[2].sample_id == "a"


def test_a_row_that_is_skipped_does_not_take_its_id() -> None:
    maker = SampleMaker(tiny_tokenizer(), None, VOCABULARY, DataSettings())
    bad, good = SourceRow("d", 0, "a", tokens(1)), SourceRow("d", 1, "a", tokens(1, mask=[1]))
    assert [type(result) for result in maker.make([bad, good])] == [SkippedRow, Sample]


@given(
    st.lists(
        st.one_of(st.none(), st.integers(0, 12).map(lambda n: f"row-{n}"), st.sampled_from("ab")), max_size=20
    )
)
def test_ids_are_unique_whatever_rows_call_themselves(own: list[str | None]) -> None:
    ids, given_out = SampleIds(), []
    for row, name in enumerate(own):
        try:
            given_out.append(ids.claim(row, name))
        except RowError:
            assert (name or f"row-{row}") in given_out
    assert len(set(given_out)) == len(given_out)
