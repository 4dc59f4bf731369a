"""How many threads the forward pass may take: torch's own choice within what this process may use."""

from __future__ import annotations

import torch

from common.processors import allowed_processors


def processors() -> int:
    """Threads that this process may compute with, at least 1.

    torch goes by the machine, and more threads than a container's share of it wait for each other.
    """
    return min(torch.get_num_threads(), allowed_processors())
