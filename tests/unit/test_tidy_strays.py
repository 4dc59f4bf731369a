"""What does not belong among a run's batches: found, taken away, and nothing else touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from hiddenfeed.cli import main
from hiddenfeed.errors import DataError, TransientError
from hiddenfeed.inventory import completion_gaps
from hiddenfeed.layout import batches_prefix, quarantine_note_key, quarantine_prefix
from hiddenfeed.proof import finish
from hiddenfeed.store.directory import DirectoryStore
from hiddenfeed.store.memory import MemoryStore
from hiddenfeed.tidy import find_strays, remove
from tests.synthetic_run import encode_batch, synthetic_run

RUN = synthetic_run()
OTHER = synthetic_run(name="other", seed=1)
Captured = pytest.CaptureFixture[str]


def _keys(store: MemoryStore) -> set[str]:
    return {info.key for info in store.list("")}


def test_a_run_in_order_has_nothing_out_of_place() -> None:
    store = MemoryStore()
    RUN.write(store, quarantined=[1])
    finish(store, RUN.run_id)
    assert find_strays(store, RUN.run_id, deep=True) == []


def test_what_a_proof_refuses_is_found_and_taken_away_and_the_proof_comes_through() -> None:
    store = MemoryStore()
    RUN.write(store, quarantined=[1])
    OTHER.write(store)
    belongs = _keys(store)
    forged = [
        f"{batches_prefix(RUN.run_id)}000003.safetensors",
        f"{batches_prefix(RUN.run_id)}notes.txt",
        f"{quarantine_prefix(RUN.run_id)}000000.safetensors",
        f"{quarantine_prefix(RUN.run_id)}sub/000000.json",
    ]
    for key in forged:
        store.write(key, b"x")
    with pytest.raises(DataError, match=f"`hiddenfeed tidy memory:/{RUN.run_id}` shows and removes"):
        finish(store, RUN.run_id)
    strays = find_strays(store, RUN.run_id)
    assert [stray.key for stray in strays] == sorted(forged)
    assert {stray.batch_id for stray in strays} == {None}
    assert _keys(store) == belongs | set(forged)  # to look changes nothing
    assert [stray.key for stray in remove(store, strays)] == sorted(forged)
    assert _keys(store) == belongs
    finish(store, RUN.run_id)


@pytest.mark.parametrize(
    ("data", "deep"),
    [
        (OTHER.batch_file(1), False),
        (RUN.batch_file(0), False),
        (RUN.batch_file(1)[:-1], False),
        (b"x", False),
        # States other than their checksum: only reading them tells.
        (RUN.batch_file(1)[:4096] + b"\xff" + RUN.batch_file(1)[4097:], True),
    ],
)
def test_a_forged_batch_is_found_and_extracted_again(tmp_path: Path, data: bytes, deep: bool) -> None:
    # A folder keeps no checksums.
    store = DirectoryStore(tmp_path) if deep else MemoryStore()
    RUN.write(store)
    store.write(RUN.key(1), data)
    if deep:
        assert find_strays(store, RUN.run_id) == []
    else:
        with pytest.raises(DataError, match="and the batch is then extracted again"):
            finish(store, RUN.run_id)
    (stray,) = find_strays(store, RUN.run_id, deep=deep)
    assert (stray.key, stray.batch_id) == (RUN.key(1), 1)
    assert len(list(remove(store, [stray]))) == 1
    assert completion_gaps(store, RUN.document) == [1]


def test_a_note_counts_only_where_there_is_no_file() -> None:
    store = MemoryStore()
    RUN.write(store, quarantined=[1])
    for batch in (0, 1):
        store.write(quarantine_note_key(RUN.run_id, batch), b"no note")
    assert [stray.key for stray in find_strays(store, RUN.run_id)] == [quarantine_note_key(RUN.run_id, 1)]


def test_a_store_that_goes_away_makes_nothing_a_stray(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    RUN.write(store)

    def away(*_: object) -> None:
        raise TransientError("the store is away")

    monkeypatch.setattr("hiddenfeed.tidy.file_evidence", away)
    with pytest.raises(TransientError):
        find_strays(store, RUN.run_id)


def test_without_a_plan_nothing_is_said() -> None:
    store = MemoryStore()
    with pytest.raises(DataError, match="there is no run"):
        find_strays(store, RUN.run_id)
    RUN.write(store)
    store.write(f"{RUN.run_id}/tokens.parquet", b"x")
    with pytest.raises(DataError, match=r"tokens\.parquet"):
        find_strays(store, RUN.run_id)


def test_the_command_shows_removes_and_says_what_comes_next(tmp_path: Path, capsys: Captured) -> None:
    store, url = DirectoryStore(tmp_path), f"{tmp_path}/{RUN.run_id}"
    RUN.write(store)
    assert main(["tidy", url]) == 0
    assert capsys.readouterr().out == f"nothing is out of place in {url}\n"
    store.write(RUN.key(1), encode_batch(OTHER.layout(1), OTHER.tensors(1)))
    store.write(f"{batches_prefix(RUN.run_id)}notes.txt", b"x")
    odd = tmp_path / RUN.run_id / "batches" / "my notes"
    odd.write_text("x")
    assert main(["tidy", url]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == ["found", "found", "found", "by", "--remove"]
    assert shown[1].startswith(f"found    {RUN.run_id}/batches/my notes does not belong there: it has not")
    assert shown[3].startswith(f"by hand  rm -- '{odd}'")
    assert main(["tidy", url, "--remove"]) == 0
    done = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in done] == ["removed", "removed", "found", "by", "to"]
    assert done[-1] == (
        f"to be extracted again: 1 batch (1); `python -m producer wait {RUN.run_id}` sees to it"
    )
    odd.unlink()
    assert completion_gaps(store, RUN.document) == [1]
