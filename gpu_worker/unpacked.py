"""Keeps transformers from asking the device, pass by pass, whether several samples share a row: here they never do.

The answer is read from the device, so the question waits for everything that was asked of it before: the next forward
pass could be asked for only when the device has nothing left to do.
"""

from __future__ import annotations

from typing import Any


def never_packed() -> None:
    """Answer in place of the device, for this process. May be called again."""
    from transformers import masking_utils, modeling_flash_attention_utils

    answers: tuple[tuple[Any, str, Any], ...] = (
        (masking_utils, "find_packed_sequence_indices", None),
        (modeling_flash_attention_utils, "_is_packed_sequence", False),
    )
    for module, name, answer in answers:
        # A version that has no such question has no such answer either.
        if hasattr(module, name):
            setattr(module, name, _Answer(answer))


class _Answer:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._answer
