"""Checksums of files and objects: computed as bytes pass by, written as `algorithm:base64`.

CRC64NVME where awscrt is installed (S3 verifies it, and it costs a third of CRC32), else CRC32 of
the standard library. Both are linear, so pieces written in any order combine without a second read.
The text form is what S3 itself speaks: the base64 of the big-endian value.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hiddenfeed.errors import ConfigError, DataError

try:
    from awscrt.checksums import crc64nvme as _crc64nvme
except ImportError:
    _crc64nvme = None

Buffer = bytes | bytearray | memoryview

CRC64NVME = "crc64nvme"
CRC32 = "crc32"

_READ_BYTES = 1024 * 1024


@dataclass(frozen=True)
class _Algorithm:
    """A reflected CRC: its width in bytes, its polynomial, and what continues it over more bytes."""

    width_bytes: int
    polynomial: int
    extend: Callable[[Buffer, int], int] | None


_ALGORITHMS = {
    CRC64NVME: _Algorithm(8, 0x9A6C9329AC4BC9B5, _crc64nvme),
    CRC32: _Algorithm(4, 0xEDB88320, zlib.crc32),
}

#: What new files get.
ALGORITHM = CRC64NVME if _crc64nvme is not None else CRC32


class RunningChecksum:
    """A checksum that grows with the bytes it is given, in order."""

    def __init__(self, algorithm: str = ALGORITHM) -> None:
        """Raises DataError for an unknown algorithm, ConfigError for one that this machine cannot compute."""
        self.algorithm = algorithm
        self._extend = _computable(algorithm)
        self._value = 0

    def update(self, data: Buffer) -> None:
        """Continue over `data`, any C-contiguous buffer; releases the GIL for large ones."""
        self._value = self._extend(data, self._value)

    @property
    def value(self) -> str:
        """`algorithm:base64` over all bytes so far."""
        return _text(self.algorithm, self._value)


def checksum_of(data: Buffer, algorithm: str = ALGORITHM) -> str:
    """`algorithm:base64` of `data`."""
    running = RunningChecksum(algorithm)
    running.update(data)
    return running.value


def file_checksum(path: Path, algorithm: str = ALGORITHM) -> str:
    """`algorithm:base64` of the file's bytes, read once; raises OSError if it cannot be read."""
    running = RunningChecksum(algorithm)
    buffer = bytearray(_READ_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            running.update(view[:count])
    return running.value


def combine(pieces: Iterable[tuple[str, int]]) -> str:
    """The checksum of pieces laid end to end, from `(checksum, length in bytes)` of each, in file order.

    Raises DataError if there are no pieces or their algorithms differ.
    """
    total, common = 0, ""
    for text, length in pieces:
        algorithm, raw = parse(text)
        if common and algorithm != common:
            raise DataError(f"checksums of different algorithms do not combine: {common} and {algorithm}")
        common = algorithm
        total = _shift(algorithm, total, length) ^ int.from_bytes(raw, "big")
    if not common:
        raise DataError("there is no checksum of no pieces")
    return _text(common, total)


def parse(text: str) -> tuple[str, bytes]:
    """(algorithm, big-endian value) of `algorithm:base64`; raises DataError naming what is wrong."""
    algorithm, _, encoded = text.partition(":")
    try:
        value = base64.b64decode(encoded, validate=True)
    except ValueError:
        raise DataError(f"{text!r} is not a checksum: its value is not base64") from None
    if len(value) != _known(algorithm).width_bytes:
        raise DataError(f"{text!r} is not a checksum: {algorithm} has {_known(algorithm).width_bytes} bytes")
    return algorithm, value


def _known(algorithm: str) -> _Algorithm:
    try:
        return _ALGORITHMS[algorithm]
    except KeyError:
        raise DataError(
            f"unknown checksum algorithm {algorithm!r}; known: {', '.join(_ALGORITHMS)}"
        ) from None


def _computable(algorithm: str) -> Callable[[Buffer, int], int]:
    extend = _known(algorithm).extend
    if extend is None:
        raise ConfigError(f"checksum {algorithm} needs the package awscrt: pip install 'hiddenfeed[s3]'")
    return extend


def _text(algorithm: str, value: int) -> str:
    raw = value.to_bytes(_ALGORITHMS[algorithm].width_bytes, "big")
    return f"{algorithm}:{base64.b64encode(raw).decode()}"


def _shift(algorithm: str, value: int, length: int) -> int:
    """The CRC of the same bytes followed by `length` more, before those are mixed in."""
    exponent, bit = 8 * length, 0
    while exponent:
        if exponent & 1:
            value = _multiply(algorithm, value, _power(algorithm, bit))
        exponent >>= 1
        bit += 1
    return value


@cache
def _power(algorithm: str, doublings: int) -> int:
    """x to the 2**doublings, modulo the polynomial."""
    if doublings == 0:
        return 1 << (8 * _ALGORITHMS[algorithm].width_bytes - 2)
    half = _power(algorithm, doublings - 1)
    return _multiply(algorithm, half, half)


def _multiply(algorithm: str, left: int, right: int) -> int:
    """Product of two polynomials over GF(2); reflected, so the highest bit is x to the 0."""
    polynomial = _ALGORITHMS[algorithm].polynomial
    bit, product = 1 << (8 * _ALGORITHMS[algorithm].width_bytes - 1), 0
    while bit:
        if left & bit:
            product ^= right
        right = (right >> 1) ^ (polynomial if right & 1 else 0)
        bit >>= 1
    return product
