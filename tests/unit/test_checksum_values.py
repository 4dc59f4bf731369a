"""Checksums: known values, running, combined, and what is refused."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiddenfeed import checksum
from hiddenfeed.checksum import CRC32, CRC64NVME, RunningChecksum, checksum_of, combine, file_checksum, parse
from hiddenfeed.errors import ConfigError, DataError

BOTH = pytest.mark.parametrize("algorithm", [CRC64NVME, CRC32])


def test_the_check_values_of_the_standards() -> None:
    assert parse(checksum_of(b"123456789", CRC64NVME)) == (CRC64NVME, bytes.fromhex("ae8b14860a799888"))
    assert parse(checksum_of(b"123456789", CRC32)) == (CRC32, bytes.fromhex("cbf43926"))
    assert checksum_of(b"", CRC32) == "crc32:AAAAAA=="


def test_new_files_get_the_cheapest_that_s3_verifies() -> None:
    assert checksum_of(b"x").startswith("crc64nvme:")


@BOTH
@given(pieces=st.lists(st.binary(max_size=300), min_size=1, max_size=6))
def test_pieces_run_and_combine_to_the_whole(algorithm: str, pieces: list[bytes]) -> None:
    whole = checksum_of(b"".join(pieces), algorithm)
    running = RunningChecksum(algorithm)
    for piece in pieces:
        running.update(memoryview(piece))
    assert running.value == whole
    assert combine((checksum_of(piece, algorithm), len(piece)) for piece in pieces) == whole


def test_combining_does_not_depend_on_the_length_being_small() -> None:
    first, zeros = b"hidden", bytes(70_000_001)
    both = combine([(checksum_of(first), len(first)), (checksum_of(zeros), len(zeros))])
    assert both == checksum_of(first + zeros)


@BOTH
def test_a_file(algorithm: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 9_000
    (tmp_path / "file").write_bytes(data)
    assert file_checksum(tmp_path / "file", algorithm) == checksum_of(data, algorithm)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "unknown checksum algorithm ''"),
        ("md5:AAAAAA==", "unknown checksum algorithm 'md5'"),
        ("crc32", "has 4 bytes"),
        ("crc32:AAAAAAAAAAA=", "has 4 bytes"),
        ("crc64nvme:AAAAAA==", "has 8 bytes"),
        ("crc32:AAAA!A==", "not base64"),
        ("crc32:ä", "not base64"),
    ],
    ids=["empty", "unknown", "no value", "too long", "too short", "no base64", "no ascii"],
)
def test_what_is_no_checksum(text: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        parse(text)


def test_what_does_not_combine() -> None:
    with pytest.raises(DataError, match="different algorithms"):
        combine([(checksum_of(b"a", CRC32), 1), (checksum_of(b"b", CRC64NVME), 1)])
    with pytest.raises(DataError, match="no pieces"):
        combine([])


def test_without_awscrt_the_reason_and_the_remedy_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithms = {**checksum._ALGORITHMS, CRC64NVME: checksum._Algorithm(8, 1, None)}
    monkeypatch.setattr(checksum, "_ALGORITHMS", algorithms)
    with pytest.raises(ConfigError, match="needs the package awscrt"):
        checksum_of(b"x", CRC64NVME)
    assert parse(checksum_of(b"x", CRC32))[1] == zlib.crc32(b"x").to_bytes(4, "big")
