"""Hidden states of a language model over a dataset, read from a folder or S3; `open_run` is the way in.

Names are looked up on first use: the roles import the small modules below without pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hiddenfeed.reader import Batch, RunInfo, RunReader, Sample, open_run

__all__ = ["Batch", "RunInfo", "RunReader", "Sample", "open_run"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'hiddenfeed' has no attribute {name!r}")
    from hiddenfeed import reader

    return getattr(reader, name)
