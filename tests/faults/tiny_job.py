"""The job that the fault runs do: a tiny random Llama, a tokenizer and conversations, made on the spot.

Two hundred batches and more, each of some ten milliseconds on one core, so that a fault at a random
instant meets work at every stage.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.tiny_chat import CHATML, VOCABULARY, pretrained

ROWS = 550
#: Rows that cannot be used; they must turn up in skipped.parquet.
BROKEN_ROWS = 3
_WORDS = [
    "hello",
    "world",
    "how",
    "are",
    "you",
    "fine",
    "thanks",
    "what",
    "is",
    "the",
    "answer",
    "to",
    "this",
]


@dataclass(frozen=True)
class TinyJob:
    """A model folder and a data file."""

    model: Path
    data: Path

    @property
    def settings(self) -> dict[str, str]:
        """What the producer is told, by setting name."""
        return {
            "model": str(self.model),
            "data": str(self.data),
            "taps": "0,1,2",
            "micro_batch_tokens": "128",
            "target_file_bytes": "90000",
            "queue_window": "60",
        }


def make_tiny_job(folder: Path) -> TinyJob:
    """Write model and data below `folder`; equal bytes every time."""
    return TinyJob(_save_model(folder / "model"), _write_data(folder / "data.jsonl"))


def _save_model(folder: Path) -> Path:
    # Seconds to import: only who makes the model pays.
    import torch
    import transformers as tf

    tf.utils.logging.disable_progress_bar()
    config = tf.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=96,
        max_position_embeddings=1024,
        # The usual one leaves blocks that hardly change their input: a state of another block would pass.
        initializer_range=0.25,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    tf.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    pretrained(CHATML).save_pretrained(folder)
    return folder


def _write_data(path: Path) -> Path:
    random = np.random.Generator(np.random.PCG64(0))
    with path.open("w", encoding="utf-8") as file:
        for row in range(ROWS):
            if row < BROKEN_ROWS:
                file.write("{broken\n")
                continue
            turns = [
                {"role": role, "content": " ".join(random.choice(_WORDS, random.integers(1, 30)))}
                for _ in range(random.integers(1, 4))
                for role in ("user", "assistant")
            ]
            file.write(json.dumps({"id": f"c{row}", "messages": turns}) + "\n")
    return path
