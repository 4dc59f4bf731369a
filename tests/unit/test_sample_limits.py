"""From rows to samples: limits, masks, vocabulary, ids; each row ends as a sample or with its reason."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.settings.catalogue import DataSettings
from hiddenfeed.errors import ConfigError
from producer.digest_set import DigestSet
from producer.duplicates import Duplicates
from producer.loss_spans import mode_of
from producer.report import tally_lines
from producer.rows import Content, Conversation, SkippedRow, SourceRow, Text, Tokens
from producer.samples import Sample, SampleMaker
from producer.tally import Tally
from tests.tiny_chat import CHATML, VOCABULARY, loss_spans, pretrained, tiny_tokenizer

TALK = Conversation([{"role": "user", "content": "you"}, {"role": "assistant", "content": "fine"}])


def make(*contents: Content, **limits: Any) -> list[Sample | SkippedRow]:
    data = DataSettings(**limits)
    spans = loss_spans(CHATML, mode_of(data.loss_mask))
    maker = SampleMaker(tiny_tokenizer(), spans, VOCABULARY, data)
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


def test_arguments_of_calls_are_objects_for_templates_that_take_them_and_text_for_others() -> None:
    def call(arguments: Any) -> Conversation:
        made = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        turn = {"role": "assistant", "content": "", "tool_calls": [made]}
        return Conversation([{"role": "user", "content": "hi"}, turn])

    def decoded(template: str, *arguments: Any) -> list[str]:
        maker = SampleMaker(tiny_tokenizer(), loss_spans(template), VOCABULARY, DataSettings())
        rows = [SourceRow("d", number, None, call(given)) for number, given in enumerate(arguments)]
        made = maker.make(rows)
        return [pretrained().decode(sample.ids) for sample in made if isinstance(sample, Sample)]

    shown = "message.tool_calls[0].function.name + ARGUMENTS if message.tool_calls else ''"
    said = CHATML.replace("+ message.content +", f"+ message.content + ({shown}) +")
    dumped = said.replace("ARGUMENTS", "(message.tool_calls[0].function.arguments | tojson)")
    pasted = said.replace("ARGUMENTS", "message.tool_calls[0].function.arguments")
    texts = decoded(dumped, {"x": 1}, '{"x": 1}', "", "f(1)", "[1]")
    assert texts[0] == texts[1]
    assert '{"x": 1}<|im_end|>' in texts[0]
    assert [text.partition("assistant\n")[2] for text in texts[2:]] == [
        "f{}<|im_end|>\n", 'f"f(1)"<|im_end|>\n', 'f"[1]"<|im_end|>\n',
    ]  # fmt: skip
    assert '{"x":  1}<|im_end|>' in decoded(pasted, '{"x":  1}')[0]


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


def test_ends_that_given_tokens_have_twice_stay_once_with_their_mask_and_are_counted() -> None:
    bos, eos = 0, 1
    double, single, padded = make(
        tokens(bos, bos, 5, eos, eos, mask=[1, 0, 0, 1, 0]),
        tokens(bos, 5, bos, bos, eos, mask=[0, 0, 0, 0, 1]),
        tokens(bos, 5, eos, eos, eos, mask=[0, 1, 0, 0, 0]),
    )
    assert isinstance(double, Sample)
    assert (double.ids.tolist(), double.mask.tolist(), double.undoubled) == ([bos, 5, eos], [0, 0, 1], True)
    assert isinstance(single, Sample)
    assert (len(single.ids), single.undoubled) == (5, False)
    assert isinstance(padded, Sample)
    assert (padded.ids.tolist(), padded.mask.tolist()) == ([bos, 5, eos], [0, 1, 0])
    tally = Tally()
    for sample in (double, single, padded):
        tally.add(sample)
    # The first lost two, the last two as well.
    said = "2 samples began with BOS or ended with EOS more than once; one of each is kept"
    assert said in tally_lines(tally)


# --- texts that are much longer than what is kept of them ---


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.text("ab é\n0<|im_start|>", min_size=1, max_size=20)
        | st.sampled_from(["<s>", " hello", " assistant", " thanks", " answer", "x" * 90]),
        min_size=20,
        max_size=60,
    )
)
def test_the_beginning_of_a_long_text_has_the_tokens_of_the_whole(pieces: list[str]) -> None:
    tokenizer, text = tiny_tokenizer(), " how are you" + "".join(pieces)
    span = [(len(text) // 50, len(text))]
    (whole,) = tokenizer.encode_chats([text], [span], 10**6)
    assert whole.whole
    for limit in range(1, 25):
        # So short a beginning that its end would change the tokens that are kept, were they not waited for.
        with patch("producer.tokenizer._CHARACTERS_PER_TOKEN", 1), patch("producer.tokenizer._SPARE", 1):
            (part,) = tokenizer.encode_chats([text], [span], limit)
        kept = len(whole.ids) if part.whole else limit + 1
        assert part.ids.tolist() == whole.ids.tolist()[:kept]
        assert part.mask.tolist() == whole.mask.tolist()[:kept]


def test_a_word_without_end_is_tokenised_as_far_as_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    tokenizer = tiny_tokenizer()

    class Counting:
        def __init__(self, core: Any) -> None:
            self.encode_batch = core.encode_batch
            self._core = core

        def encode(self, text: str, **options: Any) -> Any:
            asked.append(len(text))
            return self._core.encode(text, **options)

    tokenizer.core = Counting(tokenizer.core)
    word = "ab" * 500_000
    (encoded,) = tokenizer.encode_chats([word], [[(3, len(word))]], 100)
    assert (len(encoded.ids), encoded.whole, encoded.mask.tolist().count(0)) == (101, False, 3)
    assert sum(asked) < 10_000


def test_what_is_said_of_a_text_that_was_not_tokenised_whole() -> None:
    talk = Conversation([{"role": "user", "content": "hello " * 9000}, {"role": "assistant", "content": "x"}])
    cut, dropped = make(talk, max_length=50)[0], make(talk, max_length=50, overlength="drop")[0]
    assert reason(cut).startswith(
        "0 tokens to be predicted within --max-length 50, of at least 51, are fewer"
    )
    assert reason(dropped) == "at least 51 tokens are more than --max-length 50"


def test_given_tokens_take_their_mask_or_none() -> None:
    given_mask, none, zero = make(tokens(1, 2, mask=[0, 1]), tokens(1, 2), tokens(1, 2, mask=[0, 0]))
    assert masked(given_mask) == [0, 1]
    assert "input_ids came without loss_mask or labels" in reason(none)
    assert reason(zero) == "0 tokens to be predicted are fewer than --min-loss-tokens 1"
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
    assert reason(short) == "1 token is fewer than --min-length 2"
    assert masked(exact) == masked(long) == [1, 1]
    assert isinstance(exact, Sample)
    assert isinstance(long, Sample)
    assert (exact.truncated, long.truncated) == (False, True)
    dropped = make(tokens(1, 2, 3), max_length=2, overlength="drop", loss_mask="all")[0]
    assert reason(dropped) == "3 tokens are more than --max-length 2"


def test_truncation_that_leaves_nothing_to_predict_is_a_skip() -> None:
    cut, kept = make(tokens(1, 2, 3, mask=[0, 0, 1]), tokens(1, 2, 3, mask=[0, 1, 1]), max_length=2)
    assert (
        reason(cut)
        == "0 tokens to be predicted within --max-length 2, of 3, are fewer than --min-loss-tokens 1"
    )
    assert masked(kept) == [0, 1]


def test_a_model_without_a_template_is_an_error_once_a_conversation_comes() -> None:
    maker = SampleMaker(tiny_tokenizer(), None, VOCABULARY, DataSettings(loss_mask="all"))
    assert isinstance(maker.make([SourceRow("d", 0, None, Text("x"))])[0], Sample)
    with pytest.raises(ConfigError, match="no chat template: give one with --chat-template FILE"):
        maker.make([SourceRow("d", 1, None, TALK)])


def test_fewest_tokens_to_be_predicted() -> None:
    rows = tokens(1, 2, 3, mask=[1, 1, 0]), tokens(1, 2, 3, mask=[0, 1, 0]), tokens(1, 2, 3, mask=[1, 0, 1])
    kept, few, cut = make(*rows, min_loss_tokens=2, max_length=2)
    assert masked(kept) == [1, 1]
    assert "1 token to be predicted within --max-length 2, of 3, is fewer than" in reason(few)
    assert isinstance(cut, SkippedRow)
    assert cut.cause == "too few loss tokens"


def test_each_filter_is_told_by_its_cause() -> None:
    results = make(
        tokens(1, mask=[1]), tokens(1, 2), tokens(VOCABULARY, 1, mask=[1, 1]), tokens(1, 2, mask=[0, 0]), tokens(1, 2, 3, mask=[1, 1, 1]),
        Text("x"), Conversation([{"role": "user", "content": "x"}]),
        min_length=2, max_length=2, overlength="drop",
    )  # fmt: skip
    causes = [result.cause if isinstance(result, SkippedRow) else "kept" for result in results]
    assert causes == [
        "too short", "no loss mask", "outside the vocabulary", "too few loss tokens", "too long", "no loss mask", "not rendered",
    ]  # fmt: skip


# --- duplicates ---


def sample(row: int, name: str | None = None, ids: tuple[int, ...] = (1,), mask: int = 1) -> Sample:
    own = name if name is not None else f"row-{row}"
    return Sample(own, row, np.array(ids, np.int32), np.full(len(ids), mask, np.uint8))


def outcomes(duplicates: Duplicates, *samples: Sample | SkippedRow) -> list[str]:
    checked = (duplicates.check("d", made) for made in samples)
    return [result.cause if isinstance(result, SkippedRow) else "kept" for result in checked]


def test_the_second_of_two_equal_ids_is_skipped_and_says_how_not_to_be() -> None:
    duplicates = Duplicates(by_content=False)
    assert outcomes(duplicates, sample(0, "a"), sample(1, "b")) == ["kept", "kept"]
    again = duplicates.check("d.jsonl", sample(2, "a", ids=(5,)))
    assert isinstance(again, SkippedRow)
    assert again.reason == "id 'a' is taken by an earlier row; --columns id= numbers the rows instead"
    assert (again.file, again.source_row, again.sample_id) == ("d.jsonl", 2, "a")


def test_equal_content_is_skipped_if_asked() -> None:
    samples = [
        sample(0, ids=(1, 2)), sample(1, ids=(1, 2)), sample(2, ids=(1, 2), mask=0), sample(3, ids=(1,)), sample(4, ids=(1, 2)),
    ]  # fmt: skip
    assert outcomes(Duplicates(by_content=False), *samples) == ["kept"] * 5
    assert outcomes(Duplicates(by_content=True), *samples) == [
        "kept", "duplicate content", "kept", "kept", "duplicate content",
    ]  # fmt: skip


def test_a_row_that_is_skipped_does_not_take_its_id() -> None:
    bad = SkippedRow("d", 0, "a", "broken")
    samples: list[Sample | SkippedRow] = [
        bad,
        sample(1, "a"),
        sample(2, "b"),
        sample(3, "c", ids=(9,)),
        sample(4, "b", ids=(7,)),
    ]
    # Row 2 repeats row 1's content, so that its id is free for row 4.
    assert outcomes(Duplicates(by_content=True), *samples) == [
        "malformed", "kept", "duplicate content", "kept", "kept",
    ]  # fmt: skip


@given(
    st.lists(
        st.one_of(st.none(), st.integers(0, 12).map(lambda n: f"row-{n}"), st.sampled_from("ab")), max_size=20
    )
)
def test_ids_are_unique_whatever_rows_call_themselves(own: list[str | None]) -> None:
    duplicates, given_out = Duplicates(by_content=False), set()
    for row, name in enumerate(own):
        result = duplicates.check("d", sample(row, name))
        assert isinstance(result, SkippedRow) == (result.sample_id in given_out)
        given_out.add(result.sample_id)


def test_a_digest_set_is_a_set_however_it_grows_and_collides() -> None:
    random, seen, digests = np.random.default_rng(0), set(), DigestSet()
    for number in range(20_000):
        # Few low bits, so that many begin their search at one place.
        digest = (int(random.integers(1, 9_000)) << 8).to_bytes(8, "little") + (number % 2).to_bytes(
            8, "little"
        )
        assert (digest in digests) == (digest in seen)
        assert digests.add(digest) == (digest not in seen)
        seen.add(digest)
    assert len(digests) == len(seen)
