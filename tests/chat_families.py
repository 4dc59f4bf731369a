"""Chat templates of the shapes that the newest families have, small and written for these tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from textwrap import dedent

from producer.chat_template import ChatTemplate
from producer.loss_spans import LossMode, LossSpans


@dataclass(frozen=True)
class Family:
    """A template and the special tokens of its tokenizer."""

    template: str
    tokens: tuple[str, ...]
    named: dict[str, str] = field(default_factory=dict)

    def spans(self, mode: LossMode = "assistant") -> LossSpans:
        """What finds the loss spans of this family."""
        return LossSpans(ChatTemplate(self.template, self.named), self.tokens, mode)


def _lines(text: str) -> str:
    return dedent(text).strip("\n")


#: Thoughts are kept behind the last question only; results of tools come in a user's turn; the prompt opens the thoughts.
QWEN35 = Family(
    _lines("""\
    {%- set seen = namespace(question=-1) %}
    {%- for message in messages %}{%- if message.role == 'user' %}{%- set seen.question = loop.index0 %}{%- endif %}{%- endfor %}
    {%- if messages[0].role == 'system' or tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if tools %}{{- '# Tools\\n' }}{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}{%- endif %}
    {%- if messages[0].role == 'system' %}{{- messages[0].content | trim }}{%- endif %}
    {{- '<|im_end|>\\n' }}
    {%- endif %}
    {%- for message in messages %}
      {%- set content = message.content | trim %}
      {%- if message.role == 'user' %}
        {{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}
      {%- elif message.role == 'assistant' %}
        {%- set thought = message.reasoning_content | default('', true) %}
        {%- if not thought and '</think>' in content %}
          {%- set thought = content.split('</think>')[0].split('<think>')[-1] %}
          {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > seen.question %}{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
          {{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
          {%- for name, value in call.function.arguments | items %}{{- '<parameter=' + name + '>\\n' ~ value ~ '\\n</parameter>\\n' }}{%- endfor %}
          {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
      {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
      {%- endif %}
    {%- endfor %}
    {%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}
    """),
    ("<|im_start|>", "<|im_end|>"),
)

#: A header around each role; a date in the system's turn; calls of tools are JSON.
LLAMA4 = Family(
    _lines("""\
    {{- bos_token }}
    {%- if messages[0].role == 'system' or tools %}
      {{- '<|header_start|>system<|header_end|>\\n\\nToday: ' + strftime_now('%d %b %Y') + '\\n' }}
      {%- if tools %}{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}{%- endif %}
      {%- if messages[0].role == 'system' %}{{- messages[0].content | trim }}{%- endif %}
      {{- '<|eot|>' }}
    {%- endif %}
    {%- for message in messages %}
      {%- if message.role == 'tool' %}
        {{- '<|header_start|>ipython<|header_end|>\\n\\n' + message.content | tojson + '<|eot|>' }}
      {%- elif message.tool_calls %}
        {{- '<|header_start|>assistant<|header_end|>\\n\\n' + message.content }}
        {%- for call in message.tool_calls %}{{- '{"name": "' + call.function.name + '", "parameters": ' + call.function.arguments | tojson + '}' }}{%- endfor %}
        {{- '<|eom|>' }}
      {%- elif message.role != 'system' %}
        {{- '<|header_start|>' + message.role + '<|header_end|>\\n\\n' + message.content | trim + '<|eot|>' }}
      {%- endif %}
    {%- endfor %}
    {%- if add_generation_prompt %}{{- '<|header_start|>assistant<|header_end|>\\n\\n' }}{%- endif %}
    """),
    ("<|begin|>", "<|header_start|>", "<|header_end|>", "<|eot|>", "<|eom|>"),
    {"bos_token": "<|begin|>"},
)

#: The system's words are folded into the first user's turn; the assistant is called model; turns must alternate.
GEMMA3 = Family(
    _lines("""\
    {{- bos_token }}
    {%- set first = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}
    {%- set turns = messages[1:] if first else messages %}
    {%- for message in turns %}
      {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('Conversation roles must alternate') }}{%- endif %}
      {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' + (first if loop.first else '') }}
      {{- message.content | trim + '<end_of_turn>\\n' }}
    {%- endfor %}
    {%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}
    """),
    ("<bos>", "<start_of_turn>", "<end_of_turn>"),
    {"bos_token": "<bos>"},
)

#: A channel of thoughts inside the model's turn, taken out of every turn but the last.
GEMMA4 = Family(
    _lines("""\
    {{- bos_token }}
    {%- for message in messages %}
      {{- '<|turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
      {%- if message.role == 'assistant' and loop.last and message.reasoning_content %}
        {{- '<|channel>thought\\n' + message.reasoning_content + '\\n<channel|>' }}
      {%- endif %}
      {{- message.content.split('<channel|>')[-1] | trim + '<turn|>\\n' }}
    {%- endfor %}
    {%- if add_generation_prompt %}{{- '<|turn>model\\n' }}{%- endif %}
    """),
    ("<bos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>"),
    {"bos_token": "<bos>"},
)

#: Channels; the last answer ends the conversation with another token than earlier ones, whose thoughts are dropped.
GPT_OSS = Family(
    _lines("""\
    {{- '<|start|>system<|message|>You are a model.\\nCurrent date: ' + strftime_now('%Y-%m-%d') + '<|end|>' }}
    {%- for message in messages %}
      {%- if message.role == 'system' %}
        {{- '<|start|>developer<|message|># Instructions\\n\\n' + message.content + '<|end|>' }}
      {%- elif message.role == 'assistant' %}
        {%- if message.tool_calls %}
          {%- if message.thinking %}{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}{%- endif %}
          {%- set call = message.tool_calls[0].function %}
          {{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' + call.arguments | tojson + '<|call|>' }}
        {%- elif loop.last and not add_generation_prompt %}
          {%- if message.thinking %}{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}{%- endif %}
          {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|return|>' }}
        {%- else %}
          {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
        {%- endif %}
      {%- elif message.role == 'tool' %}
        {{- '<|start|>functions.tool to=assistant<|channel|>commentary<|message|>' + message.content | tojson + '<|end|>' }}
      {%- else %}
        {{- '<|start|>user<|message|>' + message.content + '<|end|>' }}
      {%- endif %}
    {%- endfor %}
    {%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}
    """),
    ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>", "<|call|>"),
)

#: The system's words stand before all turns; only the assistant's turn ends with a token; thoughts are closed at once.
DEEPSEEK = Family(
    _lines("""\
    {{- bos_token }}
    {%- for message in messages %}{%- if message.role == 'system' %}{{- message.content }}{%- endif %}{%- endfor %}
    {%- for message in messages %}
      {%- if message.role == 'user' %}
        {{- '<|User|>' + message.content }}
      {%- elif message.role == 'assistant' %}
        {{- '<|Assistant|></think>' + message.content.split('</think>')[-1] + '<|end_of_sentence|>' }}
      {%- endif %}
    {%- endfor %}
    {%- if add_generation_prompt %}{{- '<|Assistant|></think>' }}{%- endif %}
    """),
    ("<|begin_of_sentence|>", "<|User|>", "<|Assistant|>", "<|end_of_sentence|>"),
    {"bos_token": "<|begin_of_sentence|>"},
)

#: The system's words and the tools are folded into the first user's turn; no generation prompt.
MISTRAL = Family(
    _lines("""\
    {{- bos_token }}
    {%- set system = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}
    {%- set turns = messages[1:] if system else messages %}
    {%- if tools %}{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
    {%- for message in turns %}
      {%- if message.role == 'user' %}
        {{- '[INST] ' + (system if loop.first else '') + message.content + '[/INST]' }}
      {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] ' + message.content + '[/TOOL_RESULTS]' }}
      {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS] [' }}{%- for call in message.tool_calls %}{{- call.function | tojson }}{%- endfor %}{{- ']' + eos_token }}
      {%- else %}
        {{- ' ' + message.content | trim + eos_token }}
      {%- endif %}
    {%- endfor %}
    """),
    ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    {"bos_token": "<s>", "eos_token": "</s>"},
)  # fmt: skip

#: As above, but the tools stand before the last user's turn, wherever that is.
MISTRAL_LAST = Family(
    MISTRAL.template.replace(
        "{%- if tools %}{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}\n", ""
    ).replace(
        "{%- if message.role == 'user' %}",
        "{%- if message.role == 'user' %}{%- if tools and loop.index0 == turns | map(attribute='role') | list | length"
        " - 1 - (turns | map(attribute='role') | list | reverse | list).index('user') %}"
        "{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}",
    ),
    MISTRAL.tokens,
    MISTRAL.named,
)

FAMILIES = {
    "qwen3.5": QWEN35,
    "llama4": LLAMA4,
    "gemma3": GEMMA3,
    "gemma4": GEMMA4,
    "gpt-oss": GPT_OSS,
    "deepseek": DEEPSEEK,
    "mistral": MISTRAL,
    "mistral-last": MISTRAL_LAST,
}
