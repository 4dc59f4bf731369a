"""The examples, on a run small enough to be learnt by heart."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from hiddenfeed.proof import finish
from hiddenfeed.store.directory import DirectoryStore
from tests.synthetic_run import synthetic_run

_EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_a_drafter_learns_a_run(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, store = synthetic_run(longest=30), DirectoryStore(tmp_path)
    run.write(store)
    finish(store, run.run_id)
    settings = ["--vocabulary", "1000", "--width", "64", "--tokens", "400", "--steps", "40"]
    # Threads that wait for each other on cores that other tests use take several times the time.
    torch.set_num_threads(1)
    monkeypatch.setattr(sys, "argv", ["train", f"{tmp_path}/{run.run_id}", "--kind", kind, *settings])
    runpy.run_path(str(_EXAMPLES / "train_drafter.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert f"{run.run_id}: 12 samples, taps (0, 2, 3) of example/tiny" in said
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", said)]
    assert len(losses) == 3
    assert losses[-1] < losses[0] * 0.6
