"""`python -m gpu_worker check`: agrees with what is right, notices what is wrong, and says so in JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from common.settings.catalogue import ExtractSettings
from gpu_worker.__main__ import main
from gpu_worker.check import CheckReport, spread
from gpu_worker.extract import Extractor
from tests.extraction import TinyRun, extract, tiny_run


def _store_all(run: TinyRun, fault: Any = None) -> None:
    """Extract all batches and store them; `fault` changes what the model hands over."""
    with run.extractor() as (extractor, service), service.use(run.run_id) as served:
        if fault is not None:
            healthy = served.engine.model.forward

            def forward(ids: torch.Tensor, rows: Any) -> None:
                healthy(ids, rows)
                fault(rows.hidden_states)

            served.engine.model.forward = forward  # type: ignore[method-assign]
        run.store_files([extract(extractor, manifest) for manifest in run.manifests])


def _check(run: TinyRun, *arguments: str) -> int:
    return main(["check", "--store", str(run.store.root), "--run", run.run_id, *arguments])


def _report(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], CheckReport]:
    lines = capsys.readouterr().out.splitlines()
    return lines[:-1], msgspec.json.decode(lines[-1], type=CheckReport)


@pytest.mark.parametrize(
    ("architecture", "dtype", "final_state"),
    [
        ("llama", "float32", "none"),
        ("qwen3_moe", "bfloat16", "pre"),
        ("gemma3_multimodal", "bfloat16", "post"),
    ],
)
def test_stored_samples_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], architecture: str, dtype: str, final_state: str
) -> None:
    run = tiny_run(tmp_path, architecture=architecture, dtype=dtype, taps=(1, 4), final_state=final_state)
    _store_all(run)
    assert _check(run, "--samples", "5") == 0
    lines, report = _report(capsys)
    assert report.ok
    assert report.run_id == run.run_id
    assert len(report.samples) == 5
    assert report.compute_dtype == report.dtype == dtype
    finals = [] if final_state == "none" else ["the final state"]
    assert [state.state for state in report.states] == ["tap 1", "tap 4", *finals]
    assert all("ok" in line for line in lines[1:])


def test_states_of_a_neighbouring_tap_are_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tiny_run(tmp_path, taps=(1, 2, 4))

    def fault(states: torch.Tensor) -> None:
        states[:, [0, 1]] = states[:, [1, 0]]

    _store_all(run, fault)
    assert _check(run, "--samples", "1") == 1
    lines, report = _report(capsys)
    assert not report.ok
    assert [state.ok for state in report.states] == [False, False, True]
    assert "DIFFERS" in lines[1]


def test_files_computed_in_fewer_bits_are_held_against_no_more_than_these(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint is float32, its states are stored as float32, and somebody computed them in bfloat16."""
    run = tiny_run(tmp_path, taps=(1, 2, 4))
    service = run.service(ExtractSettings(compute_dtype="bfloat16"))
    service.prepare(run.run_id)
    spool = run.spool()
    run.store_files([extract(Extractor(service, spool), message) for message in run.manifests])
    service.close()
    assert _check(run, "--samples", "2") == 0
    _, report = _report(capsys)
    assert max(state.relative_error for state in report.states) > 1e-4


def test_samples_of_a_few_tokens_are_checked_only_where_there_are_no_others() -> None:
    assert spread(np.array([3, 20, 30, 16, 15]), 2) == [1, 3]
    assert spread(np.array([3, 20, 30, 16, 15]), 9) == [1, 2, 3]
    assert spread(np.array([3, 4, 5]), 2) == [0, 2]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--samples", "3"), "has no stored sample to check yet"),
        (("--run", "no-such-run"), "there is no run no-such-run"),
    ],
)
def test_nothing_to_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], reason: str
) -> None:
    run = tiny_run(tmp_path)
    assert _check(run, *arguments) == 65
    assert reason in capsys.readouterr().err


def test_run_must_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--store", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "error: --run must be given: which run to check\n"


def test_other_weights_are_no_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tiny_run(tmp_path)
    _store_all(run)
    other = tiny_run(tmp_path / "other", architecture="qwen2")
    assert _check(run, "--model-path", str(other.model)) == 2
    assert "is not the one that the run was planned for" in capsys.readouterr().err


def test_number_of_samples_must_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--store", str(tmp_path), "--run", "x", "--samples", "0"])
    assert "at least 1" in capsys.readouterr().err
