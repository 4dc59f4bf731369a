"""Where rows come from: files here and elsewhere, whatever their format, found, opened and read in order."""

from __future__ import annotations

from producer.rows import RawRow, SkippedRow, SourceRow
from producer.sources.files import DataFile, FileState, LocalFile
from producer.sources.find import find_files
from producer.sources.reader import RowReader

__all__ = [
    "DataFile",
    "FileState",
    "LocalFile",
    "RawRow",
    "RowReader",
    "SkippedRow",
    "SourceRow",
    "find_files",
]
