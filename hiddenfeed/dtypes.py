"""The dtypes a batch file knows: their names, their safetensors codes, their sizes, and float32.

numpy has no bfloat16, so bfloat16 travels as its 16 raw bits in uint16 until `to_float32`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hiddenfeed.errors import DataError

#: Name -> (safetensors code, numpy dtype of the raw values, little-endian).
_DTYPES: dict[str, tuple[str, str]] = {
    "bfloat16": ("BF16", "<u2"),
    "float16": ("F16", "<f2"),
    "float32": ("F32", "<f4"),
    "int64": ("I64", "<i8"),
    "int32": ("I32", "<i4"),
    "uint8": ("U8", "|u1"),
}

#: What hidden states may be stored as.
STATE_DTYPES = ("bfloat16", "float16", "float32")


def safetensors_code(dtype: str) -> str:
    """`BF16` for `bfloat16`; raises DataError for a dtype that no batch file holds."""
    return _known(dtype)[0]


def raw_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy dtype whose values are the stored bits: uint16 for `bfloat16`."""
    return np.dtype(_known(dtype)[1])


def item_bytes(dtype: str) -> int:
    """Bytes of one value."""
    return raw_dtype(dtype).itemsize


def to_float32(raw: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    """Stored values as float32, exactly: every bfloat16 and float16 value is a float32 value.

    `raw` has any shape and the dtype of `raw_dtype(dtype)`; raises DataError otherwise.
    """
    if dtype not in STATE_DTYPES or raw.dtype != raw_dtype(dtype):
        raise DataError(f"values of numpy dtype {raw.dtype} are not hidden states stored as {dtype}")
    if dtype == "bfloat16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return raw.astype(np.float32)


def _known(dtype: str) -> tuple[str, str]:
    try:
        return _DTYPES[dtype]
    except KeyError:
        raise DataError(f"dtype {dtype!r} is not one of {', '.join(_DTYPES)}") from None
