"""A chat template: from messages to the text that a model reads, the same text on every day.

Rendering is what transformers does (sandboxed Jinja with its filters and globals), with two
differences: the date that some templates print is a fixed one, so that one dataset always gives
one text, and what `{% generation %}` encloses is marked in the text itself, which stays right
wherever a template puts it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from hiddenfeed.errors import ConfigError
from producer.rows import Message, RowError

#: "Today" for templates that print a date.
FIXED_DATE = datetime(2024, 7, 26)  # only ever formatted

#: Noncharacters: Unicode keeps them out of text that is exchanged, so they can stand for places in it.
OPENING, CLOSING = "\ufdd0", "\ufdd1"

#: What a template's own code raises when a conversation is not to its taste.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)

Span = tuple[int, int]


class ChatTemplate:
    """One compiled template with the special tokens it may name."""

    def __init__(
        self, text: str, special_tokens: Mapping[str, str], where: str = "the chat template"
    ) -> None:
        """Raises ConfigError naming `where` if `text` is not a template."""
        self.text = text
        self._special_tokens = dict(special_tokens)
        self._marking = False
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals.update(
            raise_exception=_raise_exception,
            strftime_now=FIXED_DATE.strftime,
            mark_generation=self._mark,
        )
        try:
            self._template = environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"{where} is not a Jinja template: line {error.lineno}: {error.message}"
            ) from None
        # A chain of mappings there; copying it for every rendering would take longer than short renderings.
        self._template.globals = dict(self._template.globals)

    @property
    def marks_generation(self) -> bool:
        """True if the template says itself what the assistant generates."""
        return re.search(r"\{%-?\s*generation\s*-?%\}", self.text) is not None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None = None,
        *,
        generation_prompt: bool = False,
    ) -> str:
        """The conversation as text; raises RowError with the template's own objection."""
        try:
            return self._template.render(
                **self._special_tokens,
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=generation_prompt,
            )
        except _TEMPLATE_ERRORS as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise RowError(f"the chat template refuses the conversation: {reason}") from None

    def render_generation(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None
    ) -> tuple[str, list[Span]]:
        """The text, and the character spans of what `{% generation %}` encloses, in order.

        Raises RowError if the spans cannot be trusted: the template builds on the marked text.
        """
        text = self.render(messages, tools)
        with self._marked():
            marked = self.render(messages, tools)
        clean, spans = take_marks(marked)
        if clean != text:
            raise RowError(
                "the chat template changes what {% generation %} encloses, so its tokens cannot be told"
            )
        return text, spans

    @contextmanager
    def _marked(self) -> Iterator[None]:
        self._marking = True
        try:
            yield
        finally:
            self._marking = False

    def _mark(self, caller: Callable[[], str]) -> str:
        return f"{OPENING}{caller()}{CLOSING}" if self._marking else caller()


def take_marks(marked: str) -> tuple[str, list[Span]]:
    """Text without marks, and the spans that were between them; raises RowError unless they pair up."""
    pieces = re.split(f"([{OPENING}{CLOSING}])", marked)
    marks = pieces[1::2]
    if marks != [OPENING, CLOSING] * (len(marks) // 2):
        raise RowError("the chat template or a message puts characters of its own where generation is marked")
    spans, position = [], 0
    for place in range(0, len(pieces) - 1, 4):
        start = position + len(pieces[place])
        position = start + len(pieces[place + 2])
        spans.append((start, position))
    return "".join(pieces[0::2]), spans


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}`: calls `mark_generation` on what it encloses."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """The block as a call block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = jinja2.nodes.Call(jinja2.nodes.Name("mark_generation", "load"), [], [], None, None)
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """As transformers: jinja2's own filter would escape HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
