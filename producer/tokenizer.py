"""The model's tokenizer: text to token ids, and character spans to a loss mask over those ids.

`loss_mask[i]` belongs to `input_ids[i]` itself, not to the token after it: 1 where the model is
trained to predict that token. A token is 1 if any of its characters lies in a span, which includes
the token that ends an assistant's turn and excludes the generation prompt before it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from common.hub import model_error
from hiddenfeed.errors import ConfigError
from producer.chat_template import Span
from producer.model_facts import UNREADABLE, ModelFacts

Ids = npt.NDArray[np.int32]
Mask = npt.NDArray[np.uint8]


#: A text with more characters than this for each token that may be kept is tokenised from its beginning, as far as
#: it is needed: texts have 3 to 6 characters to a token.
_CHARACTERS_PER_TOKEN = 16
#: Tokens more than are kept, so that one at the beginning that goes, or one that is added, makes no difference.
_SPARE = 8


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text as n token ids int32[n], n >= 1, and their loss mask uint8[n]."""

    ids: Ids
    mask: Mask
    #: False if the text goes on behind them: it has more tokens than may be kept.
    whole: bool = True
    #: True if a BOS or EOS was there more than once, of which one was kept.
    undoubled: bool = False


class Tokenizer:
    """The compiled core of a fast tokenizer, which frees the GIL; can be sent to another process."""

    def __init__(self, pretrained: Any) -> None:
        """`pretrained` is a fast tokenizer of transformers."""
        #: The compiled tokenizer itself.
        self.core = pretrained.backend_tokenizer
        # A tokenizer's file can carry both; a sample is cut by us, and never padded.
        self.core.no_truncation()
        self.core.no_padding()
        self._ends = pretrained.bos_token_id, pretrained.eos_token_id
        self._added = [token.content for token in pretrained.added_tokens_decoder.values()]
        #: `bos_token`, `eos_token` and the like, as templates name them.
        self.special_tokens: Mapping[str, str] = dict(pretrained.special_tokens_map)

    def turn_tokens(self, template: str) -> list[str]:
        """Tokens, matched whole in a text, that a template may put at the end of a turn."""
        return sorted({*(token for token in self._added if token in template), *self.special_tokens.values()})

    def encode_chats(
        self, texts: Sequence[str], spans: Sequence[Sequence[Span]], limit: int
    ) -> list[Encoded]:
        """Ids and masks of rendered conversations; only what the template wrote is there, so no BOS is added.

        Of a text with more than `limit` tokens only so many and one more need be there.
        """
        encodings = self._encode(texts, limit, add_special_tokens=False)
        return [
            self._encoded(
                _ids(encoding), mask_of(encoding, _within(chat_spans, size)), size == len(text), limit
            )
            for text, (encoding, size), chat_spans in zip(texts, encodings, spans, strict=True)
        ]

    def encode_texts(self, texts: Sequence[str], limit: int) -> list[Encoded]:
        """Ids of plain texts with the special tokens that the tokenizer adds, and masks of ones; `limit` as above."""
        encodings = self._encode(texts, limit, add_special_tokens=True)
        return [
            self._encoded(_ids(encoding), np.ones(len(encoding), np.uint8), size == len(text), limit)
            for text, (encoding, size) in zip(texts, encodings, strict=True)
        ]

    def _encode(self, texts: Sequence[str], limit: int, *, add_special_tokens: bool) -> list[tuple[Any, int]]:
        """The tokenizer's encoding of each text, and of how many of its characters it is."""
        longest = (limit + _SPARE) * _CHARACTERS_PER_TOKEN
        usual = [text if len(text) <= longest else "" for text in texts]
        encodings = self.core.encode_batch(usual, add_special_tokens=add_special_tokens)
        return [
            (encoding, len(text))
            if len(text) <= longest
            else self._encode_beginning(text, limit, add_special_tokens)
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def _encode_beginning(self, text: str, limit: int, add_special_tokens: bool) -> tuple[Any, int]:
        """As much of a long text as its first tokens depend on."""
        size = (limit + _SPARE) * _CHARACTERS_PER_TOKEN
        while size < len(text):
            encoding = self.core.encode(text[:size], add_special_tokens=add_special_tokens)
            if _is_settled(encoding, limit + _SPARE):
                return encoding, size
            size *= 2
        return self.core.encode(text, add_special_tokens=add_special_tokens), len(text)

    def _encoded(self, ids: Ids, mask: Mask, whole: bool, limit: int) -> Encoded:
        made = self.without_double_ends(Encoded(ids, mask, whole))
        return made if whole else replace(made, ids=made.ids[: limit + 1], mask=made.mask[: limit + 1])

    def without_double_ends(self, encoded: Encoded) -> Encoded:
        """BOS or EOS more than once in a row is a text that brought its own: one stays, with its part of the mask."""
        ids, mask = encoded.ids, encoded.mask
        first, last = 0, len(ids)
        bos, eos = self._ends
        while last - first > 1 and ids[first] == ids[first + 1] == bos:
            first += 1
        while last - first > 1 and ids[last - 1] == ids[last - 2] == eos:
            last -= 1
        if last - first == len(ids):
            return encoded
        return replace(encoded, ids=ids[first:last], mask=mask[first:last], undoubled=True)


def load_tokenizer(model: ModelFacts) -> tuple[Tokenizer, Callable[[], str | None]]:
    """The tokenizer of a checkpoint, and what gives its chat template.

    Raises ConfigError if there is no tokenizer, or none with a compiled core.
    """
    from transformers import AutoTokenizer  # seconds to import; only preparation pays

    try:
        pretrained = AutoTokenizer.from_pretrained(model.name, revision=model.revision or "main")
    except UNREADABLE as error:
        if model.folder and not any(
            (model.folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")
        ):
            raise ConfigError(f"model folder {model.name} has no tokenizer (tokenizer.json)") from error
        raise model_error(model.name, model.revision, "the tokenizer", error) from error
    if not getattr(pretrained, "is_fast", False):
        raise ConfigError(f"the tokenizer of model {model.name} has no fast form, which loss masks need")
    return Tokenizer(pretrained), partial(_chat_template, pretrained)


def _chat_template(pretrained: Any) -> str | None:
    """The template's text, the default one where there are several; None if there is none.

    Raises ConfigError if there are several without a default.
    """
    if not pretrained.chat_template:
        return None
    try:
        return str(pretrained.get_chat_template())
    except ValueError:
        raise ConfigError(
            "the model's tokenizer has several chat templates and none is the default; give one with --chat-template"
        ) from None


def mask_of(encoding: Any, spans: Sequence[Span]) -> Mask:
    """uint8[n]: 1 for every token that has a character in one of `spans`, which are in order."""
    mask = np.zeros(len(encoding), np.uint8)
    for start, end in spans:
        first = _nearest(encoding, start, end, 1)
        if first is None:
            continue
        last = _nearest(encoding, end - 1, start - 1, -1)
        assert last is not None
        # A character of several bytes may be several tokens, of which the first was found.
        while last + 1 < len(mask) and _begins_before(encoding, last + 1, end):
            last += 1
        mask[first : last + 1] = 1
    return mask


def _nearest(encoding: Any, start: int, end: int, step: int) -> int | None:
    """The token of the first character from `start` on that is in one; None if none is before `end`."""
    for char in range(start, end, step):
        token: int | None = encoding.char_to_token(char)
        if token is not None:
            return token
    return None


def _within(spans: Sequence[Span], size: int) -> Sequence[Span]:
    """The spans as far as they are in the first `size` characters."""
    if not spans or spans[-1][1] <= size:
        return spans
    return [(start, min(end, size)) for start, end in spans if start < size]


def _is_settled(encoding: Any, count: int) -> bool:
    """True if the first `count` tokens of a text's beginning are those of the whole text.

    Tokenizers cut text into words from its start and make tokens of each word by itself, so tokens are settled once
    other words follow theirs. A word that goes on for as many tokens again is not waited for: what its end is
    changes nothing in its beginning for all that is known, and it may be all of the text.
    """
    tokens = len(encoding)
    if tokens >= 2 * count:
        return True
    if tokens <= count:
        return False
    words = [encoding.token_to_word(token) for token in (count, tokens - _SPARE)]
    return None not in words and words[0] + 1 < words[1]


def _begins_before(encoding: Any, token: int, end: int) -> bool:
    span = encoding.token_to_chars(token)
    return span is not None and span[0] < end


def _ids(encoding: Any) -> Ids:
    # A list goes into an array three times as fast as into one of numpy's.
    return np.frombuffer(array("i", encoding.ids), np.int32)
