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

_ROOT = Path(__file__).parents[2]


def _little_run(folder: Path) -> str:
    run, store = synthetic_run(longest=30), DirectoryStore(folder)
    run.write(store)
    finish(store, run.run_id)
    return f"{folder}/{run.run_id}"


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_a_drafter_learns_a_run(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = _little_run(tmp_path)
    settings = ["--vocabulary", "1000", "--width", "64", "--tokens", "400", "--steps", "45"]
    # Threads that wait for each other on cores that other tests use take several times the time.
    torch.set_num_threads(1)
    monkeypatch.setattr(sys, "argv", ["train", url, "--kind", kind, *settings])
    runpy.run_path(str(_ROOT / "examples/train_drafter.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert f"{Path(url).name}: 12 samples, taps (0, 2, 3) of example/tiny" in said
    steps = [line for line in said.splitlines() if line.startswith("step ")]
    # The first step has no pace yet, the last one is always there.
    assert re.fullmatch(r"step 1 of 45: loss [\d.]+, \d+% of the tokens guessed right", steps[0])
    for number, line in ((5, steps[1]), (20, steps[2])):
        assert re.fullmatch(rf"step {number} of 45: .* right, [\d,]+ tokens/s, 0:\d\d:\d\d left", line)
    assert re.fullmatch(r"step 45 of 45: .* right, [\d,]+ tokens/s, 0:00:00 left", steps[4])
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", said)]
    assert len(losses) == 5
    assert losses[-1] < losses[0] * 0.6


def test_a_run_that_is_not_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train", f"{tmp_path}/nope"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(_ROOT / "examples/train_drafter.py"), run_name="__main__")
    assert str(ended.value.code).startswith(f"error: there is no run nope in {tmp_path}")


def test_what_the_documents_show_can_be_pasted(tmp_path: Path) -> None:
    url, drafted = _little_run(tmp_path), []

    def my_drafter(states: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor) -> None:
        assert states.dtype == torch.bfloat16
        assert states.shape[:2] == ids.shape == mask.shape
        drafted.append(ids)

    names: dict[str, object] = {"my_drafter": my_drafter}
    for document in ("README.md", "docs/training.md"):
        text = (_ROOT / document).read_text(encoding="utf-8")
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        assert blocks
        for block in blocks:
            here = re.sub(r's3://[^"]+', url, block)
            for gpu in (".cuda()", ".cuda(non_blocking=True)", ", pin_memory=True"):
                here = here.replace(gpu, "")
            here = here.replace("num_workers=4", "num_workers=0").replace('"its id"', "run.sample_ids[0]")
            exec(compile(here, document, "exec"), names)
    assert len(drafted) == 3
