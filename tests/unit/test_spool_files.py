"""The spool: room, publication, paths, and what dead writers leave."""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
from pathlib import Path

import msgspec
import pytest

from common.settings.catalogue import SpoolSettings
from common.spool import Spool, kept_name
from common.spool_path import parse_spool_path
from hiddenfeed.errors import ConfigError, DataError, PermanentError, TransientError

MIB = 1024 * 1024


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    """A spool of 10 MiB."""
    return make_spool(tmp_path)


def make_spool(tmp_path: Path, *, cap: int = 10 * MIB, free: int = 0) -> Spool:
    folder = str(tmp_path / "spool")
    return Spool(SpoolSettings(spool_dir=folder, spool_cap_bytes=cap, spool_free_bytes=free))


def publish(
    spool: Spool, data: bytes, batch_id: int = 0, token: str = "t1", suffix: str = ".safetensors"
) -> str:
    part = spool.reserve("run-1", batch_id, token, len(data), suffix)
    assert part is not None
    with part:
        part.write_at(data, 0)
        return part.publish()


# --- writing ---


def test_a_file_appears_whole_under_its_name(spool: Spool) -> None:
    part = spool.reserve("run-1", 42, "abc", 10)
    assert part is not None
    with part:
        part.write_at(b"56789", 5)
        part.write_at(memoryview(b"01234"), 0)
        assert spool.files() == []
        assert [path.name for path in (spool.root / "run-1").iterdir()] == ["000042-abc.safetensors.part"]
        relative = part.publish()
    assert relative == "run-1/000042-abc.safetensors"
    assert spool.resolve(relative).read_bytes() == b"0123456789"
    (file,) = spool.files()
    assert (file.run_id, file.batch_id, file.path, file.size_bytes) == ("run-1", 42, relative, 10)


def test_a_block_that_raises_leaves_nothing(spool: Spool) -> None:
    part = spool.reserve("run-1", 0, "abc", 10)
    assert part is not None
    with pytest.raises(RuntimeError), part:
        raise RuntimeError
    part.discard()
    assert list((spool.root / "run-1").iterdir()) == []
    assert spool.usage().part_bytes == 0


def test_the_group_may_read_files_and_delete_them(spool: Spool) -> None:
    old_mask = os.umask(0o077)
    try:
        relative = publish(spool, b"x")
    finally:
        os.umask(old_mask)
    assert stat.S_IMODE(spool.resolve(relative).stat().st_mode) == 0o640
    for folder in (spool.root, spool.root / "run-1"):
        assert stat.S_IMODE(folder.stat().st_mode) & 0o070 == 0o070


def test_no_byte_beyond_what_was_reserved(spool: Spool) -> None:
    part = spool.reserve("run-1", 0, "abc", 10)
    assert part is not None
    with part, pytest.raises(PermanentError, match="exceeds 10 bytes"):
        part.write_at(b"123456", 5)


def test_a_file_of_another_size_is_not_published(spool: Spool) -> None:
    part = spool.reserve("run-1", 0, "abc", 10)
    assert part is not None
    with part:
        os.ftruncate(part.fd, 11)
        with pytest.raises(PermanentError, match="has 11 bytes where 10 were reserved"):
            part.publish()
    assert spool.files() == []


def test_a_token_is_used_once(spool: Spool) -> None:
    publish(spool, b"first")
    part = spool.reserve("run-1", 0, "t1", 5)
    assert part is not None
    with part, pytest.raises(PermanentError, match="a token must be used once"):
        part.publish()
    assert spool.resolve("run-1/000000-t1.safetensors").read_bytes() == b"first"


@pytest.mark.parametrize(
    ("token", "suffix"), [("", ".json"), ("../x", ".json"), ("a-b", ".json"), ("a", ".sh")]
)
def test_names_that_cannot_be(spool: Spool, token: str, suffix: str) -> None:
    with pytest.raises(PermanentError, match="cannot name a file"):
        spool.reserve("run-1", 0, token, 1, suffix)
    with pytest.raises(DataError, match="run id"):
        spool.reserve("../run", 0, "abc", 1)
    assert not spool.root.exists()


# --- room ---


def test_the_cap_counts_files_and_what_is_being_written(spool: Spool) -> None:
    publish(spool, bytes(4 * MIB), 0)
    part = spool.reserve("run-1", 1, "t", 5 * MIB)
    assert part is not None
    usage = spool.usage()
    assert (usage.files, usage.bytes, usage.part_bytes) == (1, 4 * MIB, 5 * MIB)
    assert spool.has_room(MIB)
    assert not spool.has_room(MIB + 1)
    assert spool.reserve("run-1", 2, "t", MIB + 1) is None
    part.discard()
    assert spool.has_room(6 * MIB)
    spool.remove("run-1/000000-t1.safetensors")
    assert spool.has_room(10 * MIB)


