"""Files that are owned while they are written, and a sweeper that comes at the worst moment."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from hiddenfeed.owned_file import create_owned, remove_if_abandoned


def test_a_sweeper_leaves_a_file_alone_while_its_writer_lives(tmp_path: Path) -> None:
    path = tmp_path / "file"
    descriptor = create_owned(path)
    assert not remove_if_abandoned(path)
    os.close(descriptor)
    assert remove_if_abandoned(path)
    assert not path.exists()


def test_a_file_that_a_sweeper_meets_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweeper has it locked and not yet removed when its writer tries: there is a moment with the name taken."""
    path, may_remove = tmp_path / "file", threading.Event()
    sweepers: list[threading.Thread] = []
    honest = fcntl.flock

    def sweep() -> None:
        descriptor = os.open(path, os.O_RDONLY)
        honest(descriptor, fcntl.LOCK_EX)
        held.set()
        may_remove.wait(10)
        path.unlink()
        os.close(descriptor)

    def first_swept(descriptor: int, how: int) -> None:
        if not sweepers:
            sweepers.append(threading.Thread(target=sweep))
            sweepers[0].start()
            held.wait(10)
            threading.Timer(0.05, may_remove.set).start()
        honest(descriptor, how)

    held = threading.Event()
    patched: Any = fcntl
    monkeypatch.setattr(patched, "flock", first_swept)
    descriptor = create_owned(path)
    sweepers[0].join()
    assert os.path.samestat(os.fstat(descriptor), path.stat())
    os.close(descriptor)
