"""Which characters of a rendered conversation the assistant generates, proven on the text itself.

A span begins where the generation prompt ends and includes the token that ends the turn, because
that is what a model generates. Three ways, each verified, none guessed:

- the template marks it with `{% generation %}`;
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
from dataclasses import dataclass
from typing import Literal

from producer.chat_template import CLOSING, OPENING, ChatTemplate, Span, take_marks
from producer.rows import Conversation, Message, RowError

LossMode = Literal["assistant", "last-turn", "all"]

_OTHER_TEMPLATE = (
    "or --chat-template FILE with one that keeps earlier turns as they were or marks {% generation %}"
)
#: What may help who asked for this mask.
_WAYS_OUT: dict[LossMode, str] = {
    "assistant": f"give --loss-mask last-turn or all, {_OTHER_TEMPLATE}",
    "last-turn": f"give --loss-mask all, {_OTHER_TEMPLATE}",
    "all": "",  # Nothing is refused there.
}
_PROBE, _ANSWER = "x0question0x", "x0answer0x"
_THINKING = re.compile(r"</?think(?:ing)?>")


@dataclass(frozen=True)
class RenderedChat:
    """A conversation as text with the character spans `[start, end)` of what is to be predicted."""

    text: str
    spans: list[Span]


class LossSpans:
    """Finds the spans for one template and the special tokens of one tokenizer."""

    def __init__(self, template: ChatTemplate, special_tokens: Iterable[str], mode: LossMode) -> None:
        self._template = template
        self._mode = mode
        self._way_out = _WAYS_OUT[mode]
        words = sorted((token for token in special_tokens if token.strip()), key=len, reverse=True)
        tokens = "|".join(map(re.escape, words)) or "(?!)"
        self._handover = re.compile(rf"\s*(?:{tokens})")
        self._glue_at_end = re.compile(rf"(?:{tokens})(\s*)\Z")
        self._prompt_end, self._lead = _probe_prompt(template)
        self._has_boundary = _probe_boundary(template)

    def find(self, conversation: Conversation) -> RenderedChat:
        """The text and its spans; raises RowError for a conversation whose spans cannot be proven."""
        messages = conversation.messages
        if any(OPENING in message["content"] or CLOSING in message["content"] for message in messages):
            raise RowError("a message contains U+FDD0 or U+FDD1, which are no characters")
        if self._mode == "all":
            text = self._template.render(messages, conversation.tools)
            return RenderedChat(text, [(0, len(text))])
        turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if not turns:
            raise RowError(
                "the conversation has no assistant's turn to learn from (--loss-mask all takes it whole)"
            )
        if self._mode == "last-turn":
            turns = turns[-1:]
        if self._template.marks_generation:
            return self._from_marks(conversation, turns)
        if not self._has_boundary:
            raise RowError(
                f"the chat template puts nothing between a user's words and the assistant's; {self._way_out}"
            )
        return self._from_renderings(conversation, turns)

    def _from_marks(self, conversation: Conversation, turns: Sequence[int]) -> RenderedChat:
        """What the template itself marks."""
        text, spans = self._template.render_generation(conversation.messages, conversation.tools)
        spans = [span for span in spans if span[0] < span[1]]
        if self._mode == "last-turn":
            spans = self._last_marked(conversation, text, spans)
        elif sum(end - start for start, end in spans) == len(text) and len(turns) < len(
            conversation.messages
        ):
            raise RowError(
                "the chat template marks everything with {% generation %}, what others say as well; --loss-mask all takes "
                "every token, or give a --chat-template FILE that marks the assistant's words alone"
            )
        marked = "".join(text[start:end] for start, end in spans)
        for turn in turns:
            _check_said(conversation.messages[turn], turn, marked, self._way_out)
        return RenderedChat(text, spans)

    def _last_marked(self, conversation: Conversation, text: str, spans: list[Span]) -> list[Span]:
        """The marked spans of the last turn: the last one of one a turn, else those behind what comes before it."""
        turns = [
            place for place, message in enumerate(conversation.messages) if message["role"] == "assistant"
        ]
        if len(spans) == len(turns):
            return spans[-1:]
        before = self._rendered_prefix(conversation, text, turns[-1], generation_prompt=False)
        if before is None:
            raise RowError(
                f"the chat template marks {len(spans)} spans for {len(turns)} assistant's turns, so the last turn cannot be "
                "told; give --loss-mask all, or --chat-template FILE with one that marks each turn once"
            )
        return [span for span in spans if span[0] >= before]

    def _from_renderings(self, conversation: Conversation, turns: Sequence[int]) -> RenderedChat:
        """Substitution for turns that are plain text, prefixes for the others and where it does not hold."""
        text = self._template.render(conversation.messages, conversation.tools)
        found = self._by_substitution(conversation, text, turns)
        spans: list[Span] = []
        for turn in turns:
            start, end = found.get(turn) or self._by_prefixes(conversation, text, turn)
            if start >= end or (spans and start < spans[-1][1]):
                raise RowError(
                    f"message {turn} (assistant) cannot be found in what the chat template makes; {self._way_out}"
                )
            if turn not in found:
                _check_said(conversation.messages[turn], turn, text[start:end], self._way_out)
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
            around, places = take_marks(self._template.render(marked_messages, conversation.tools))
        except RowError:
            return {}
        if [around[start:end] for start, end in places] != list(map(str, plain)):
            return {}
        found: dict[int, Span] = {}
        taken, position = 0, 0
        for place, turn in enumerate(plain):
            before = around[taken : places[place][0]]
            taken = places[place][1]
            following = places[place + 1][0] if place + 1 < len(places) else len(around)
            after = around[taken:following]
            said = _match(text, position + len(before), conversation.messages[turn]["content"], after)
            if not text.startswith(before, position) or said is None:
                return {}
            content_start, content_end = said
            start = self._generation_start(conversation, text, turn, before, content_start)
            found[turn] = (start, self._turn_end(text, content_end))
            position = content_end
        return found if text[position:] == around[taken:] else {}

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
        start = self._rendered_prefix(conversation, text, turn, generation_prompt=True)
        last = turn == len(conversation.messages) - 1
        end = (
            len(text)
            if last
            else self._rendered_prefix(conversation, text, turn + 1, generation_prompt=False)
        )
        if start is None or end is None:
            raise RowError(
                f"message {turn} (assistant) looks different inside the whole conversation: the chat template "
                f"rewrites history; {self._way_out}"
            )
        glue = self._glue_at_end.search(text[start:end])
        if glue:
            return start, start + glue.start(1)
        return start, self._turn_end(text, end)

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


def _probe_prompt(template: ChatTemplate) -> tuple[str, str]:
    """What a template puts between a user's words and the first generated character, and from there to the answer.

    The second is where a template begins an answer by itself, as with an empty block of thoughts. Both
    are "" where that varies.
    """
    user, answer = {"role": "user", "content": _PROBE}, {"role": "assistant", "content": _ANSWER}
    try:
        prompt = template.render([user], generation_prompt=True)
        whole = template.render([user, answer])
    except RowError:
        return "", ""
    _, found, end = prompt.rpartition(_PROBE)
    lead, answered, _ = whole.removeprefix(prompt).partition(_ANSWER)
    return end if found else "", lead if answered and whole.startswith(prompt) else ""


def _probe_boundary(template: ChatTemplate) -> bool:
    """False if an answer follows a question without anything that says whose words begin."""
    user, answer = {"role": "user", "content": _PROBE}, {"role": "assistant", "content": _ANSWER}
    try:
        _, asked, rest = template.render([user, answer]).partition(_PROBE)
    except RowError:
        return True
    between, answered, _ = rest.partition(_ANSWER)
    return not (asked and answered) or bool(between.strip())


def _is_plain(message: Message) -> bool:
    """True if a template can do nothing with the turn but show its content."""
    return not (
        message.get("tool_calls")
        or message.get("reasoning_content")
        or not message["content"].strip()
        or _THINKING.search(message["content"])
    )


def _match(text: str, start: int, content: str, after: str) -> Span | None:
    """Where `content`, perhaps trimmed, stands in `text` from `start`, followed by `after`."""
    for variant in (content, content.strip(), content.rstrip(), content.lstrip()):
        if text.startswith(variant + after, start):
            return start, start + len(variant)
    return None


def _check_said(message: Message, turn: int, span: str, way_out: str) -> None:
    """Everything the assistant says must be in the span, however the template spaces it; else RowError."""
    squeezed = _squeeze(span)
    parts = _THINKING.split(str(message.get("reasoning_content") or "")) + _THINKING.split(message["content"])
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        parts += [_call_name(call) for call in calls]
    missing = [part for part in parts if _squeeze(part) not in squeezed]
    if missing:
        raise RowError(
            f"the chat template leaves out part of message {turn} (assistant), from {missing[0].strip()[:30]!r}; {way_out}"
        )


def _call_name(call: object) -> str:
    """The called function's name, as far as the call has one."""
    if not isinstance(call, dict):
        return ""
    function = call.get("function", call)
    return str(function.get("name") or "") if isinstance(function, dict) else ""


def _squeeze(text: str) -> str:
    return "".join(text.split())
