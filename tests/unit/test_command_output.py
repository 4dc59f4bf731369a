"""The command `hiddenfeed`: what it prints, where errors go, and how it is told where S3 is."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from hiddenfeed.cli import main
from hiddenfeed.errors import ConfigError
from hiddenfeed.layout import run_document_key
from hiddenfeed.options import StoreOptions
from hiddenfeed.proof import finish
from hiddenfeed.store.directory import DirectoryStore
from hiddenfeed.store_flags import add_store_flags, store_options
from hiddenfeed.words import size_text
from tests.synthetic_run import SyntheticRun, synthetic_run

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path) -> SyntheticRun:
    """A run with one batch to go, in the folder `tmp_path`."""
    run = synthetic_run(longest=60, final_state="post")
    run.write(DirectoryStore(tmp_path), batches=[0], quarantined=[2])
    return run


def _finish(run: SyntheticRun, folder: Path) -> None:
    store = DirectoryStore(folder)
    store.write(run.key(1), run.batch_file(1))
    finish(store, run.run_id)


def test_verify_says_what_is_missing_and_then_the_proof(
    run: SyntheticRun, tmp_path: Path, capsys: Captured
) -> None:
    url = f"{tmp_path}/{run.run_id}"
    assert main(["verify", url]) == 65
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"error: run {run.run_id} is not complete: 1 of 3 batches missing (1)\n"
    _finish(run, tmp_path)
    assert main(["verify", url]) == 0
    output = capsys.readouterr()
    assert "is complete: 14 input rows = 8 stored + 2 skipped + 4 quarantined" in output.out
    assert "2 batch files" in output.out
    assert "every byte" not in output.out
    assert main(["verify", url, "--deep"]) == 0
    assert "every byte was read" in capsys.readouterr().out
    assert main(["verify", url, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["finished"], document["proof"]["stored"]) == (True, 8)


def test_verify_says_that_the_proof_is_not_written_yet(tmp_path: Path, capsys: Captured) -> None:
    run = synthetic_run()
    run.write(DirectoryStore(tmp_path))
    assert main(["verify", f"{tmp_path}/{run.run_id}"]) == 0
    assert "complete.json is not written yet" in capsys.readouterr().out


def test_show_tells_how_far_a_run_is(run: SyntheticRun, tmp_path: Path, capsys: Captured) -> None:
    url = f"{tmp_path}/{run.run_id}"
    assert main(["show", url]) == 0
    lines = {line[:12].strip(): line[13:] for line in capsys.readouterr().out.splitlines()}
    assert lines["run"] == run.run_id
    assert lines["state"] == "1 batch to go"
    assert lines["batches"] == "1 of 3"
    assert lines["samples"] == "4 of 12"
    assert lines["taps"] == "0, 2, 3"
    assert lines["stored as"] == "bfloat16, with the state post the final norm"
    assert lines["skipped"].startswith("2 input rows")
    assert lines["quarantined"] == "1 batch"
    assert lines["files"].startswith(f"{url}/batches/")
    DirectoryStore(tmp_path).write(run.key(1), run.batch_file(1))
    assert main(["show", url]) == 0
    assert "the proof is not written yet" in capsys.readouterr().out
    _finish(run, tmp_path)
    assert main(["show", f"{url}/", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["complete"], info["samples_stored"], info["batches_quarantined"]) == (True, 8, 1)


def test_show_lists_the_runs_of_a_store(run: SyntheticRun, tmp_path: Path, capsys: Captured) -> None:
    other = synthetic_run(name="other", seed=3)
    other.write(DirectoryStore(tmp_path))
    finish(DirectoryStore(tmp_path), other.run_id)
    assert main(["show", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [run.run_id, other.run_id]
    assert "going on       1 of 3 batches" in lines[0]
    assert "complete       3 of 3 batches" in lines[1]
    assert main(["show", str(tmp_path), "--json"]) == 0
    assert [entry["stored"] for entry in json.loads(capsys.readouterr().out)] == [1, 3]


def test_show_of_an_empty_store_and_of_nothing(tmp_path: Path, capsys: Captured) -> None:
    assert main(["show", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no runs in {tmp_path}\n"
    assert main(["show", f"{tmp_path}/nowhere"]) == 2
    assert f"{tmp_path}/nowhere" in capsys.readouterr().err


def test_sample_prints_tokens_masks_and_norms(run: SyntheticRun, tmp_path: Path, capsys: Captured) -> None:
    url = f"{tmp_path}/{run.run_id}"
    longest = max(run.batches[0], key=lambda sample: len(sample.input_ids))
    position = run.batches[0].index(longest)
    assert len(longest.input_ids) > 20
    assert main(["sample", url, longest.sample_id]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        f"sample {longest.sample_id}, position {position}, input row {longest.source_row}: "
    )
    assert lines[1].split() == ["#", "token", "mask", "|tap", "0|", "|tap", "2|", "|tap", "3|", "|post-norm|"]
    first = lines[2].split()
    assert [int(text) for text in first[:3]] == [0, longest.input_ids[0], longest.loss_mask[0]]
    assert len(first) == 7
    assert lines[-2] == f"… {len(longest.input_ids) - 20} more; --all shows them"
    assert main(["sample", url, "--position", str(position), "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(longest.input_ids) + 3


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["sample", "{url}", "nobody"], 65, "has no stored sample 'nobody'"),
        (["sample", "{url}", "--position", "4"], 65, "has no sample at position 4: 4 can be read"),
        (["sample", "{url}", "--position", "-1"], 65, "has no sample at position -1"),
        (["sample", "{url}"], 2, "give the sample's id, or its position"),
        (["sample", "{url}", "a", "--position", "1"], 2, "give the sample's id, or its position"),
        (["sample", "{root}/none-1", "a"], 65, "there is no run none-1 in"),
        (["verify", "{root}/none-1"], 65, "there is no run none-1 in"),
        (["verify", "{root}/none/none-1"], 2, "/none does not exist"),
        (["sample", "{root}/none/none-1", "a"], 2, "/none does not exist"),
        (["verify", "s3://bucket"], 2, "is not the URL of a run"),
        (
            ["verify", "{url}", "--s3-region", "x", "--s3-conditional-writes", "maybe"],
            2,
            "it takes yes or no",
        ),
        (["verify", "ftp://host/run-1"], 2, "is neither s3://bucket/prefix nor a folder"),
        (
            ["verify", "{url}", "--s3-max-attempts", "0"],
            2,
            "--s3-max-attempts '0' cannot be used: it takes a whole number, 1 or more",
        ),
        (
            ["show", "{url}", "--s3-addressing", "odd"],
            2,
            "--s3-addressing 'odd' cannot be used: it takes auto, path or virtual",
        ),
    ],
)
def test_errors_are_one_line_on_stderr(
    run: SyntheticRun, tmp_path: Path, capsys: Captured, arguments: list[str], code: int, reason: str
) -> None:
    filled = [text.format(url=f"{tmp_path}/{run.run_id}", root=tmp_path) for text in arguments]
    assert main(filled) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    assert reason in output.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["verfy", "x"], "there is no command 'verfy'; did you mean verify? hiddenfeed --help tells more"),
        (
            ["show", "x", "--s3-endpont=y"],
            "there is no flag --s3-endpont; did you mean --s3-endpoint? hiddenfeed ",
        ),
        (["show", "x", "y"], "'y' is one word too many; hiddenfeed --help tells more"),
        (["show"], "URL is missing; hiddenfeed show --help tells more"),
        (
            ["sample", "x", "--position", "first"],
            "--position 'first' cannot be used: it takes a whole number; ",
        ),
        (["sample", "x", "--position"], "--position needs a value behind it; "),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: list[str], said: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"error: {said}")
    assert output.err.count("\n") == 1


def test_a_broken_run_document_does_not_hide_behind_a_listing(
    run: SyntheticRun, tmp_path: Path, capsys: Captured
) -> None:
    DirectoryStore(tmp_path).write(run_document_key(run.run_id), b"{}")
    assert main(["show", str(tmp_path)]) == 65
    assert run_document_key(run.run_id) in capsys.readouterr().err


def test_store_flags_cover_the_declaration_and_repeat_no_default() -> None:
    parser = argparse.ArgumentParser()
    add_store_flags(parser)
    declared = {field.name for field in msgspec.structs.fields(StoreOptions) if field.name.startswith("s3_")}
    assert set(vars(parser.parse_args([]))) == declared
    assert store_options(parser.parse_args([]), {}) == StoreOptions()
    for name in declared:
        assert f"HIDDENFEED_{name.upper()}" in parser.format_help().replace("\n", "").replace(" ", "")


def test_a_flag_goes_before_the_environment_and_that_before_the_default() -> None:
    parser = argparse.ArgumentParser()
    add_store_flags(parser)
    environ = {
        "HIDDENFEED_S3_ENDPOINT": "http://environment:1",
        "HIDDENFEED_S3_REGION": "eu-central-1",
        "HIDDENFEED_S3_READ_TIMEOUT_SECONDS": "1.5",
        "HIDDENFEED_S3_MAX_ATTEMPTS": "",
        "HIDDENFEED_UPLOAD_PARALLELISM": "7",
    }
    options = store_options(parser.parse_args(["--s3-endpoint", "http://flag:1"]), environ)
    assert options == StoreOptions(
        s3_endpoint="http://flag:1", s3_region="eu-central-1", s3_read_timeout_seconds=1.5
    )
    with pytest.raises(
        ConfigError, match="HIDDENFEED_S3_MAX_ATTEMPTS 'many' cannot be used: it takes a whole number"
    ):
        store_options(parser.parse_args([]), {"HIDDENFEED_S3_MAX_ATTEMPTS": "many"})


def test_the_module_runs_and_a_closed_pipe_is_no_error(run: SyntheticRun, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hiddenfeed", "show", f"{tmp_path}/{run.run_id}"]
    whole = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.run_id in whole.stdout
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        cut = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (cut.returncode, cut.stderr) == (0, "")


def test_importing_the_library_loads_neither_torch_nor_boto3_nor_redis() -> None:
    script = (
        "import sys, hiddenfeed, hiddenfeed.errors, hiddenfeed.layout\n"
        "assert 'pyarrow' not in sys.modules and 'numpy' not in sys.modules\n"
        "hiddenfeed.open_run\n"
        "loaded = {'torch', 'safetensors', 'boto3', 'redis', 'rq'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**30, "5.0 GiB"), (2**52, "4096.0 TiB")],
)
def test_sizes_are_read_by_people(size: int, text: str) -> None:
    assert size_text(size) == text
