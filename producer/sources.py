"""Input files: lines of JSON, plain or gzip, as rows; whatever cannot be a row is a skipped row.

Rows are numbered from 0 over all files in order; blank lines are not rows. A file that cannot be
read to its end is an error, because nobody could say which rows were lost with it.
"""

from __future__ import annotations

import glob
import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, cast

import msgspec

from hiddenfeed.errors import ConfigError
from hiddenfeed.options import MIB
from producer.rows import CONTENT_COLUMNS, Content, RowError, Shape, content_of, recognise, sample_id_of

#: A line longer than this is skipped unread; it bounds the memory that one row can take.
MAX_LINE_BYTES = 256 * MIB

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
#: First bytes of formats that people have, and what to do with them.
_FOREIGN = (
    (b"PAR1", "is a Parquet file; write it as JSON lines"),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd; unpack it or use gzip"),
    (b"ARROW1", "is an Arrow file; write it as JSON lines"),
    (b"PK\x03\x04", "is a zip archive; unpack it"),
    (b"BZh", "is compressed with bzip2; unpack it or use gzip"),
    (b"\xfd7zXZ\x00", "is compressed with xz; unpack it or use gzip"),
    (b"\xff\xfe", "is UTF-16 text; write it as UTF-8"),
    (b"\xfe\xff", "is UTF-16 text; write it as UTF-8"),
)


@dataclass(frozen=True)
class SourceRow:
    """One input row that reads well. `sample_id` is None where the row names none."""

    file: str
    source_row: int
    sample_id: str | None
    content: Content


@dataclass(frozen=True)
class SkippedRow:
    """One input row that does not become a sample, and why."""

    file: str
    source_row: int
    sample_id: str | None
    reason: str


def find_files(pattern: str) -> list[Path]:
    """The files that `pattern`, a path or a glob, names, sorted; raises ConfigError if there are none."""
    path = Path(pattern).expanduser()
    if path.is_dir():
        raise ConfigError(
            f"--data {pattern} is a folder; name a file or a pattern like {pattern.rstrip('/')}/*.jsonl"
        )
    found = [path] if path.exists() else [Path(name) for name in sorted(glob.glob(str(path)))]  # noqa: PTH207 - absolute patterns too
    files = [candidate for candidate in found if not candidate.is_dir()]
    if not files:
        raise ConfigError(f"--data {pattern} is not there")
    for file in files:
        _check_readable(file)
    return files


class RowReader:
    """Iterates over every row of some files, in order, and knows how far it is."""

    def __init__(
        self, files: Sequence[Path], on_shape: Callable[[Path, Shape], None] = lambda path, shape: None
    ) -> None:
        """`on_shape` hears how each file is read, at its first row that shows it."""
        self._files, self._on_shape = files, on_shape
        self._done_bytes, self._rows = 0, 0
        self._current: BinaryIO | None = None

    @property
    def bytes_read(self) -> int:
        """Bytes of the files, as they are on disk, that were read so far."""
        return self._done_bytes + (self._current.tell() if self._current and not self._current.closed else 0)

    def __iter__(self) -> Iterator[SourceRow | SkippedRow]:
        """Raises ConfigError for a file that cannot be read to its end."""
        for path in self._files:
            shape: Shape | None = None
            for number, line in self._lines(path):
                row, recognised = _read_row(path, number, self._rows, line, shape)
                if shape is None and recognised is not None:
                    shape = recognised
                    self._on_shape(path, shape)
                self._rows += 1
                yield row

    def _lines(self, path: Path) -> Iterator[tuple[int, bytes | None]]:
        """(line number from 1, its bytes) of every line that is not blank; None for one that is too long."""
        number = 0
        try:
            with path.open("rb") as raw, _unpacked(path, raw) as file:
                self._current = raw
                for number, line in enumerate(_bounded_lines(file), start=1):
                    if number == 1 and line is not None:
                        line = line.removeprefix(_BYTE_ORDER_MARK)
                        _refuse_array(path, line)
                    if line is None or line.strip():
                        yield number, line
                self._done_bytes, self._current = self._done_bytes + raw.tell(), None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ConfigError(f"{path} is damaged after line {number}: {str(error).rstrip('.')}") from None
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None


def _read_row(
    path: Path, number: int, source_row: int, line: bytes | None, shape: Shape | None
) -> tuple[SourceRow | SkippedRow, Shape | None]:
    """The row of one line, and the file's shape as known after it; `line` None is one that was too long."""
    sample_id: str | None = None
    try:
        if line is None:
            raise RowError(f"line {number} is longer than {MAX_LINE_BYTES // MIB} MiB")
        values = _decode(number, line)
        shape = shape or recognise(values)
        if shape is None:
            raise RowError(
                f"line {number} has none of {', '.join(CONTENT_COLUMNS)}; "
                f"it has {', '.join(map(str, list(values)[:8])) or 'nothing'}"
            )
        sample_id = sample_id_of(shape, values)
        return SourceRow(path.name, source_row, sample_id, content_of(shape, values)), shape
    except RowError as error:
        return SkippedRow(path.name, source_row, sample_id, str(error)), shape


def _decode(number: int, line: bytes) -> dict[str, object]:
    try:
        values = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RowError(f"line {number} is not JSON: {error}") from None
    except RecursionError:
        raise RowError(f"line {number} is not JSON that can be read: it is nested too deeply") from None
    if not isinstance(values, dict):
        raise RowError(f"line {number} is not a JSON object with named fields")
    return values


def _bounded_lines(file: IO[bytes]) -> Iterator[bytes | None]:
    """The lines of a file; None in place of one that is longer than allowed, which is read past in pieces."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) <= MAX_LINE_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while rest := file.readline(MAX_LINE_BYTES):
            if rest.endswith(b"\n"):
                break
        yield None


def _unpacked(path: Path, raw: BinaryIO) -> IO[bytes]:
    """The file's bytes, unpacked if they are gzip, whatever its name says; raises ConfigError for other formats."""
    start = raw.read(8)
    raw.seek(0)
    for magic, what in _FOREIGN:
        if start.startswith(magic):
            raise ConfigError(f"{path} {what}")
    return cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if start.startswith(_GZIP) else raw


def _refuse_array(path: Path, line: bytes) -> None:
    """A JSON array over many lines would be skipped line by line; say what it is instead."""
    if line.strip() == b"[":
        raise ConfigError(
            f"{path} is a JSON array; one object per line is read (jq -c '.[]' makes that of it)"
        )


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            return
    except OSError as error:
        raise ConfigError(f"--data {path} cannot be read: {error.strerror or error}") from None