def test_a_file_larger_than_the_cap_is_an_error_not_a_wait(spool: Spool) -> None:
    with pytest.raises(
        ConfigError, match="never fits the spool's cap of 10485760 bytes; raise --spool-cap-bytes"
    ):
        spool.reserve("run-1", 0, "t", 10 * MIB + 1)


def test_the_cap_may_change_in_a_running_process(tmp_path: Path) -> None:
    now = SpoolSettings(spool_dir=str(tmp_path), spool_cap_bytes=10 * MIB, spool_free_bytes=0)
    spool = Spool(now, lambda: now)
    assert spool.has_room(2 * MIB)
    now = msgspec.structs.replace(now, spool_cap_bytes=MIB)
    assert not spool.has_room(2 * MIB)
    assert spool.usage().cap_bytes == MIB


def test_disk_space_for_others_is_left_free(tmp_path: Path) -> None:
    spool = make_spool(tmp_path, free=1 << 60)
    assert not spool.has_room(1)
    assert spool.reserve("run-1", 0, "t", 1) is None


@pytest.mark.parametrize("step", ["posix_fallocate", "ftruncate"])
def test_a_disk_that_is_full_after_all_means_no_room(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*arguments: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, full)
        assert spool.reserve("run-1", 0, "t", MIB) is None
    assert list((spool.root / "run-1").iterdir()) == []


