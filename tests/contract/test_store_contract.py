"""What every store promises, run over all of them; S3 is a real server."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hiddenfeed.checksum import CRC32, checksum_of
from hiddenfeed.errors import ConfigError, DataError, MissingObjectError
from hiddenfeed.options import MIB, StoreOptions
from hiddenfeed.store import PutOutcome, Store, open_store
from hiddenfeed.store.memory import MemoryStore

KEY = "run-1/batches/000000.safetensors"

MakeFile = Callable[[bytes], tuple[Path, str]]


@pytest.fixture(params=["memory", "directory", "s3", "s3-parts"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store of each kind; `s3-parts` uploads what is above 5 MiB in parts, and leaves verifying to the server."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "directory":
        opened = open_store(str(tmp_path / "store"))
        opened.check(create=True)
        return opened
    access = request.getfixturevalue("s3")
    smallest = 5 * MIB if request.param == "s3-parts" else 128 * MIB
    if request.param == "s3-parts":
        monkeypatch.setattr("hiddenfeed.store.s3_link.WORTH_ASKING_BYTES", 1)
    options = StoreOptions(
        s3_endpoint=access.endpoint, multipart_threshold_bytes=smallest, multipart_part_bytes=5 * MIB
    )
    return open_store(access.url, options)


@pytest.fixture
def make_file(tmp_path: Path) -> MakeFile:
    """Writes a file and returns it with its checksum."""

    def make(data: bytes) -> tuple[Path, str]:
        path = tmp_path / "upload.bin"
        path.write_bytes(data)
        return path, checksum_of(data)

    return make


def put(store: Store, path: Path, size: int, checksum: str, key: str = KEY) -> PutOutcome:
    return store.put_file(key, path, size_bytes=size, checksum=checksum, metadata={"worker": "w1"})


# --- put_file ---


@pytest.mark.parametrize("size", [1, 100_000, 12 * MIB + 17])
def test_a_file_arrives_whole_and_is_described(store: Store, make_file: MakeFile, size: int) -> None:
    data = os.urandom(size)
    path, checksum = make_file(data)
    assert put(store, path, size, checksum) is PutOutcome.STORED
    info = store.head(KEY, checksum=True)
    assert info is not None
    assert (info.key, info.size_bytes, info.checksum) == (KEY, size, checksum)
    assert store.read(KEY) == data


def test_crc32_is_an_equal_citizen(store: Store, make_file: MakeFile) -> None:
    data = os.urandom(6 * MIB)
    path, _ = make_file(data)
    checksum = checksum_of(data, CRC32)
    assert put(store, path, len(data), checksum) is PutOutcome.STORED
    assert put(store, path, len(data), checksum) is PutOutcome.ALREADY_THERE
    assert store.read(KEY) == data


@pytest.mark.parametrize("size", [1000, 6 * MIB])
def test_a_redelivered_file_is_already_there(store: Store, make_file: MakeFile, size: int) -> None:
    path, checksum = make_file(os.urandom(size))
    put(store, path, size, checksum)
    assert put(store, path, size, checksum) is PutOutcome.ALREADY_THERE


@pytest.mark.parametrize("other_size", [6 * MIB, 6 * MIB + 1])
def test_the_first_stored_wins(store: Store, make_file: MakeFile, other_size: int) -> None:
    first = os.urandom(6 * MIB)
    path, checksum = make_file(first)
    put(store, path, len(first), checksum)
    path, checksum = make_file(os.urandom(other_size))
    assert put(store, path, other_size, checksum) is PutOutcome.OTHER_WINS
    assert store.read(KEY) == first


def test_of_many_writers_at_once_one_wins(
    request: pytest.FixtureRequest, store: Store, tmp_path: Path
) -> None:
    writers = 6
    data = [bytes([number]) * (5 * MIB + 1) for number in range(writers)]
    for number, content in enumerate(data):
        (tmp_path / f"{number}.bin").write_bytes(content)
    barrier = threading.Barrier(writers)

    def race(number: int) -> PutOutcome:
        barrier.wait()
        path = tmp_path / f"{number}.bin"
        return put(store, path, len(data[number]), checksum_of(data[number]))

    with ThreadPoolExecutor(writers) as pool:
        outcomes = list(pool.map(race, range(writers)))
    assert set(outcomes) == {PutOutcome.STORED, PutOutcome.OTHER_WINS}
    won = [number for number, outcome in enumerate(outcomes) if outcome is PutOutcome.STORED]
    # This server looks and completes in two steps, so that now and then a second upload in parts replaces the first.
    assert len(won) == 1 or "s3-parts" in request.node.name
    assert store.read(KEY) in [data[number] for number in won]


def flipped(data: bytes) -> bytes:
    """One bit of the middle is another one."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("size", [1000, 6 * MIB + 5])
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flipped, "has checksum"),
        (lambda data: data[:-1], "has .* bytes where its writer announced"),
        (lambda data: data + b"x", "has .* bytes where its writer announced"),
        (lambda data: b"", "has 0 bytes"),
    ],
    ids=["flipped", "truncated", "grown", "emptied"],
)
def test_a_file_that_changed_never_becomes_an_object(
    store: Store, make_file: MakeFile, size: int, damage: Callable[[bytes], bytes], reason: str
) -> None:
    data = os.urandom(size)
    path, checksum = make_file(data)
    path.write_bytes(damage(data))
    with pytest.raises(DataError, match=reason):
        put(store, path, size, checksum)
    assert store.head(KEY) is None
    assert list(store.list("")) == []


