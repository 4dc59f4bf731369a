"""Tiny tokenizers, chat templates of the usual shapes, model folders without a model, and conversations, made on the fly."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from producer.chat_template import ChatTemplate
from producer.loss_spans import LossMode, LossSpans
from producer.tokenizer import Tokenizer

VOCABULARY = 512
_SPECIAL = [
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
    "<|user|>",
    "<|assistant|>",
]
_WORDS = ["hello", "world", "how", "are", "you", "fine", "thanks", "answer"]
_TEXTS = ["user assistant system model hello world how are you fine thanks what is the answer to this"] * 20

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n'"
    " + message.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' + message.content | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}{{ '[INST] ' + message.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + message.content + eos_token }}{% endif %}{% endfor %}"
)
#: No token ends a turn: the next header does.
GLM = (
    "{% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}{# <|user|> #}"
)
#: Shows thoughts in the last turn only, and adds an empty block there where there are none.
QWEN3 = (
    "{% for message in messages %}{% set said = message.content.split('</think>')[-1].lstrip('\n') %}"
    "{% set thought = message.content.split('</think>')[0].split('<think>')[-1].strip('\n') if '</think>' in message.content"
    " else message.reasoning_content or '' %}"
    "{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' and loop.last %}{{ '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}"
    "{{ said }}{% if message.tool_calls %}{% for call in message.tool_calls %}"
    "{{ '\n<tool_call>\n' + call.function | tojson + '\n</tool_call>' }}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
#: As above, and the generation prompt opens the block of thoughts, which earlier turns do not have.
QWEN35 = QWEN3.replace(
    "{{ '<|im_start|>assistant\n' }}{% endif %}", "{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
#: Forgets all but the last two messages.
FORGETFUL = CHATML.replace("for message in messages", "for message in messages[-2:]")


@cache
def _core() -> str:
    core = Core(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_TEXTS, trainer)
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", core.token_to_id("<s>"))]
    )
    return core.to_str()


def pretrained(chat_template: str | None = None) -> Any:
    """A byte-level BPE tokenizer that adds <s>; its vocabulary is below VOCABULARY."""
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=Core.from_str(_core()), bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def tiny_tokenizer() -> Tokenizer:
    """The same, as the producer uses it."""
    return Tokenizer(pretrained())


def loss_spans(template: str, mode: LossMode = "assistant") -> LossSpans:
    """Spans of a template with the tiny tokenizer's tokens."""
    tokenizer = tiny_tokenizer()
    return LossSpans(ChatTemplate(template, tokenizer.special_tokens), tokenizer.turn_tokens(template), mode)


def write_model_folder(folder: Path, chat_template: str | None = CHATML, **config: Any) -> Path:
    """A folder with a configuration, a tokenizer and a file where weights would be."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": VOCABULARY}
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", **sizes, "intermediate_size": 48, **config})
    )
    (folder / "model.safetensors").write_bytes(b"these are the weights")
    pretrained(chat_template).save_pretrained(folder)
    return folder


def conversations(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows with one to three turns of one to forty words."""
    random = np.random.Generator(np.random.PCG64(seed))

    def words() -> str:
        return " ".join(random.choice(_WORDS, random.integers(1, 40)))

    return [
        {
            "id": f"c{row}",
            "messages": [
                {"role": role, "content": words()}
                for _ in range(random.integers(1, 4))
                for role in ("user", "assistant")
            ],
        }
        for row in range(count)
    ]


def write_rows(path: Path, rows: list[Any]) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path
