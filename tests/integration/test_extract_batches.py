"""Batches of a planned run through the handler: real spool, real store, real (tiny) models."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from common.checks import CHECKS
from common.messages import UploadFile
from common.settings.catalogue import ExtractSettings
from common.worker import GiveBack
from gpu_worker import device_loop, micro_batch, writer
from gpu_worker import extract as job
from gpu_worker.agreement import tolerance_for
from gpu_worker.extract import Extractor
from hiddenfeed.checksum import checksum_of, file_checksum
from hiddenfeed.errors import PermanentError, TransientError
from hiddenfeed.layout import batch_key, quarantine_note_key, tokens_key
from hiddenfeed.proof import QuarantineNote
from hiddenfeed.reader import RunReader
from tests.extraction import LENGTHS, TinyRun, agreement_with, context_of, extract, read_file, tiny_run
from tests.tiny_models import MIXTURES, VOCABULARY, make_model


@pytest.mark.parametrize(
    ("architecture", "dtype", "taps", "final_state"),
    [
        ("llama", "float32", (0, 2, 4), "none"),
        ("llama", "bfloat16", (1, 3), "pre"),
        ("gpt2", "float32", (0, 4), "post"),
        ("qwen3_moe", "bfloat16", (2,), "post"),
        ("qwen3_5_text", "float16", (0, 3), "none"),
        ("gemma3_multimodal", "float32", (1, 2), "pre"),
    ],
)
def test_every_stored_state_is_the_whole_models(
    tmp_path: Path, architecture: str, dtype: str, taps: tuple[int, ...], final_state: str
) -> None:
    run = tiny_run(tmp_path, architecture=architecture, dtype=dtype, taps=taps, final_state=final_state)
    with run.extractor() as (extractor, _):
        run.store_files([extract(extractor, manifest) for manifest in run.manifests])
    reader = RunReader(run.store, run.run_id)
    assert sorted(reader.read(position).source_row for position in range(len(reader))) == list(
        range(len(LENGTHS))
    )
    median = architecture in MIXTURES
    agreement = agreement_with(reader, make_model(architecture, getattr(torch, dtype)), median=median)
    assert len(agreement.cosines) == len(taps) + (final_state != "none")
    assert agreement.worst(tolerance_for([dtype], median=median)) is None, agreement


def test_announcement_describes_the_file_and_one_line_of_the_log_the_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tiny_run(tmp_path)
    spool = run.spool()
    with run.extractor(spool) as (extractor, _), caplog.at_level("INFO", logger="hiddenfeed"):
        caplog.clear()
        upload = extract(extractor, run.manifests[2])
    (line,) = [record for record in caplog.records if record.getMessage() == "batch extracted"]
    said = vars(line)["hiddenfeed_fields"]
    assert (said["run"], said["batch"], said["size_bytes"]) == (run.run_id, 2, upload.size_bytes)
    assert {"read_s", "forward_s", "stall_s", "write_s", "total_s"} <= set(said)
    path = spool.resolve(upload.path)
    assert upload.batch == run.manifests[2]
    assert upload.spool == "tiny"
    assert upload.key == batch_key(run.run_id, 2)
    assert upload.size_bytes == path.stat().st_size
    assert upload.checksum == file_checksum(path)
    assert path.stat().st_mode & 0o777 == 0o640
    report = upload.report
    assert report.worker == "tester"
    assert report.device == "cpu"
    assert report.padded_tokens >= run.manifests[2].tokens_total
    assert 0 < report.forward_seconds <= report.total_seconds
    # What the guards saw is told beside the file too.
    assert report.guards == read_file(path).header.guards


def test_file_holds_what_was_planned(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    spool = run.spool()
    with run.extractor(spool) as (extractor, service), service.use(run.run_id) as served:
        upload = extract(extractor, run.manifests[1])
        planned = served.tokens.batch(1)
    file = read_file(spool.resolve(upload.path))
    for name, expected in (
        ("offsets", planned.offsets),
        ("sample_index", planned.source_rows),
        ("input_ids", planned.input_ids),
        ("loss_mask", planned.loss_mask),
    ):
        np.testing.assert_array_equal(file.tensors[name], expected)
    for place in file.header.layout.tensors:
        raw = file.tensors[place.name].tobytes()
        assert file.header.checksums[place.name] == checksum_of(raw)
    assert set(file.header.guards) >= {
        "norm_mean",
        "norm_median",
        "norm_max",
        "zero_fraction",
        "canary_cosine",
        "selftest_cosine",
        "selftest_error",
    }
    assert float(file.header.guards["canary_error"]) < 1e-4


def test_file_says_what_it_was_computed_with(tmp_path: Path) -> None:
    """Two workers of one run may be told differently; their bytes differ then."""
    run = tiny_run(tmp_path)
    said = []
    for settings in (ExtractSettings(), ExtractSettings(compute_dtype="bfloat16", attention="eager")):
        service = run.service(settings)
        service.prepare(run.run_id)
        spool = run.spool()
        upload = extract(Extractor(service, spool), run.manifests[0])
        said.append(dict(read_file(spool.resolve(upload.path)).header.computed))
        service.close()
    assert [(each["dtype"], each["attention"]) for each in said] == [
        ("float32", "sdpa"),
        ("bfloat16", "eager"),
    ]
    assert said[0]["device"].endswith("thread" if torch.get_num_threads() == 1 else "threads")
    assert said[0]["torch"] == torch.__version__


def test_bytes_are_the_same_every_time(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    spool = run.spool()
    files = []
    for _ in range(2):
        with run.extractor(spool) as (extractor, _):
            files.append(spool.resolve(extract(extractor, run.manifests[0]).path))
    assert files[0] != files[1]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_jobs_in_flight_do_not_mix(tmp_path: Path) -> None:
    """Four threads at once give the bytes that one after the other gives."""
    run = tiny_run(tmp_path)
    spool = run.spool()
    uploads: dict[int, UploadFile] = {}
    with run.extractor(spool) as (extractor, _):
        alone = {message.batch_id: extract(extractor, message) for message in run.manifests}
        waiting = list(run.manifests)

        def work() -> None:
            while waiting:
                message = waiting.pop()
                uploads[message.batch_id] = extract(extractor, message)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {key: upload.checksum for key, upload in uploads.items()} == {
        key: upload.checksum for key, upload in alone.items()
    }
    assert spool.usage().part_bytes == 0


def _assert_quarantined(run: TinyRun, upload: UploadFile, reason: str) -> None:
    spool = run.spool()
    batch_id = upload.batch.batch_id
    assert upload.key == quarantine_note_key(run.run_id, batch_id)
    data = spool.resolve(upload.path).read_bytes()
    assert upload.size_bytes == len(data)
    assert upload.checksum == checksum_of(data)
    note = msgspec.json.decode(data, type=QuarantineNote)
    assert (note.run_id, note.batch_id) == (run.run_id, batch_id)
    assert len(note.source_rows) == upload.batch.samples
    assert reason in note.reason
    assert upload.report.guards == {"reason": note.reason}
    report = upload.report
    assert (report.set_aside, report.set_aside_reason) == (upload.batch.samples, note.reason)
    # Nothing that was computed is of use: no tokens, and no seconds.
    assert (report.computed_tokens, report.computed_squares, report.padded_tokens) == (0, 0, 0)
    assert (report.forward_seconds, report.stall_seconds) == (0, 0)
    assert isinstance(report.failed_checks, dict)
    assert sum(report.failed_checks.values()) == upload.batch.samples
    assert set(report.failed_checks) <= set(CHECKS)
    usage = spool.usage()
    assert (usage.files, usage.part_bytes) == (1, 0)


def test_samples_with_ids_beyond_the_vocabulary_are_set_aside(tmp_path: Path) -> None:
    # Drawn so that some samples have one and some have none.
    run = tiny_run(tmp_path, vocabulary=VOCABULARY + 2, lengths=LENGTHS[:30])
    with run.extractor() as (extractor, service), service.use(run.run_id) as served:
        uploads = [extract(extractor, message) for message in run.manifests]
        batches = [served.tokens.batch(message.batch_id) for message in run.manifests]
    reason, found = f"is not one of the model's {VOCABULARY} ids", 0
    for upload, batch in zip(uploads, batches, strict=True):
        samples = np.split(batch.input_ids, batch.offsets[1:-1])
        expected = {
            int(row): bool((ids >= VOCABULARY).any())
            for row, ids in zip(batch.source_rows, samples, strict=True)
        }
        bad = [row for row in expected if expected[row]]
        header = read_file(run.spool().resolve(upload.path)).header
        assert [sample.source_row for sample in header.facts.set_aside] == bad
        assert (upload.report.set_aside or 0) == len(bad)
        assert (upload.report.failed_checks or {}) == ({"input": len(bad)} if bad else {})
        good = [len(ids) for row, ids in zip(batch.source_rows, samples, strict=True) if int(row) not in bad]
        if bad and good:
            assert upload.report.computed_tokens == sum(good) == header.facts.tokens
            assert upload.report.computed_squares == sum(length**2 for length in good)
        assert all(
            f"{row} {reason}" in sample.reason
            for row, sample in zip(bad, header.facts.set_aside, strict=True)
        )
        found += len(bad)
    assert found > 3


@pytest.mark.parametrize("change", [{"tokens_total": 1}, {"row_group": 5}, {"batch_id": 10**15}])
def test_manifest_that_is_not_the_plans_is_refused_and_quarantines_nothing(
    tmp_path: Path, change: dict[str, int]
) -> None:
    run = tiny_run(tmp_path)
    spool = run.spool()
    with run.extractor(spool) as (extractor, _), pytest.raises(PermanentError, match="batch"):
        extract(extractor, msgspec.structs.replace(run.manifests[0], **change))
    assert spool.usage().files == 0


def test_sample_longer_than_the_models_positions_is_quarantined(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, architecture="gpt2", lengths=np.array([300, 20, 10, 5]), micro_batch_tokens=40)
    with run.extractor() as (extractor, _):
        uploads = [extract(extractor, message) for message in run.manifests]
    notes = [upload for upload in uploads if "/quarantine/" in upload.key]
    assert [note.batch.longest for note in notes] == [300]
    note = msgspec.json.decode(run.spool().resolve(notes[0].path).read_bytes(), type=QuarantineNote)
    assert note.reasons == ("the sample in source row 0 has 300 tokens, and the model has positions for 256",)
    assert note.reasons[0] in note.reason


def test_a_guard_that_fails_once_fails_nothing(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    with run.extractor() as (extractor, service), service.use(run.run_id) as served:
        expected = extract(extractor, run.manifests[0]).checksum
        model = served.engine.model
        healthy, broken = model.forward, [True]

        def forward(ids: Any, rows: Any) -> None:
            healthy(ids, rows)
            if broken.pop() if broken else False:
                rows.hidden_states[3, 1, 5] = float("nan")

        model.forward = forward  # type: ignore[method-assign]
        assert extract(extractor, run.manifests[0]).checksum == expected


def test_failed_guard_is_quarantined_and_the_next_batch_goes_on(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    spool = run.spool()
    with run.extractor(spool) as (extractor, service), service.use(run.run_id) as served:
        model = served.engine.model
        healthy = model.forward

        def forward(ids: Any, rows: Any) -> None:
            healthy(ids, rows)
            rows.hidden_states[-1, 1, 5] = float("nan")

        model.forward = forward  # type: ignore[method-assign]
        first = extract(extractor, run.manifests[0])
        _assert_quarantined(run, first, "tap 2 is not finite in 1 of")
        model.forward = healthy  # type: ignore[method-assign]
        second = extract(extractor, run.manifests[1])
    assert second.key == batch_key(run.run_id, 1)
    assert second.checksum == file_checksum(spool.resolve(second.path))


def test_nan_in_the_weights_quarantines_the_batches_that_meet_it(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    with run.extractor() as (extractor, service), service.use(run.run_id) as served:
        ids = [
            set(served.tokens.batch(batch_id).input_ids.tolist()) for batch_id in range(len(run.manifests))
        ]
        # A token that some batches have and some have not, behind the self-test's back.
        token = max(ids[1] - ids[2])
        with torch.no_grad():
            embeddings: Any = served.engine.model.parts.decoder
            embeddings.get_input_embeddings().weight[token] = float("nan")
        uploads = [extract(extractor, message) for message in run.manifests[:3]]
    assert ["/quarantine/" in upload.key for upload in uploads] == [token in met for met in ids[:3]]
    assert "is not finite in" in (uploads[1].report.guards or {})["reason"]


def test_disk_that_is_full_in_mid_file_costs_an_attempt_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run(tmp_path)
    spool = run.spool()
    message = max(run.manifests, key=lambda manifest: manifest.samples)
    writes = 0

    def full_after_the_first(fd: int, data: Any, offset: int) -> int:
        nonlocal writes
        writes += 1
        if writes > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return healthy(fd, data, offset)

    healthy = os.pwrite
    with run.extractor(spool) as (extractor, _):
        monkeypatch.setattr(os, "pwrite", full_after_the_first)
        with pytest.raises(TransientError, match="could not be written: No space left on device"):
            extract(extractor, message)
        usage = spool.usage()
        assert (usage.files, usage.part_bytes) == (0, 0)
        monkeypatch.setattr(os, "pwrite", healthy)
        upload = extract(extractor, message)
    assert upload.checksum == file_checksum(spool.resolve(upload.path))


def test_rows_taken_from_other_tokens_than_the_manifests_are_quarantined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run(tmp_path)
    as_it_should_be = micro_batch.pack

    def shifted(*arguments: Any) -> Any:
        packed = as_it_should_be(*arguments)
        return packed if packed.real is None else replace(packed, real=packed.real.roll(1))

    monkeypatch.setattr(device_loop, "pack", shifted)
    with run.extractor() as (extractor, _):
        upload = extract(extractor, max(run.manifests, key=lambda manifest: manifest.samples))
    _assert_quarantined(run, upload, "rows of other token ids than planned")
    assert upload.report.failed_checks == {"ids": upload.batch.samples}


def test_canary_notices_states_of_another_sample(tmp_path: Path) -> None:
    """What batched inference engines have got wrong: right for one sample alone, mixed up for several."""
    run = tiny_run(tmp_path)
    with run.extractor() as (extractor, service), service.use(run.run_id) as served:
        model = served.engine.model
        healthy = model.forward
        model.forward = lambda ids, rows: healthy(ids.roll(1, 0), rows)  # type: ignore[method-assign]
        upload = extract(extractor, max(run.manifests, key=lambda manifest: manifest.samples))
    _assert_quarantined(run, upload, "is not what the model gives for it alone")


def test_canary_notices_rows_in_the_wrong_place_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run(tmp_path)
    as_it_should_be = writer.raw_bytes
    monkeypatch.setattr(writer, "raw_bytes", lambda tensor: as_it_should_be(tensor.roll(1, 0)))
    with run.extractor() as (extractor, _):
        upload = extract(extractor, run.manifests[0])
    _assert_quarantined(run, upload, "is not what the model gives for it alone")


def test_lost_device_ends_the_process(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    lost: list[bool] = []
    service = run.service()
    service.prepare(run.run_id)
    extractor = Extractor(service, run.spool(), device_lost=lambda: lost.append(True))
    with service.use(run.run_id) as served:

        def forward(ids: Any, rows: Any) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        served.engine.model.forward = forward  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="illegal memory access"):
            extract(extractor, run.manifests[0])
    service.close()
    assert lost == [True]


def test_full_spool_gives_the_job_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(tmp_path)
    monkeypatch.setattr(job, "SPOOL_WAIT_SECONDS", 0.0)
    # The smallest cap there is; filled but for a few bytes.
    spool = run.spool(cap_bytes=1 << 20)
    with run.extractor(spool) as (extractor, service):
        filler = spool.reserve("other", 0, "t0", (1 << 20) - 100)
        assert filler is not None
        with pytest.raises(GiveBack, match="no room"):
            extract(extractor, run.manifests[0])
        filler.discard()
        assert extract(extractor, run.manifests[0]).key == batch_key(run.run_id, 0)
        assert service.served is not None


def test_stopping_gives_back_a_job_that_waits_for_the_spool(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    spool = run.spool(cap_bytes=1 << 20)
    context = context_of(run.run_id)
    context.stopping.set()
    with run.extractor(spool) as (extractor, _):
        filler = spool.reserve("other", 0, "t0", (1 << 20) - 100)
        assert filler is not None
        with filler, pytest.raises(GiveBack):
            extractor.extract_batch(msgspec.to_builtins(run.manifests[0]), context)


def test_stopping_gives_back_a_job_that_waits_for_the_device(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    spool = run.spool()
    context = context_of(run.run_id)
    with run.extractor(spool) as (extractor, service), service.use(run.run_id) as served:
        raised: list[BaseException] = []

        def work() -> None:
            try:
                extractor.extract_batch(msgspec.to_builtins(run.manifests[0]), context)
            except GiveBack as error:
                raised.append(error)

        with served.engine.loop._turn(lambda: False):
            thread = threading.Thread(target=work)
            thread.start()
            context.stopping.set()
            thread.join()
    assert len(raised) == 1
    assert spool.usage().part_bytes == 0


def test_job_of_another_run_is_given_back(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    message = msgspec.structs.replace(
        run.manifests[0], run_id="another-run", tokens=tokens_key("another-run")
    )
    with run.extractor() as (extractor, _), pytest.raises(GiveBack, match="another-run is not in service"):
        extract(extractor, message)


def test_message_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    with run.extractor() as (extractor, _), pytest.raises(PermanentError, match="version 99"):
        extractor.extract_batch({"version": 99}, context_of(run.run_id))


def test_message_on_the_queue_of_another_run_or_of_other_tokens_is_refused(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    spool = run.spool()
    strayed = msgspec.structs.replace(run.manifests[0], run_id="other", tokens=tokens_key("other"))
    for message in (strayed, msgspec.structs.replace(run.manifests[0], tokens="../../etc/passwd")):
        with run.extractor(spool) as (extractor, _), pytest.raises(PermanentError, match="came on queue"):
            extractor.extract_batch(msgspec.to_builtins(message), context_of(run.run_id))


def test_lost_job_leaves_no_file(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    spool = run.spool()
    context = context_of(run.run_id)
    with run.extractor(spool) as (extractor, _):
        extractor.extract_batch(msgspec.to_builtins(run.manifests[0]), context)
    assert spool.usage().files == 1
    for clean_up in context.losers:
        clean_up()
    assert spool.usage().files == 0
