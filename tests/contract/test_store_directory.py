"""What is particular to a folder: creation, what killed writers leave, what the disk refuses."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hiddenfeed.checksum import checksum_of
from hiddenfeed.errors import ConfigError, MissingObjectError, TransientError
from hiddenfeed.store import PutOutcome, open_store

KEY = "run-1/batches/000000.safetensors"

#: Starts a put of a file and stops in the middle of it, until killed.
_WRITER = """
import sys, threading
from pathlib import Path
from hiddenfeed.store import verified_file, open_store

original = verified_file.VerifiedBody.read
def read(self, size=-1):
    if self.tell():
        print("in the middle", flush=True)
        threading.Event().wait()
    return original(self, size)
verified_file.VerifiedBody.read = read
root, path, checksum = sys.argv[1:]
open_store(root).put_file("run-1/a", Path(path), size_bytes=Path(path).stat().st_size, checksum=checksum)
"""


def test_nothing_is_created_for_a_reader(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "typo"))
    with pytest.raises(ConfigError, match=f"^store folder {tmp_path}/typo does not exist$"):
        store.check()
    with pytest.raises(MissingObjectError):
        store.read("run-1/run.json")
    assert list(store.list("")) == []
    with pytest.raises(ConfigError, match=r"typo does not exist$"):
        store.write("run-1/run.json", b"x")
    assert not (tmp_path / "typo").exists()


def test_a_writer_may_have_the_folder_made(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/deep/store")
    store.check(create=True)
    assert store.url == f"{tmp_path}/deep/store"
    assert list(store.list("")) == []
    open_store(store.url).check()


@pytest.mark.parametrize("way", ["gone", "unmounted"])
def test_a_folder_that_goes_away_is_never_made_anew(tmp_path: Path, way: str) -> None:
    """What is left of a mount is the folder that it was mounted on, and the wrong disk."""
    root, file = tmp_path / "store", tmp_path / "file.bin"
    file.write_bytes(b"states")
    store = open_store(str(root))
    store.check(create=True)
    store.write("run-1/run.json", b"x")
    root.rename(tmp_path / "away")
    if way == "unmounted":
        root.mkdir()
    said = f"^store folder {root} is {'gone' if way == 'gone' else 'another folder than before'}; mount it"
    uses: list[Callable[[], object]] = [
        lambda: store.put_file(KEY, file, size_bytes=6, checksum=checksum_of(b"states")),
        lambda: store.write("run-1/run.json", b"y"),
        lambda: store.head("run-1/run.json"),
        lambda: store.read("run-1/run.json"),
        lambda: list(store.list("run-1/")),
        lambda: list(store.folders()),
        lambda: store.delete("run-1/run.json"),
        lambda: store.check(create=True),
        store.check,
    ]
    for use in uses:
        with pytest.raises(TransientError, match=said):
            use()
    assert list(root.rglob("*") if way == "unmounted" else [root.exists()]) in ([], [False])
    if way == "unmounted":
        root.rmdir()
    (tmp_path / "away").rename(root)
    assert store.put_file(KEY, file, size_bytes=6, checksum=checksum_of(b"states")) is PutOutcome.STORED


def test_a_folder_that_goes_away_in_mid_upload_has_stored_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, file = tmp_path / "store", tmp_path / "file.bin"
    file.write_bytes(b"states")
    store, link = open_store(str(root)), os.link
    store.check(create=True)

    def late(source: Path, target: Path) -> None:
        link(source, target)
        root.rename(tmp_path / "away")
        root.mkdir()

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", late)
        with pytest.raises(TransientError, match="is another folder than before"):
            store.put_file(KEY, file, size_bytes=6, checksum=checksum_of(b"states"))


def test_a_relative_folder_is_told_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("out").url == str(tmp_path / "out")


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for url in (tmp_path / "file", tmp_path / "file" / "below"):
        store = open_store(str(url))
        with pytest.raises(ConfigError, match="cannot be used"):
            store.check(create=True)
        with pytest.raises(ConfigError, match=f"^store folder {url} "):
            store.write("run-1/run.json", b"x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(ConfigError, match="permission denied"):
        open_store(str(tmp_path / "store")).check(create=True)


def test_a_full_disk_is_transient_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    store = open_store(str(tmp_path / "store"))
    store.check(create=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(TransientError, match="No space left on device"):
            store.write("run-1/run.json", b"x")
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_what_a_killed_writer_left_is_swept_and_a_living_one_kept(tmp_path: Path) -> None:
    root, path = tmp_path / "store", tmp_path / "file.bin"
    path.write_bytes(b"x" * (3 << 20))
    store = open_store(str(root))
    store.check(create=True)
    arguments = [sys.executable, "-c", _WRITER, str(root), str(path), checksum_of(path.read_bytes())]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"in the middle\n"
        assert store.head("run-1/a") is None
        store.check(create=True)
        assert len(list((root / ".tmp").iterdir())) == 1, "a living writer's file was taken away"
        assert list(store.list("")) == []
        writer.kill()
        writer.wait()
    store.check(create=True)
    assert list((root / ".tmp").iterdir()) == []
    assert store.head("run-1/a") is None


def test_stray_files_are_no_objects(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.write(KEY, b"x")
    (tmp_path / "run-1" / "batches" / ".hidden").write_text("x")
    (tmp_path / "run-1" / "dangling").symlink_to(tmp_path / "nowhere")
    assert [info.key for info in store.list("")] == [KEY]


def test_objects_are_plain_files_that_others_may_read(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    old_mask = os.umask(0o022)
    try:
        assert store.write(KEY, b"x", if_absent=True) is PutOutcome.STORED
    finally:
        os.umask(old_mask)
    status = (tmp_path / KEY).stat()
    assert status.st_mode & 0o777 == 0o644
    assert status.st_nlink == 1
    assert status.st_mtime <= time.time() + 1
