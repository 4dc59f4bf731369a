"""A quantised checkpoint from end to end: batches through the worker's job into files, and `check` over what is stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from torch import nn

from gpu_worker.__main__ import main
from gpu_worker.agreement import tolerance_for
from gpu_worker.check import CheckReport
from hiddenfeed.reader import RunReader
from tests.extraction import LENGTHS, agreement_with, extract, tiny_run
from tests.quantised_models import BY_TRANSFORMERS, save_compressed

# Their warnings are of their own parts, and of torch's.
pytestmark = pytest.mark.filterwarnings("ignore")

#: Of each kind one: all three of compressed-tensors are loaded and compared elsewhere.
SAVERS: list[Callable[[Path], nn.Module]] = [partial(save_compressed, form="int-quantized"), *BY_TRANSFORMERS]


@pytest.mark.parametrize("save", SAVERS, ids=["compressed", "eight-bits", "four-bits", "torchao"])
def test_files_hold_what_the_whole_model_gives_and_the_check_agrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], save: Callable[[Path], nn.Module]
) -> None:
    saved: list[nn.Module] = []
    run = tiny_run(
        tmp_path,
        save=lambda folder: saved.append(save(folder)),
        dtype="bfloat16",
        taps=(0, 2, 3),
        final_state="post",
    )
    with run.extractor() as (extractor, _):
        uploads = [extract(extractor, manifest) for manifest in run.manifests]
    run.store_files(uploads)
    reader = RunReader(run.store, run.run_id)
    assert len(reader) == len(LENGTHS)
    agreement = agreement_with(reader, saved[0])
    assert agreement.worst(tolerance_for(["bfloat16"], median=False)) is None, agreement

    assert main(["check", "--store", str(run.store.root), "--run", run.run_id, "--samples", "4"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    report = msgspec.json.decode(last, type=CheckReport)
    assert report.ok
    assert (report.compute_dtype, report.dtype, len(report.samples)) == ("bfloat16", "bfloat16", 4)
    assert [state.state for state in report.states] == ["tap 0", "tap 2", "tap 3", "the final state"]
    assert all(line.endswith("ok") for line in lines[1:])
