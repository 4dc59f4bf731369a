"""A run in a real S3 store: proved, finished, read and verified as in a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import numpy as np
import pytest

from hiddenfeed.cli import main
from hiddenfeed.errors import ConfigError, DataError
from hiddenfeed.inventory import load_document
from hiddenfeed.proof import completion_gaps, finish, load_proof, prove
from hiddenfeed.reader import RunReader, open_run
from hiddenfeed.store import open_store
from hiddenfeed.training import TrainingBatches
from hiddenfeed.verify import verify
from tests.conftest import S3Access
from tests.synthetic_run import synthetic_run


def test_a_run_from_its_first_batch_to_its_proof(s3: S3Access) -> None:
    store = open_store(s3.url, s3.options)
    run = synthetic_run(batches=5, samples_per_batch=6, final_state="post")
    run.write(store, batches=[1, 3], quarantined=[4])
    assert completion_gaps(store, load_document(store, run.run_id)) == [0, 2]
    reader = RunReader(store, run.run_id)
    assert reader.sample_ids == [sample.sample_id for batch in (1, 3) for sample in run.batches[batch]]
    for batch in (0, 2):
        store.write(run.key(batch), run.batch_file(batch))
    proof = finish(store, run.run_id)
    assert finish(store, run.run_id) == proof == load_proof(store, run.run_id)
    assert (proof.stored, proof.quarantined, proof.skipped) == (24, 6, 2)
    assert reader.refresh() == 24
    verification = verify(store, run.run_id, deep=True)
    assert verification.finished
    assert verification.proof == proof

    opened = open_run(f"{s3.url}/{run.run_id}", options=s3.options)
    expected = run.batches[2][3]
    found = opened.read(expected.sample_id)
    assert np.array_equal(found.raw, expected.raw)
    assert found.raw_final is not None
    assert np.array_equal(found.raw_final, expected.raw_final)
    assert np.array_equal(found.input_ids, expected.input_ids)
    assert [sample.source_row for sample in opened] == [
        sample.source_row for batch in range(4) for sample in run.batches[batch]
    ]


@pytest.mark.parametrize("kept", [1, 4096, -1])
def test_a_truncated_object_is_seen(s3: S3Access, kept: int) -> None:
    store = open_store(s3.url, s3.options)
    run = synthetic_run()
    run.write(store)
    store.write(run.key(0), run.batch_file(0)[:kept])
    with pytest.raises(DataError, match=run.key(0)):
        prove(store, run.run_id)


def test_a_byte_that_changed_is_seen_by_the_checksum_the_store_keeps(s3: S3Access) -> None:
    store = open_store(s3.url, s3.options)
    run = synthetic_run()
    run.write(store)
    data = bytearray(run.batch_file(0))
    data[4096] ^= 1
    store.write(run.key(0), bytes(data))
    with pytest.raises(DataError, match=f"{run.key(0)} has checksum .* in the store"):
        prove(store, run.run_id)


def test_the_command_reads_s3_by_flag_and_by_environment(
    s3: S3Access, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(s3.url, s3.options)
    run = synthetic_run()
    run.write(store)
    finish(store, run.run_id)
    url = f"{s3.url}/{run.run_id}"
    assert main(["verify", url, "--deep", "--s3-endpoint", s3.endpoint]) == 0
    assert "is complete" in capsys.readouterr().out
    monkeypatch.setenv("HIDDENFEED_S3_ENDPOINT", s3.endpoint)
    assert main(["show", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples_stored"] == 12
    assert main(["show", s3.url]) == 0
    assert run.run_id in capsys.readouterr().out
    assert main(["sample", url, run.samples()[0].sample_id]) == 0
    assert "|tap 2|" in capsys.readouterr().out


def test_a_bucket_that_does_not_exist_is_one_sentence(
    s3: S3Access, capsys: pytest.CaptureFixture[str]
) -> None:
    for url in ("s3://no-such-bucket/run-1", "s3://no-such-bucket"):
        for command in ("show", "verify"):
            code = main([command, url, "--s3-endpoint", s3.endpoint])
            output = capsys.readouterr()
            assert code == ConfigError.exit_code
            assert output.err.startswith("error: ")
            assert output.err.count("\n") == 1
            assert "no-such-bucket" in output.err


def _in_a_fork(check: Callable[[], bool]) -> bool:
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_connections_of_its_own(s3: S3Access, monkeypatch: pytest.MonkeyPatch) -> None:
    run = synthetic_run()
    run.write(open_store(s3.url, s3.options))
    # Where it is may stand in the environment.
    monkeypatch.setenv("HIDDENFEED_S3_ENDPOINT", s3.endpoint)
    reader = open_run(s3.url, run.run_id)
    first = reader.read(0).raw

    def child() -> bool:
        batch = TrainingBatches(reader)[0]
        return reader.store is not opened and len(batch.positions) == 12

    opened = reader.store
    assert _in_a_fork(child)
    assert reader.store is opened
    assert np.array_equal(reader.read(0).raw, first)
