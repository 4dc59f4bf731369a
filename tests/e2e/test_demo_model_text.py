"""The demo's model as it comes from the package index: it loads anywhere, and it knows English."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_worker.demo_model import default_folder, demo_model
from gpu_worker.structure import dissect

_TEXT = "The capital of France is Paris. Water boils at one hundred degrees, and the sun rises in the east."


@pytest.fixture(scope="session")
def folder() -> Path:
    """Converted once per machine, as for the demo."""
    return demo_model(default_folder())


@pytest.mark.slow
def test_model_speaks_english(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert (dissect(model).num_blocks, model.config.hidden_size) == (30, 576)
    ids = torch.tensor([tokenizer(_TEXT)["input_ids"]])
    with torch.inference_mode():
        loss = float(model(input_ids=ids, labels=ids).loss)
    assert math.exp(loss) < 30


@pytest.mark.slow
def test_tokenizer_has_its_chat_template(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert "<|im_start|>user\nHi<|im_end|>" in text


@pytest.mark.slow
def test_other_users_can_read_it(folder: Path) -> None:
    assert {path.stat().st_mode & 0o444 for path in folder.iterdir()} == {0o444}
    assert folder.stat().st_mode & 0o555 == 0o555
