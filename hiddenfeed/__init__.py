"""Hidden states of a language model over a dataset, read from a folder or S3; `open_run` is the way in.

Names are looked up on first use: the roles import the small modules below without pyarrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hiddenfeed.reader import Batch, RunInfo, RunReader, Sample, open_run
    from hiddenfeed.training import TrainingBatch, TrainingBatches

__all__ = [
    "Batch",
    "RunInfo",
    "RunReader",
    "Sample",
    "TrainingBatch",
    "TrainingBatches",
    "open_run",
]

_TRAINING = ("TrainingBatch", "TrainingBatches")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'hiddenfeed' has no attribute {name!r}")
    module = "hiddenfeed.training" if name in _TRAINING else "hiddenfeed.reader"
    return getattr(importlib.import_module(module), name)
