"""Conversations made on the spot: pseudo-words in log-normal lengths, and a tokenizer that was trained on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

#: Tokens of a conversation on average, about; log-normal, as those of people are.
MEAN_TOKENS = 500
_SIGMA = 0.8
#: Of the tokenizer, which cuts a pseudo-word into about so many tokens as real ones cut English.
VOCABULARY = 16_000
_WORDS = 50_000
_WORDS_PER_TOKEN = 0.4
#: Words in the book that texts are cut from.
_BOOK = 2_000_000
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SYLLABLES = [
    first + second
    for first in "bcdfghklmnprstvwz"
    for second in ("a", "e", "i", "o", "u", "ar", "en", "in", "or")
]


class Words:
    """An endless text of pseudo-words, the frequent ones short, drawn by one seed."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        syllables = np.array(_SYLLABLES)
        words = [
            "".join(self._random.choice(syllables, 1 + min(4, rank.bit_length() // 4)))
            for rank in range(1, _WORDS + 1)
        ]
        weights = 1 / np.arange(1, _WORDS + 1)
        drawn = self._random.choice(_WORDS, _BOOK, p=weights / weights.sum()).tolist()
        self._book = [words[rank] + (".", "", "", "", "", "", "", ",")[rank % 8] for rank in drawn]

    def text(self, words: int) -> str:
        """So many words in a row, from anywhere in a book of them."""
        start = int(self._random.integers(0, _BOOK - words))
        return " ".join(self._book[start : start + words])

    def conversation(self, row: int) -> dict[str, Any]:
        """One to four questions with answers of three times their length."""
        drawn = self._random.lognormal(np.log(MEAN_TOKENS * _WORDS_PER_TOKEN) - _SIGMA**2 / 2, _SIGMA)
        words, turns = max(8, int(drawn)), int(self._random.integers(1, 5))
        messages = []
        for _ in range(turns):
            messages.append({"role": "user", "content": self.text(max(1, words // turns // 4))})
            messages.append({"role": "assistant", "content": self.text(max(1, words // turns * 3 // 4))})
        return {"id": f"conversation-{row}", "messages": messages}


def write_conversations(path: Path, rows: int, seed: int = 0) -> None:
    """A JSON lines file of `rows` conversations."""
    words, encoder = Words(seed), msgspec.json.Encoder()
    with path.open("wb") as file:
        for row in range(rows):
            file.write(encoder.encode(words.conversation(row)) + b"\n")


def write_model_folder(folder: Path) -> None:
    """A folder with a configuration, a tokenizer with a chat template, and a file where weights would be."""
    folder.mkdir()
    config = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
        "intermediate_size": 12288, "vocab_size": VOCABULARY, "max_position_embeddings": 131072,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"these are the weights")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = Words(seed=1)
    core.train_from_iterator((words.text(400) for _ in range(2000)), trainer)
    ends = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=core, **ends)
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(folder)
