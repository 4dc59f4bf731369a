"""Which characters of a rendered conversation the assistant generates, proven on the text itself.

A span begins where the generation prompt ends and includes the token that ends the turn, because
that is what a model generates. Three ways, each verified, none guessed:

- the template, or another one that makes the same text, marks it with `{% generation %}`;
- *substitution*: the conversation is rendered once more with a mark in place of what each assistant
  says, and the text must be the same around the marks;
- *prefixes*: the conversation up to a turn, rendered alone, must be a prefix of the whole text.

Where none holds the row is refused, naming the turn and the way out: the template rewrites history or
drops earlier thoughts, it leaves out what was said, or nothing in the text says where the assistant
begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hiddenfeed.words import count_text
from producer.chat_template import CLOSING, OPENING, ChatTemplate, Span
from producer.rows import Conversation, Message, RowError
from producer.said import LeftOut, check_said, left_out, thinks_aloud
from producer.substitution import around_marks, place_of
from producer.template_probe import probe_boundary, probe_end, probe_prompt
from producer.ways_out import UnprovenError, with_way_out

LossMode = Literal["assistant", "last-turn", "all"]


def mode_of(loss_mask: str) -> LossMode:
    """The mode of a `--loss-mask`; what a template marks that was given for it is all turns of the assistant."""
    modes: dict[str, LossMode] = {"all": "all", "last-turn": "last-turn"}
    return modes.get(loss_mask, "assistant")


@dataclass(frozen=True)
class RenderedChat:
    """A conversation as text with the character spans `[start, end)` of what is to be predicted."""

    text: str
    spans: list[Span]
    #: What of the conversation the text does not show.
    left_out: tuple[LeftOut, ...] = ()


class LossSpans:
    """Finds the spans for one template and the special tokens of one tokenizer."""

    def __init__(
        self,
        template: ChatTemplate,
        special_tokens: Iterable[str],
        mode: LossMode,
        marking: ChatTemplate | None = None,
    ) -> None:
        """`marking` is a template that makes the same text and marks in it what is to be predicted."""
        self._template, self._marking = template, marking
        self._mode = mode
        words = sorted((token for token in special_tokens if token.strip()), key=len, reverse=True)
        tokens = "|".join(map(re.escape, words)) or "(?!)"
        self._handover = re.compile(rf"\s*(?:{tokens})")
        self._tokens = tuple(word.rstrip() for word in words)
        self._prompt_end, self._lead = probe_prompt(template)
        self._has_boundary = probe_boundary(template)
        behind = probe_end(template)
        end = self._turn_end(behind, 0)
        #: The token that ends a plain turn, if one does, and what the template puts behind it.
        self._end, self._tail = behind[:end].lstrip(), behind[end:]

    def find(self, conversation: Conversation) -> RenderedChat:
        """The text and its spans; raises RowError for a conversation whose spans cannot be proven."""
        try:
            chat = self._find(conversation, self._mode)
        except UnprovenError as error:
            raise with_way_out(error, last_turn_helps=self._last_turn_helps(conversation)) from None
        if OPENING in chat.text or CLOSING in chat.text:
            raise RowError("a message contains U+FDD0 or U+FDD1, which are no characters")
        missing = left_out(conversation, chat.text)
        return replace(chat, left_out=missing) if missing else chat

    def _last_turn_helps(self, conversation: Conversation) -> bool:
        """Whether the last turn alone has a mask, tried out because it may be the very one that has none."""
        if self._mode != "assistant":
            return False
        try:
            self._find(conversation, "last-turn")
        except RowError:
            return False
        return True

    def _find(self, conversation: Conversation, mode: LossMode) -> RenderedChat:
        messages = conversation.messages
        if mode == "all":
            text = self._template.render(messages, conversation.tools)
            return RenderedChat(text, [(0, len(text))])
        turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if not turns:
            raise RowError(
                "the conversation has no assistant's turn to learn from (--loss-mask all takes it whole)"
            )
        turns = _learnt(messages, turns[-1:] if mode == "last-turn" else turns)
        if self._marking is not None:
            return self._from_other_marks(conversation, turns, mode, self._marking)
        if self._template.marks_generation:
            return self._from_marks(conversation, turns, mode)
        if not self._has_boundary:
            raise UnprovenError(
                "the chat template puts nothing between a user's words and the assistant's", "no boundary"
            )
        return self._from_renderings(conversation, turns)

    def _from_marks(self, conversation: Conversation, turns: Sequence[int], mode: LossMode) -> RenderedChat:
        """What the template itself marks."""
        text, spans = self._template.render_generation(conversation.messages, conversation.tools)
        spans = self._marked_of(conversation, text, spans, turns, mode)
        marked = "".join(text[start:end] for start, end in spans)
        for turn in turns:
            check_said(conversation.messages[turn], turn, marked)
        return RenderedChat(text, spans)

    def _from_other_marks(
        self, conversation: Conversation, turns: Sequence[int], mode: LossMode, marking: ChatTemplate
    ) -> RenderedChat:
        """What a template marks that was given for this alone: its word holds where it makes the same text."""
        text = self._template.render(conversation.messages, conversation.tools)
        other, spans = marking.render_generation(conversation.messages, conversation.tools)
        if other != text:
            place = next(
                (place for place, pair in enumerate(zip(other, text, strict=False)) if pair[0] != pair[1]),
                min(len(other), len(text)),
            )
            raise RowError(
                f"the template of --loss-mask makes another text than the chat template, from {other[place : place + 20]!r} "
                f"for {text[place : place + 20]!r} at character {place}"
            )
        return RenderedChat(text, self._marked_of(conversation, text, spans, turns, mode))

    def _marked_of(
        self,
        conversation: Conversation,
        text: str,
        spans: list[Span],
        turns: Sequence[int],
        mode: LossMode,
    ) -> list[Span]:
        """The marked spans of some turns of the assistant's: one of each, or all between what stands around a turn."""
        spans = [span for span in spans if span[0] < span[1]]
        messages = conversation.messages
        every = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if mode != "last-turn" and len(turns) == len(every):
            if sum(end - start for start, end in spans) == len(text) and len(turns) < len(messages):
                raise RowError(
                    "the chat template marks everything with {% generation %}, what others say as well; --loss-mask all "
                    "takes every token, or give a --chat-template FILE that marks the assistant's words alone"
                )
            return spans
        if len(spans) == len(every):
            return [span for span, turn in zip(spans, every, strict=True) if turn in turns]
        taken: list[Span] = []
        for turn in turns:
            start, end = self._around(conversation, text, turn, generation_prompt=False)
            if start is None or end is None:
                which = "the last turn" if mode == "last-turn" else f"message {turn}"
                raise RowError(
                    f"the chat template marks {count_text(len(spans), 'span')} for "
                    f"{count_text(len(every), 'turn')} of the assistant's, so {which} cannot be told; give --loss-mask "
                    "all, or --chat-template FILE with one that marks each turn once"
                )
            taken += [span for span in spans if start <= span[0] < end]
        return taken

    def _from_renderings(self, conversation: Conversation, turns: Sequence[int]) -> RenderedChat:
        """Substitution for turns that are plain text, prefixes for the others and where it does not hold."""
        text = self._template.render(conversation.messages, conversation.tools)
        found = self._by_substitution(conversation, text, turns)
        spans: list[Span] = []
        for turn in turns:
            start, end = found.get(turn) or self._by_prefixes(conversation, text, turn)
            if start >= end or (spans and start < spans[-1][1]):
                raise UnprovenError(
                    f"message {turn} (assistant) cannot be found in what the chat template makes", "rewrites"
                )
            if turn not in found:
                check_said(conversation.messages[turn], turn, text[start:end])
            spans.append((start, end))
        return RenderedChat(text, spans)

    def _by_substitution(
        self, conversation: Conversation, text: str, turns: Sequence[int]
    ) -> dict[int, Span]:
        """Spans of the turns that are plain text; empty if the marked rendering does not match `text`."""
        plain = [turn for turn in turns if _is_plain(conversation.messages[turn])]
        marked_messages = list(conversation.messages)
        for turn in plain:
            marked_messages[turn] = {**marked_messages[turn], "content": f"{OPENING}{turn}{CLOSING}"}
        try:
            around = around_marks(self._template.render(marked_messages, conversation.tools), plain)
        except RowError:
            return {}
        if around is None:
            return {}
        found: dict[int, Span] = {}
        position = 0
        for turn, before, after in zip(plain, around, around[1:], strict=False):
            said = place_of(text, position + len(before), conversation.messages[turn]["content"], after)
            if said is None or not text.startswith(before, position):
                return {}
            content_start, content_end = said
            start = self._generation_start(conversation, text, turn, before, content_start)
            found[turn] = (start, self._turn_end(text, content_end))
            position = content_end
        return found if text[position:] == around[-1] else {}

    def _generation_start(
        self, conversation: Conversation, text: str, turn: int, before: str, content_start: int
    ) -> int:
        """Where the model begins to generate: behind the generation prompt, at the content at the latest."""
        _, found, lead = before.rpartition(self._prompt_end) if self._prompt_end else ("", "", "")
        if found and (lead == self._lead or not lead.strip()):
            return content_start - len(lead)
        prompt = self._rendered_prefix(conversation, text, turn, generation_prompt=True)
        return min(prompt, content_start) if prompt is not None else content_start

    def _by_prefixes(self, conversation: Conversation, text: str, turn: int) -> Span:
        """The span of one turn by incremental rendering; raises RowError where history is rewritten."""
        start, end = self._around(conversation, text, turn, generation_prompt=True)
        if start is None or end is None:
            raise UnprovenError(
                f"message {turn} (assistant) looks different inside the whole conversation: the chat template "
                "rewrites history",
                "rewrites",
            )
        return start, self._generation_end(text, start, end)

    def _generation_end(self, text: str, start: int, end: int) -> int:
        """Where what the model generates of `text[start:end]`, a turn as a template shows it, ends.

        With the token that ends a turn. What the template puts behind that, be it an empty line, a token that
        separates turns or one that ends the text, nobody generates.
        """
        shown = text[start:end]
        if self._tail.strip() and shown.endswith(self._end + self._tail):
            return end - len(self._tail)
        bare = shown.rstrip()
        if bare.endswith(self._tokens):
            return start + len(bare)
        return self._turn_end(text, start + len(shown.removesuffix(self._tail)))

    def _around(
        self, conversation: Conversation, text: str, turn: int, *, generation_prompt: bool
    ) -> tuple[int | None, int | None]:
        """Where a turn begins and ends, by what stands before it and with it rendered alone; None where that differs."""
        start = self._rendered_prefix(conversation, text, turn, generation_prompt=generation_prompt)
        if turn == len(conversation.messages) - 1:
            return start, len(text)
        return start, self._rendered_prefix(conversation, text, turn + 1, generation_prompt=False)

    def _rendered_prefix(
        self, conversation: Conversation, text: str, count: int, *, generation_prompt: bool
    ) -> int | None:
        """Length of the first `count` messages rendered alone if that is a prefix of `text`, else None."""
        try:
            prefix = self._template.render(
                conversation.messages[:count], conversation.tools, generation_prompt=generation_prompt
            )
        except RowError:
            return None
        return len(prefix) if text.startswith(prefix) else None

    def _turn_end(self, text: str, content_end: int) -> int:
        """Behind the special token that follows what was said, if one does: the model generates it too."""
        handover = self._handover.match(text, content_end)
        return handover.end() if handover else content_end


def _learnt(messages: Sequence[Message], turns: Sequence[int]) -> list[int]:
    """Those of the assistant's turns that have not the weight 0; raises RowError if none is left."""
    learnt = [turn for turn in turns if messages[turn].get("weight") != 0]
    if not learnt:
        which = "the last assistant's turn has" if len(turns) == 1 else "all the assistant's turns have"
        raise RowError(f"{which} the weight 0, so nothing is to be predicted", "too few loss tokens")
    return learnt


def _is_plain(message: Message) -> bool:
    """True if a template can do nothing with the turn but show its content."""
    return not (
        message.get("tool_calls")
        or message.get("reasoning_content")
        or not message["content"].strip()
        or thinks_aloud(message["content"])
    )
