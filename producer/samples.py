"""From rows to samples: tokens and loss masks within the limits, or the reason why not.

Works on a handful of rows at a time, so that the tokenizer's threads have enough to share. Each row
is judged by itself; what it may have in common with others is `producer.duplicates`' business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from common.settings.catalogue import DataSettings
from hiddenfeed.errors import ConfigError
from producer.loss_spans import LossSpans, RenderedChat
from producer.rows import Conversation, RowError, SkippedRow, SourceRow, Text, Tokens
from producer.said import LeftOut
from producer.tokenizer import Encoded, Ids, Mask, Tokenizer
from producer.turns import with_arguments_read


@dataclass(frozen=True)
class Sample:
    """One row ready to be planned: n token ids int32[n] and their loss mask uint8[n], n >= 1."""

    #: The row's own id, or `row-<n>`.
    sample_id: str
    source_row: int
    ids: Ids
    mask: Mask
    #: True if the row was longer than the limit and lost its end.
    truncated: bool = False
    #: True if BOS at its start or EOS at its end was there more than once, of which one was kept.
    undoubled: bool = False
    #: What of the row the chat template does not show.
    left_out: tuple[LeftOut, ...] = ()


class SampleMaker:
    """Turns rows into samples, in order; remembers nothing of them."""

    def __init__(
        self, tokenizer: Tokenizer, loss_spans: LossSpans | None, vocab_size: int, settings: DataSettings
    ) -> None:
        """`loss_spans` is None for a model without a chat template; of the settings the limits and the mask count."""
        self._tokenizer, self._loss_spans = tokenizer, loss_spans
        self._vocab_size, self._settings = vocab_size, settings

    def make(self, rows: Sequence[SourceRow | SkippedRow]) -> list[Sample | SkippedRow]:
        """One result per row, in the rows' order.

        Raises ConfigError if there are conversations and no chat template to render them.
        """
        rendered: dict[int, RenderedChat | RowError] = {}
        for place, row in enumerate(rows):
            if isinstance(row, SourceRow) and isinstance(row.content, Conversation):
                rendered[place] = _tried(self._render, row.content)
        tokens: dict[int, Encoded | RowError] = {
            place: chat for place, chat in rendered.items() if isinstance(chat, RowError)
        }
        tokens |= self._encode_chats(
            {place: chat for place, chat in rendered.items() if isinstance(chat, RenderedChat)}
        )
        tokens |= self._encode_texts(rows)
        results: list[Sample | SkippedRow] = []
        for place, row in enumerate(rows):
            if isinstance(row, SourceRow):
                chat = rendered.get(place)
                missing = chat.left_out if isinstance(chat, RenderedChat) else ()
                results.append(self._sample(row, tokens.get(place), missing))
            else:
                results.append(row)
        return results

    def _render(self, conversation: Conversation) -> RenderedChat:
        if self._loss_spans is None:
            raise ConfigError(
                "the model's tokenizer has no chat template: give one with --chat-template FILE"
            )
        read = with_arguments_read(conversation)
        if read is conversation:
            return self._loss_spans.find(conversation)
        try:
            return self._loss_spans.find(read)
        except RowError:
            # Some templates put arguments down as they are, and want them as text.
            return self._loss_spans.find(conversation)

    def _encode_chats(self, chats: dict[int, RenderedChat]) -> dict[int, Encoded]:
        if not chats:
            return {}
        texts, spans = [chat.text for chat in chats.values()], [chat.spans for chat in chats.values()]
        encoded = self._tokenizer.encode_chats(texts, spans, self._settings.max_length)
        return dict(zip(chats, encoded, strict=True))

    def _encode_texts(self, rows: Sequence[SourceRow | SkippedRow]) -> dict[int, Encoded | RowError]:
        texts = {
            place: row.content.text
            for place, row in enumerate(rows)
            if isinstance(row, SourceRow) and isinstance(row.content, Text)
        }
        if self._settings.loss_mask != "all":
            error = RowError(
                "plain text has no assistant's turns; --loss-mask all takes every token", "no loss mask"
            )
            return dict.fromkeys(texts, error)
        limit = self._settings.max_length
        encoded = self._tokenizer.encode_texts(list(texts.values()), limit) if texts else []
        return dict(zip(texts, encoded, strict=True))

    def _sample(
        self, row: SourceRow, encoded: Encoded | RowError | None, missing: tuple[LeftOut, ...]
    ) -> Sample | SkippedRow:
        try:
            if isinstance(encoded, RowError):
                raise encoded
            if encoded is None:
                assert isinstance(row.content, Tokens)
                encoded = self._given(row.content)
            name = row.sample_id if row.sample_id is not None else f"row-{row.source_row}"
            sample = Sample(
                name, row.source_row, encoded.ids, encoded.mask, undoubled=encoded.undoubled, left_out=missing
            )
            return self._within_limits(sample, whole=encoded.whole)
        except RowError as error:
            return SkippedRow(row.file, row.source_row, row.sample_id, str(error), error.cause)

    def _given(self, tokens: Tokens) -> Encoded:
        """Ids that came tokenised, with the mask that the settings ask for."""
        return self._tokenizer.without_double_ends(Encoded(tokens.ids, self._given_mask(tokens)))

    def _given_mask(self, tokens: Tokens) -> Mask:
        if self._settings.loss_mask == "all":
            return np.ones(len(tokens.ids), np.uint8)
        if tokens.mask is None:
            raise RowError(
                "input_ids came without loss_mask or labels, so nothing says what is to be predicted; "
                "--loss-mask all takes every token",
                "no loss mask",
            )
        if self._settings.loss_mask == "last-turn":
            raise RowError(
                "--loss-mask last-turn needs messages; input_ids do not say where turns begin", "no loss mask"
            )
        return tokens.mask

    def _within_limits(self, sample: Sample, *, whole: bool) -> Sample:
        """The sample, cut if need be; raises RowError for one that stays out.

        One that is not `whole` has more tokens than those that are here, which are more than are kept.
        """
        limits, length = self._settings, len(sample.ids)
        counted = f"{length}" if whole else f"at least {length}"
        if int(sample.ids.max()) >= self._vocab_size:
            outside = (sample.ids >= self._vocab_size).nonzero()[0]
            raise RowError(
                f"token id {sample.ids[outside[0]]} at position {outside[0]} is outside the model's vocabulary "
                f"of {self._vocab_size}",
                "outside the vocabulary",
            )
        if length < limits.min_length:
            raise RowError(f"{_tokens(length)} fewer than --min-length {limits.min_length}", "too short")
        if length > limits.max_length and limits.overlength == "drop":
            raise RowError(f"{counted} tokens are more than --max-length {limits.max_length}", "too long")
        if length > limits.max_length:
            ids, mask = sample.ids[: limits.max_length], sample.mask[: limits.max_length]
            sample = replace(sample, ids=ids, mask=mask, truncated=True)
        predicted = int(np.count_nonzero(sample.mask))
        if predicted < limits.min_loss_tokens:
            cut = f" within --max-length {limits.max_length}, of {counted}," if sample.truncated else ""
            raise RowError(
                f"{_tokens(predicted, ' to be predicted' + cut)} fewer than --min-loss-tokens {limits.min_loss_tokens}",
                "too few loss tokens",
            )
        return sample


def _tokens(count: int, which: str = "") -> str:
    """`1 token is`, `2 tokens to be predicted are`"""
    # Without separators, so that equal reasons count together.
    return f"1 token{which} is" if count == 1 else f"{count} tokens{which} are"


def _tried(
    render: Callable[[Conversation], RenderedChat], conversation: Conversation
) -> RenderedChat | RowError:
    try:
        return render(conversation)
    except RowError as error:
        return RowError(str(error), "not rendered") if error.cause == "malformed" else error
