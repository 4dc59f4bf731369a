"""What a run will take, against figures worked out by hand; and the command that says it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hiddenfeed.batch_file import BatchFacts, BatchLayout
from hiddenfeed.options import MIB
from producer.__main__ import commands
from producer.forecast import (
    DOCUMENTS,
    Load,
    Machines,
    file_bytes,
    forecast,
    load_of_numbers,
    load_of_plan,
    mean_tokens,
    put_requests,
)
from producer.forecast_lines import Kept
from producer.plan import PlanLimits, make_plan
from tests.tiny_chat import conversations, write_model_folder, write_rows

#: 5 taps × 5120 × 2 bytes, an int32 id and a uint8 mask.
PER_TOKEN = 5 * 5120 * 2 + 4 + 1
CONVERSATIONS = 913_786
FOUR = Machines(gpus=4, tokens_per_second=10_000, batches_in_flight=3)


def test_the_reference_run_is_twenty_tokens_a_conversation() -> None:
    assert Kept(5, 5120, "bfloat16", "none").bytes_per_token == PER_TOKEN == 51_205
    # 950e9 / 913,786 = 1,039,630.7 bytes a conversation; / 51,205 = 20.30 tokens.
    assert mean_tokens(950 * 10**9, CONVERSATIONS, PER_TOKEN) == pytest.approx(20.303, abs=0.001)


def test_what_five_hundred_tokens_each_would_take() -> None:
    load = load_of_numbers(CONVERSATIONS, CONVERSATIONS * 500, PER_TOKEN, 512 * MIB)
    # 536,870,912 // 51,205 = 10,484 tokens a file; 456,893,000 / 10,484 = 43,580.03: 43,581 files.
    assert load.files == 43_581
    # 456,893,000 × 51,205 = 23.395e12 bytes of tokens; headers and indices are 0.2e9.
    assert load.size_bytes == pytest.approx(23.395e12, rel=1e-3)
    assert load.largest_file <= 512 * MIB
    # 16 parts of 32 MiB, one request to begin and one to end.
    assert put_requests(load, 128 * MIB, 32 * MIB) == 43_581 * 18 + DOCUMENTS
    found = forecast(load, FOUR)
    # 456,893,000 / 40,000 a second = 11,422 s, 3 h 10 min.
    assert found.compute_seconds == found.seconds == pytest.approx(11_422.3, abs=0.1)
    # 40,000 tokens/s × 51,205 bytes = 2.048 GB/s.
    assert found.upload_needed == pytest.approx(2.048e9, rel=1e-3)
    # 4 GPUs × (3 in flight and one uploading).
    assert found.peak_spool == 16 * load.largest_file


def test_a_slow_upload_decides_and_piles_up() -> None:
    load = Load(samples=1000, tokens=1_000_000, padded_tokens=1_000_000, file_sizes=((10**7, 100),))
    machines = Machines(gpus=2, tokens_per_second=5000, batches_in_flight=3, upload_bytes_per_second=4e6)
    found = forecast(load, machines)
    # 100 s of computing, 1 GB: 10 MB/s needed, 4 MB/s there: 250 s, and 600 MB pile up.
    assert (found.compute_seconds, found.upload_needed, found.seconds) == (100, 1e7, 250)
    assert not found.upload_keeps_up
    assert found.peak_spool == 600_000_000 + 2 * 4 * 10**7
    # Never more than there is.
    slower = Machines(gpus=20, tokens_per_second=5000, batches_in_flight=3, upload_bytes_per_second=1)
    assert forecast(load, slower).peak_spool == load.size_bytes


def test_padding_takes_time_and_no_bytes() -> None:
    load = Load(samples=1, tokens=100, padded_tokens=200, file_sizes=((500, 1),))
    assert forecast(load, Machines(1, 10, 3)).compute_seconds == 20


def test_small_files_take_one_request_each() -> None:
    load = Load(samples=9, tokens=9, padded_tokens=9, file_sizes=((128 * MIB, 2), (128 * MIB + 1, 3)))
    # 128 MiB and a byte are five parts of 32 MiB.
    assert put_requests(load, 128 * MIB, 32 * MIB) == 2 + 3 * 7 + DOCUMENTS


@given(
    st.integers(1, 10**6), st.integers(1, 500), st.sampled_from([("bfloat16", "none"), ("float32", "pre")])
)
def test_sizes_are_those_of_the_files(tokens: int, samples: int, kept: tuple[str, str]) -> None:
    dtype, final = kept
    facts = BatchFacts(
        run_id="r", batch_id=0, model="m", model_revision=None, taps=(1, 2), final_norm=final, dtype=dtype,
        hidden_size=64, tokens=max(tokens, samples), samples=samples,
    )  # fmt: skip
    per_token = Kept(2, 64, dtype, final).bytes_per_token
    assert file_bytes(facts.tokens, samples, per_token) == BatchLayout(facts).file_size


@settings(deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=200), st.integers(1, 3000))
def test_the_load_of_a_plan_is_that_of_its_batches(lengths: list[int], batch: int) -> None:
    planned = make_plan(np.array(lengths, np.int64), PlanLimits(600, batch, 64, 0))
    load = load_of_plan(planned, 100)
    batches = [planned.batch(number) for number in range(planned.batches)]
    assert load.files == planned.batches
    assert load.size_bytes == sum(file_bytes(each.tokens, len(each.samples), 100) for each in batches)
    assert (load.samples, load.tokens, load.padded_tokens) == (
        len(lengths),
        sum(lengths),
        planned.padded_tokens,
    )


# --- the command ---


def plan(words: list[str]) -> int:
    """As `python -m producer plan`, but for what that does to the process."""
    command = next(command for command in commands() if command.prog.endswith(" plan"))
    return command.run(words)


def test_the_reference_run_at_a_glance(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(["--dry-run", "--samples", "913786", "--total-bytes", "950GB"]) == 0
    out = capsys.readouterr().out
    assert "950 GB over 913,786 samples is 20.3 tokens each at 5 taps × 5120 × bfloat16" in out
    assert "with 500 each" in out
    assert "23.4 TB (21.3 TiB) in 43,581 batch files" in out
    assert "3 h 10 min of computing on 4 GPUs" in out
    assert "upload: 2.0 GB/s (16.4 Gbit/s) keeps up" in out


def test_any_two_numbers_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert plan(["--mean-tokens", "500", "--total-bytes", "23.395TB", "--upload-bandwidth-bytes", "1GB"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("913,7")
    assert "upload at 1.0 GB/s is slower: 6 h 29 min until all is stored" in out
    assert plan(["--samples", "913786", "--mean-tokens", "500", "--multipart-part-bytes", "64MiB"]) == 0
    # 43,581 files in 8 parts, begun and ended, and 6 documents.
    assert "435,816 PUT requests" in capsys.readouterr().out
    model = write_model_folder(tmp_path / "model")
    words = [
        "--samples",
        "10",
        "--mean-tokens",
        "7",
        "--model",
        str(model),
        "--taps",
        "1,2,3",
        "--dtype",
        "float32",
    ]
    assert plan(words) == 0
    assert (
        "10 samples, 70 tokens, 7.0 each; 3 taps × 32 × float32 (389 bytes a token)"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--samples", "5"], "needs two of --samples, --mean-tokens and --total-bytes"),
        (["--samples", "0", "--mean-tokens", "5"], "--samples 0 cannot be used: it takes a number above 0"),
        (
            ["--samples", "5", "--mean-tokens", "nan"],
            "--mean-tokens nan cannot be used: it takes a number above 0",
        ),
        (
            ["--samples", "5", "--total-bytes", "much"],
            "--total-bytes 'much' cannot be used: it takes a size such as",
        ),
        ([], "--data (or HIDDENFEED_DATA) must be given"),
    ],
)
def test_numbers_that_are_none(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(words) == 2
    assert message in capsys.readouterr().err


def test_a_plan_of_data_stores_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model_folder(tmp_path / "model")
    data = write_rows(tmp_path / "data.jsonl", [*conversations(40), "broken"])
    words = ["--data", str(data), "--model", str(model), "--taps", "1,3", "--micro-batch-tokens", "512"]
    before = sorted(tmp_path.rglob("*"))
    assert plan(["--dry-run", *words]) == 0
    out = capsys.readouterr().out
    assert "41 rows: 40 samples, 1 skipped" in out
    assert "micro-batches of at most 512 tokens" in out
    assert "2 taps × 32 × bfloat16 (133 bytes a token)" in out
    assert "(--gpus, --tokens-per-second)" in out
    assert sorted(tmp_path.rglob("*")) == before
