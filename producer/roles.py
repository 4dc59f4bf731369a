"""Who speaks: every spelling of a role, and what chat templates call it."""

from __future__ import annotations

#: Every spelling of a role, in lower case, and what templates call it.
ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter", "client"), "user"),
    **dict.fromkeys(
        ("assistant", "gpt", "chatgpt", "gpt4", "gpt-4", "claude", "bot", "chatbot", "model", "ai", "bing", "bard"),
        "assistant",
    ),
    **dict.fromkeys(
        ("tool", "function", "observation", "function_response", "tool_response", "tool_result", "ipython"),
        "tool",
    ),
    # A call as a message of its own, its text the call: made into the tool call of an assistant's message.
    **dict.fromkeys(("function_call", "tool_call"), "call"),
}  # fmt: skip