def test_a_disk_that_cannot_promise_space_is_used_anyway(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*arguments: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", unsupported)
        part = spool.reserve("run-1", 0, "t", MIB)
        assert part is not None
        assert spool.usage().part_bytes == MIB
        assert spool.usage().promised_bytes == MIB
        part.discard()


def test_threads_share_the_cap(spool: Spool) -> None:
    barrier = threading.Barrier(8)
    won: list[object] = []

    def take(number: int) -> None:
        barrier.wait()
        for attempt in range(3):
            part = spool.reserve("run-1", number, f"t{attempt}", MIB)
            if part is not None:
                won.append(part)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 10
    assert spool.usage().part_bytes == 10 * MIB


# --- paths ---


@pytest.mark.parametrize(
    "path",
    [
        "", "/etc/passwd", "run-1", "run-1/", "../run-1/000000-t.safetensors", "run-1/../000000-t.safetensors",
        "run-1/a/000000-t.safetensors", "run-1/000000-t.safetensors.part", "run-1/000000-t.txt", "run-1/000000.json",
        "run-1//000000-t.json", "run-1/000000-t.json\n", ".lock", ".x/000000-t.json", "run-1/000000-t\x00.json",
    ],
)  # fmt: skip
def test_no_path_leaves_the_spool(spool: Spool, path: str) -> None:
    publish(spool, b"x")
    for call in (spool.resolve, spool.open, spool.remove, spool.is_replaced, parse_spool_path):
        with pytest.raises(PermanentError, match="is not the path of a file in a spool"):
            call(path)


def test_no_link_leads_out_of_the_spool(spool: Spool, tmp_path: Path) -> None:
    publish(spool, b"x")
    secret = tmp_path / "run-2"
    secret.mkdir()
    (secret / "000000-t.json").write_text("secret")
    (spool.root / "run-2").symlink_to(secret)
    (spool.root / "run-1" / "000001-t.json").symlink_to(secret / "000000-t.json")
    (spool.root / "run-1" / "000002-t.json").mkdir()
    for path in ("run-2/000000-t.json", "run-1/000001-t.json", "run-1/000002-t.json"):
        for call in (spool.resolve, spool.open):
            with pytest.raises(PermanentError, match="leaves the spool"):
                call(path)
    for path in ("run-2/000000-t.json", "run-1/000002-t.json"):
        for ask in (spool.is_replaced, spool.remove):
            with pytest.raises(PermanentError, match="leaves the spool"):
                ask(path)
    assert [file.path for file in spool.files()] == ["run-1/000000-t1.safetensors"]
    assert (secret / "000000-t.json").exists()


def test_what_has_a_files_name_is_taken_away_and_not_what_it_leads_to(spool: Spool, tmp_path: Path) -> None:
    ours = publish(spool, b"x")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (spool.root / "run-1" / "000001-t.json").symlink_to(secret)
    os.mkfifo(spool.root / "run-1" / "000002-t.json")
    found = [spool.is_replaced(path) for path in (ours, "run-1/000001-t.json", "run-1/000002-t.json")]
    assert found == [False, True, True]
    assert spool.remove("run-1/000001-t.json")
    assert spool.remove("run-1/000002-t.json")
    assert not spool.is_replaced("run-1/000002-t.json")
    assert secret.read_text() == "secret"
    assert sorted(path.name for path in (spool.root / "run-1").iterdir()) == [Path(ours).name]


def test_a_finished_file_is_opened_for_reading_only(spool: Spool) -> None:
    descriptor = spool.open(publish(spool, b"data"))
    try:
        assert os.read(descriptor, 10) == b"data"
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(descriptor, b"x")
    finally:
        os.close(descriptor)
    with pytest.raises(FileNotFoundError):
        spool.open("run-1/000009-t.safetensors")


def test_removing_twice_is_no_error(spool: Spool) -> None:
    relative = publish(spool, b"x")
    assert spool.remove(relative)
    assert not spool.remove(relative)


# --- sweeping ---


def test_a_living_writer_keeps_its_file_and_a_dead_one_does_not(spool: Spool) -> None:
    living = spool.reserve("run-1", 0, "living", 5)
    dead = spool.reserve("run-1", 1, "dead", 5)
    assert living is not None
    assert dead is not None
    os.close(dead.fd)  # what the kernel does for a process that dies
    publish(spool, b"x", 2, "finished")
    assert spool.sweep() == ["run-1/000001-dead.safetensors.part"]
    with living:
        living.write_at(b"hello", 0)
        living.publish()
    assert [file.batch_id for file in spool.files()] == [0, 2]


def test_sweeping_removes_folders_of_runs_that_are_through(spool: Spool) -> None:
    spool.remove(publish(spool, b"x"))
    (spool.root / "cache.d").mkdir()
    assert spool.sweep() == []
    assert sorted(path.name for path in spool.root.iterdir()) == [".lock", "cache.d"]


def test_a_spool_that_was_never_used(tmp_path: Path) -> None:
    spool = make_spool(tmp_path / "deep")
    assert spool.sweep() == []
    assert spool.files() == []
    assert spool.has_room(MIB)
    assert not spool.root.exists()
    spool.check()
    assert spool.root.is_dir()


def test_other_things_in_the_folder_are_left_alone(spool: Spool) -> None:
    publish(spool, b"x")
    (spool.root / "notes.txt").write_text("mine")
    (spool.root / "run-1" / "notes.txt").write_text("mine")
    assert [file.path for file in spool.files()] == ["run-1/000000-t1.safetensors"]
    assert spool.usage().bytes == 1
    spool.sweep()
    assert (spool.root / "run-1" / "notes.txt").exists()


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file")
    with pytest.raises(ConfigError, match=f"^spool folder {tmp_path}/spool cannot be written"):
        make_spool(tmp_path).check()


def test_a_spool_without_a_name_makes_one_up_and_all_who_share_the_folder_share_it(tmp_path: Path) -> None:
    here = SpoolSettings(spool_dir=str(tmp_path / "here"))
    worker, uploader = Spool(here), Spool(here)
    assert re.fullmatch(r"spool-[0-9a-f]{8}", worker.name)
    assert (uploader.name, kept_name(tmp_path / "here")) == (worker.name, worker.name)
    assert Spool(SpoolSettings(spool_dir=str(tmp_path / "there"))).name != worker.name
    assert Spool(msgspec.structs.replace(here, spool="mine")).name == "mine"


def test_a_damaged_name_is_refused_and_no_folder_keeps_none(tmp_path: Path) -> None:
    assert kept_name(tmp_path) == ""
    (tmp_path / ".name").write_text("../x\n")
    with pytest.raises(ConfigError, match="holds no name of a spool"):
        Spool(SpoolSettings(spool_dir=str(tmp_path))).check()


def test_a_path_too_long_for_the_file_system_is_for_a_person_to_mend(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 300)
    with pytest.raises(ConfigError, match="cannot be written: File name too long"):
        Spool(SpoolSettings(spool_dir=str(folder))).check()


def test_a_run_folder_that_is_a_link_takes_no_file(spool: Spool, tmp_path: Path) -> None:
    """Somebody short of space has moved it: what lies behind it would count for no cap and never be uploaded."""
    publish(spool, b"x")
    (spool.root / "run-1").rename(tmp_path / "elsewhere")
    (spool.root / "run-1").symlink_to(tmp_path / "elsewhere")
    assert "is a link" in (spool.problem_with("run-1") or "")
    with pytest.raises(TransientError, match="run-1 is a link: what lies behind it counts for no cap"):
        spool.reserve("run-1", 1, "t9", 1)
    assert spool.problem_with("run-2") is None
