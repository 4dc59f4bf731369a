"""What a chat template puts around a plain question and its answer, found out by rendering one."""

from __future__ import annotations

from producer.chat_template import ChatTemplate
from producer.rows import RowError

_QUESTION, _ANSWER = "x0question0x", "x0answer0x"
_ASKED = {"role": "user", "content": _QUESTION}
_ANSWERED = {"role": "assistant", "content": _ANSWER}


def probe_prompt(template: ChatTemplate) -> tuple[str, str]:
    """What a template puts between a user's words and the first generated character, and from there to the answer.

    The second is where a template begins an answer by itself, as with an empty block of thoughts. Both
    are "" where that varies.
    """
    try:
        prompt = template.render([_ASKED], generation_prompt=True)
        whole = template.render([_ASKED, _ANSWERED])
    except RowError:
        return "", ""
    _, found, end = prompt.rpartition(_QUESTION)
    lead, answered, _ = whole.removeprefix(prompt).partition(_ANSWER)
    return end if found else "", lead if answered and whole.startswith(prompt) else ""


def probe_boundary(template: ChatTemplate) -> bool:
    """False if an answer follows a question without anything that says whose words begin."""
    try:
        _, asked, rest = template.render([_ASKED, _ANSWERED]).partition(_QUESTION)
    except RowError:
        return True
    between, answered, _ = rest.partition(_ANSWER)
    return not (asked and answered) or bool(between.strip())


def probe_end(template: ChatTemplate) -> str:
    """What follows an answer; "" where that cannot be told."""
    try:
        _, answered, behind = template.render([_ASKED, _ANSWERED]).rpartition(_ANSWER)
    except RowError:
        return ""
    return behind if answered else ""