def test_a_missing_file_and_a_link_are_refused(store: Store, make_file: MakeFile, tmp_path: Path) -> None:
    path, checksum = make_file(b"secret")
    (tmp_path / "link.bin").symlink_to(path)
    for wrong in (tmp_path / "gone.bin", tmp_path / "link.bin"):
        with pytest.raises(DataError, match="cannot be read"):
            put(store, wrong, 6, checksum)
    assert store.head(KEY) is None


def test_an_empty_file_or_document_is_refused(store: Store, make_file: MakeFile) -> None:
    path, checksum = make_file(b"")
    with pytest.raises(DataError, match="empty"):
        put(store, path, 0, checksum)
    with pytest.raises(DataError, match="empty"):
        store.write("run-1/run.json", b"")
    assert list(store.list("")) == []


@pytest.mark.parametrize(
    "checksum", ["", "crc64nvme", "md5:AAAA", "crc64nvme:AAAA", "crc64nvme:!", "crc32:ä"]
)
def test_a_checksum_that_is_none_is_refused(store: Store, make_file: MakeFile, checksum: str) -> None:
    path, _ = make_file(b"abc")
    with pytest.raises(DataError, match="checksum"):
        put(store, path, 3, checksum)
    assert store.head(KEY) is None


# --- write, read, download ---


def test_a_document_is_replaced_unless_told_otherwise(store: Store) -> None:
    key = "run-1/run.json"
    assert store.write(key, b"one", if_absent=True) is PutOutcome.STORED
    assert store.write(key, b"one", if_absent=True) is PutOutcome.ALREADY_THERE
    assert store.write(key, b"two", if_absent=True) is PutOutcome.OTHER_WINS
    assert store.read(key) == b"one"
    assert store.write(key, b"three") is PutOutcome.STORED
    assert store.read(key) == b"three"


def test_of_many_documents_at_once_one_wins(store: Store) -> None:
    barrier = threading.Barrier(6)

    def race(number: int) -> PutOutcome:
        barrier.wait()
        return store.write("run-1/run.json", b"%d" % number, if_absent=True)

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(race, range(6)))
    assert outcomes.count(PutOutcome.STORED) == 1
    assert store.read("run-1/run.json") == b"%d" % outcomes.index(PutOutcome.STORED)


def test_ranges(store: Store) -> None:
    store.write(KEY, b"0123456789")
    assert store.read(KEY, 3, 4) == b"3456"
    assert store.read(KEY, 7) == b"789"
    assert store.read(KEY, 7, 100) == b"789"
    assert store.read(KEY, 10, 5) == b""
    assert store.read(KEY, 99, 5) == b""
    assert store.read(KEY, 3, 0) == b""
    assert store.read(KEY, 0, 10) == b"0123456789"


def test_what_is_not_there_is_said_to_be_missing(store: Store, tmp_path: Path) -> None:
    assert store.head(KEY) is None
    assert store.head(KEY, checksum=True) is None
    for call in (
        lambda: store.read(KEY),
        lambda: store.read(KEY, 5, 5),
        lambda: store.read(KEY, 5, 0),
        lambda: store.download(KEY, tmp_path / "copy"),
    ):
        with pytest.raises(MissingObjectError):
            call()
    store.write("run-1/a", b"x")
    assert store.head("run-1/a/b") is None
    assert store.head("run-1") is None
    assert not (tmp_path / "copy").exists()


def test_download_replaces_the_file_and_tells_its_checksum(store: Store, tmp_path: Path) -> None:
    data = os.urandom(3 * MIB + 1)
    store.write("run-1/tokens.parquet", data)
    path = tmp_path / "tokens.parquet"
    path.write_bytes(b"older")
    info = store.download("run-1/tokens.parquet", path)
    assert path.read_bytes() == data
    assert (info.size_bytes, info.checksum) == (len(data), checksum_of(data))
    assert [entry.name for entry in tmp_path.iterdir() if ".tmp" in entry.name] == []


def test_download_into_no_folder_is_a_clear_error(store: Store, tmp_path: Path) -> None:
    store.write("run-1/run.json", b"x")
    with pytest.raises(ConfigError, match="cannot be written"):
        store.download("run-1/run.json", tmp_path / "nowhere" / "run.json")


# --- list, delete ---


def test_listing_is_by_prefix_and_in_order_within_a_folder(store: Store) -> None:
    keys = [
        "a-b/x", "a/batches/000000.safetensors", "a/batches/000001.safetensors", "a/batches2/z", "a/run.json", "b/run.json",
    ]  # fmt: skip
    for key in reversed(keys):
        store.write(key, key.encode())
    # Servers differ in how they order folders among each other.
    assert sorted(info.key for info in store.list("")) == keys
    assert [info.key for info in store.list("a/batches/")] == keys[1:3]
    assert sorted(info.key for info in store.list("a/bat")) == keys[1:4]
    assert [info.key for info in store.list("nothing/")] == []
    assert {info.key: info.size_bytes for info in store.list("b/")} == {"b/run.json": 10}
    assert sorted(store.folders()) == ["a", "a-b", "b"]


def test_delete_is_idempotent(store: Store) -> None:
    store.write(KEY, b"x")
    store.delete(KEY)
    store.delete(KEY)
    assert store.head(KEY) is None


# --- keys ---


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/.hidden", ".tmp/x", "a b", "a/"]
)
def test_no_key_leaves_the_root(store: Store, make_file: MakeFile, tmp_path: Path, key: str) -> None:
    path, checksum = make_file(b"abc")
    for call in (
        lambda: store.head(key),
        lambda: store.read(key),
        lambda: store.read(key, 1, 2),
        lambda: store.download(key, tmp_path / "copy"),
        lambda: store.write(key, b"x"),
        lambda: put(store, path, 3, checksum, key),
        lambda: store.delete(key),
    ):
        with pytest.raises(DataError, match="not allowed"):
            call()
