"""Loss masks for templates in the style of the newest model families: what is generated, what is not, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from producer.chat_template import FIXED_DATE
from producer.loss_spans import LossMode
from producer.rows import Conversation, RowError
from producer.tokenizer import Tokenizer
from tests.chat_families import (
    DEEPSEEK,
    FAMILIES,
    GEMMA3,
    GEMMA4,
    GPT_OSS,
    LLAMA4,
    MISTRAL,
    MISTRAL_LAST,
    QWEN35,
)
from tests.chat_families import Family as ChatFamily
from tests.tiny_chat import pretrained

Messages = list[dict[str, Any]]

SYSTEM = {"role": "system", "content": "be nice"}
ASK, AGAIN = {"role": "user", "content": "hello"}, {"role": "user", "content": "how"}
ONE, TWO = {"role": "assistant", "content": "one"}, {"role": "assistant", "content": "two"}
TALK: Messages = [ASK, ONE, AGAIN, TWO]
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "find", "arguments": {"x": 1}}}],
}
FOUND = {"role": "tool", "content": "found"}
TOOLS = [{"name": "find"}]
THOUGHT = {"reasoning_content": "because", "thinking": "because"}


def said(
    family: ChatFamily, messages: Messages, mode: LossMode = "assistant", tools: list[Any] | None = None
) -> list[str]:
    """The text of each span."""
    chat = family.spans(mode).find(Conversation(messages, tools))
    return [chat.text[start:end] for start, end in chat.spans]


def refusal(family: ChatFamily, messages: Messages, tools: list[Any] | None = None) -> str:
    with pytest.raises(RowError) as caught:
        family.spans().find(Conversation(messages, tools))
    return str(caught.value)


#: What the assistant generates in TALK: its words, the token that ends its turn, what the template makes it begin with.
GENERATED = {
    "qwen3.5": ["one<|im_end|>", "\n</think>\n\ntwo<|im_end|>"],
    "llama4": ["one<|eot|>", "two<|eot|>"],
    "gemma3": ["one<end_of_turn>", "two<end_of_turn>"],
    "gemma4": ["one<turn|>", "two<turn|>"],
    "gpt-oss": ["<|channel|>final<|message|>one<|end|>", "<|channel|>final<|message|>two<|return|>"],
    "deepseek": ["one<|end_of_sentence|>", "two<|end_of_sentence|>"],
    "mistral": [" one</s>", " two</s>"],
    "mistral-last": [" one</s>", " two</s>"],
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("start", [[], [SYSTEM]], ids=["plain", "system"])
def test_what_is_generated(name: str, start: Messages) -> None:
    assert said(FAMILIES[name], [*start, *TALK]) == GENERATED[name]
    assert said(FAMILIES[name], [*start, *TALK], "last-turn") == GENERATED[name][-1:]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_mask_is_on_the_tokens_themselves(name: str) -> None:
    """Masked tokens spell what is generated: the first is the answer's own first, the last ends the turn."""
    family = FAMILIES[name]
    core = pretrained()
    core.add_special_tokens({"additional_special_tokens": list(family.tokens)})
    chat = family.spans().find(Conversation(TALK))
    encoded = Tokenizer(core).encode_chats([chat.text], [chat.spans], 1000)[0]
    ids, mask = encoded.ids, encoded.mask
    words = [core.decode([token]) for token in ids.tolist()]
    assert "".join(words) == chat.text
    runs: list[str] = []
    for word, masked, before in zip(words, mask.tolist(), [0, *mask.tolist()[:-1]], strict=True):
        if masked and not before:
            runs.append("")
        if masked:
            runs[-1] += word
    assert runs == GENERATED[name]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("behind", ["\n", "<|sep|>", "\n---\n", "\n<|sep|>\n"])
def test_both_ways_end_a_turn_with_the_token_that_ends_it(name: str, behind: str) -> None:
    """What a template puts behind that token is nobody's answer, whichever way the turn is found."""
    family = FAMILIES[name]
    ends = (
        "<|im_end|>",
        "<|eot|>",
        "<end_of_turn>",
        "<turn|>",
        "<|end|>",
        "<|return|>",
        "<|end_of_sentence|>",
    )
    separated = family.template.replace("eos_token }}", f"eos_token + {behind!r} }}}}")
    for end in ends:
        separated = separated.replace(f"{end}\\n'", f"{end}'").replace(f"{end}'", f"{end}' + {behind!r}")
    finder = ChatFamily(separated, (*family.tokens, "<|sep|>"), family.named).spans()
    conversation = Conversation(TALK)
    text = finder._template.render(TALK)
    assert text.endswith(behind)
    substituted = finder._by_substitution(conversation, text, [1, 3])
    assert [text[start:end] for start, end in substituted.values()] == GENERATED[name]
    for turn in (1, 3):
        try:
            span = finder._by_prefixes(conversation, text, turn)
        except RowError:
            # Where earlier turns look different there is no other way to compare with.
            assert name in ("qwen3.5", "gpt-oss")
            assert turn == 1
        else:
            assert text[slice(*span)] == GENERATED[name][turn // 2]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_conversation_that_a_user_ends(name: str) -> None:
    (span,) = said(FAMILIES[name], TALK[:3])
    assert "one" in span
    assert "how" not in span


# --- calls of tools ---


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        (LLAMA4, '{"name": "find", "parameters": {"x": 1}}<|eom|>'),
        (GPT_OSS, ' to=functions.find<|channel|>commentary json<|message|>{"x": 1}<|call|>'),
        (MISTRAL, '[TOOL_CALLS] [{"name": "find", "arguments": {"x": 1}}]</s>'),
    ],
)
def test_calls_of_tools_are_generated_and_their_results_are_not(family: ChatFamily, expected: str) -> None:
    spans = said(family, [SYSTEM, ASK, CALL, FOUND, ONE, AGAIN, TWO], tools=TOOLS)
    assert spans[0] == expected
    assert len(spans) == 3
    assert not any("found" in span for span in spans)


