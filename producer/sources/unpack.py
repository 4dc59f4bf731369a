"""What a file is, told by its first bytes whatever its name says, and its content unpacked."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from dataclasses import dataclass
from typing import Literal, cast

import pyarrow as pa

from hiddenfeed.errors import ConfigError

Format = Literal["JSON lines", "a JSON array", "Parquet", "an Arrow file", "an Arrow stream"]

#: Also how exactly it can be said where a packed file is damaged, and how much of one can be looked at.
BUFFER_BYTES = 64 * 1024
#: Bytes looked at to tell what a file is.
HEAD_BYTES = 64
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_PACKED = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    # A zstd file may begin with a frame that says nothing; its first half byte is free.
    *((bytes([0x50 + free]) + b"\x2a\x4d\x18", "zstd") for free in range(16)),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
)
_TABLES: tuple[tuple[bytes, Format], ...] = (
    (b"PAR1", "Parquet"),
    (b"ARROW1", "an Arrow file"),
    (b"\xff\xff\xff\xff", "an Arrow stream"),
)
#: First bytes of formats that people have, and what to do with them.
_FOREIGN = (
    (b"PARE", "is an encrypted Parquet file; write it in the clear"),
    (b"FEA1", "is a Feather file of the first version; write it as Parquet"),
    (b"ORC", "is an ORC file; write it as Parquet"),
    (b"Obj\x01", "is an Avro file; write it as Parquet"),
    (b"PK\x03\x04", "is a zip archive; unpack it"),
    (b"\x89HDF", "is an HDF5 file; write it as Parquet"),
    (b"SQLite format 3", "is an SQLite database; write a table of it as Parquet"),
    (b"\xff\xfe", "is UTF-16 text; write it as UTF-8"),
    (b"\xfe\xff", "is UTF-16 text; write it as UTF-8"),
    (b"version https://git-lfs", "is a pointer of Git LFS and not the file itself; fetch it with git lfs pull"),
)  # fmt: skip

#: What reading a damaged file raises, beside OSError.
DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, pa.ArrowException)


@dataclass(frozen=True)
class Unpacked:
    """A file's content, and what was found around and in it."""

    stream: io.BufferedReader
    #: `gzip` and the like; None for a file that is as it is.
    packing: str | None
    format: Format

    def __str__(self) -> str:
        return f"{self.format}, {self.packing}" if self.packing else self.format


def unpack(where: str, raw: io.BufferedReader) -> Unpacked:
    """The content of a file just opened, at its start.

    Raises ConfigError naming `where` for formats that are not read, and what is in DAMAGE.
    """
    start = raw.read(HEAD_BYTES)
    raw.seek(0)
    packing = next((packing for magic, packing in _PACKED if start.startswith(magic)), None)
    stream = _stream(raw, packing)
    head = stream.peek(HEAD_BYTES) if packing else start
    for magic, what in _FOREIGN:
        if head.startswith(magic):
            raise ConfigError(f"{where} {what}")
    for magic, table in _TABLES:
        if head.startswith(magic):
            if packing:
                raise ConfigError(f"{where} is {table} inside {packing}; unpack it, tables are packed within")
            return Unpacked(stream, None, table)
    return Unpacked(stream, packing, _text_format(stream))


def _stream(raw: io.BufferedReader, packing: str | None) -> io.BufferedReader:
    unpacked: object = raw
    if packing == "gzip":
        unpacked = gzip.GzipFile(fileobj=raw)
    elif packing == "zstd":
        unpacked = pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")
    elif packing == "bzip2":
        unpacked = bz2.BZ2File(raw)
    elif packing == "xz":
        unpacked = lzma.LZMAFile(raw)  # noqa: SIM115 - the stream's to close
    return io.BufferedReader(cast(io.RawIOBase, unpacked), BUFFER_BYTES)


def _text_format(stream: io.BufferedReader) -> Format:
    """Lines or an array, by the first character; the stream stays where it is, behind a byte order mark."""
    if stream.peek(len(_BYTE_ORDER_MARK)).startswith(_BYTE_ORDER_MARK):
        stream.read(len(_BYTE_ORDER_MARK))
    start = stream.peek(BUFFER_BYTES).lstrip()
    if start.startswith(b"["):
        return "a JSON array"
    return "JSON lines"
