"""torch.compile, block by block: kernels are fused inside a block, and states are taken between blocks as ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def compile_blocks(blocks: nn.ModuleList, backend: str | Callable[..., Any] = "inductor") -> None:
    """Have every block compiled when it first runs, once for all lengths.

    The forward of a block, not the block: hooks stay outside of what is compiled.
    """
    for block in blocks:
        block.forward = torch.compile(block.forward, dynamic=True, backend=backend)