def test_a_call_behind_the_last_question_keeps_its_thoughts() -> None:
    spans = said(QWEN35, [ASK, {**CALL, **THOUGHT}, FOUND, ONE], tools=TOOLS)
    assert spans == [
        "because\n</think>\n\n\n<tool_call>\n<function=find>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call><|im_end|>",
        "\n</think>\n\none<|im_end|>",
    ]


@pytest.mark.parametrize("family", [QWEN35, MISTRAL_LAST])
def test_a_call_that_later_turns_change_is_refused(family: ChatFamily) -> None:
    # The one drops the call's thoughts once there is a new question, the other moves the tools to it.
    text = refusal(family, [ASK, CALL, FOUND, ONE, AGAIN, TWO], TOOLS)
    assert text.startswith("message 1 (assistant) looks different inside the whole conversation")
    assert (
        said(family, [ASK, CALL, FOUND, ONE, AGAIN, TWO], "last-turn", TOOLS)[0]
        .strip()
        .endswith(("two<|im_end|>", "two</s>"))
    )


@pytest.mark.parametrize("family", [GEMMA4, DEEPSEEK])
def test_a_template_without_tools_is_refused(family: ChatFamily) -> None:
    assert "leaves out part of message 1 (assistant), from 'find'" in refusal(family, [ASK, CALL, FOUND, ONE])


def test_a_template_that_wants_turns_to_alternate_says_so() -> None:
    assert refusal(GEMMA3, [ASK, ONE, TWO]) == (
        "the chat template refuses the conversation: Conversation roles must alternate"
    )


# --- thoughts ---


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        (QWEN35, "because\n</think>\n\ntwo<|im_end|>"),
        (GEMMA4, "<|channel>thought\nbecause\n<channel|>two<turn|>"),
        (
            GPT_OSS,
            "<|channel|>analysis<|message|>because<|end|><|start|>assistant<|channel|>final<|message|>two<|return|>",
        ),
    ],
)
def test_thoughts_of_the_last_turn_are_generated(family: ChatFamily, expected: str) -> None:
    assert said(family, [ASK, ONE, AGAIN, {**TWO, **THOUGHT}])[-1] == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_thoughts_of_an_earlier_turn_that_are_dropped_are_refused_with_every_way_out(name: str) -> None:
    messages = [ASK, {**ONE, **THOUGHT}, AGAIN, TWO]
    text = refusal(FAMILIES[name], messages)
    assert "message 1 (assistant)" in text
    for way in ("--loss-mask last-turn or all", "--chat-template FILE", "{% generation %}"):
        assert way in text
    # And the ways out lead out.
    assert said(FAMILIES[name], messages, "last-turn") == GENERATED[name][-1:]
    whole = FAMILIES[name].spans("all").find(Conversation(messages))
    assert whole.spans == [(0, len(whole.text))]
    marked = ChatFamily(
        "{% for message in messages %}{{ '<' + message.role + '>' }}{% generation %}{{ message.thinking or '' }}{{ message.content }}"
        "{% endgeneration %}{% endfor %}",
        (),
    )
    assert "becauseone" in said(marked, messages)


@pytest.mark.parametrize("family", [QWEN35, DEEPSEEK])
def test_thoughts_inside_the_words_are_seen_too(family: ChatFamily) -> None:
    inline = {"role": "assistant", "content": "<think>because</think>one"}
    assert "message 1 (assistant)" in refusal(family, [ASK, inline, AGAIN, TWO])


# --- templates that say too little ---


@pytest.mark.parametrize(
    "template",
    [
        "{% for message in messages %}{{ message.content }}{% endfor %}",
        "{% for message in messages %}{{ message.content + '\n' }}{% endfor %}",
    ],
)
def test_a_template_without_a_boundary_is_refused(template: str) -> None:
    family = ChatFamily(template, ())
    assert "puts nothing between a user's words and the assistant's; give --loss-mask" in refusal(
        family, TALK
    )
    assert said(family, TALK, "all")[0].startswith("hello")


def test_a_template_that_sums_history_up_is_refused() -> None:
    family = ChatFamily(
        "{% if messages | length > 2 %}<sum>{{ messages[:-2] | length }}</sum>{% endif %}"
        "{% for message in messages[-2:] %}<{{ message.role }}>{{ message.content }}</turn>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}",
        ("</turn>",),
    )
    assert said(family, TALK[:2]) == ["one</turn>"]
    assert "message 1 (assistant) looks different" in refusal(family, TALK)
    assert said(family, TALK, "last-turn") == ["two</turn>"]


def test_dates_are_fixed() -> None:
    chat = LLAMA4.spans().find(Conversation([SYSTEM, *TALK]))
    assert f"Today: {FIXED_DATE.strftime('%d %b %Y')}" in chat.text
