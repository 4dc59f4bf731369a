"""`python -m uploader doctor` against a real server, and against servers of other makes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hiddenfeed.errors import ConfigError, TransientError
from hiddenfeed.options import StoreOptions
from tests.conftest import S3Access
from tests.faults.scripted_faults import Corrupt, Fail, Foreign, Hang, Lack
from tests.faults.scripted_s3 import ScriptedS3
from tests.local_names import resolve_local_names
from uploader.doctor import doctor_command
from uploader.scratch import Report
from uploader.trials import try_store


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedS3]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with ScriptedS3() as server:
        yield server


def diagnose(server: ScriptedS3) -> Report:
    """What the doctor finds; it must leave nothing behind."""
    report = try_store("s3://bucket/runs", StoreOptions(s3_endpoint=server.endpoint))
    assert server.objects == {}
    return report


def marks(report: Report) -> dict[str, str]:
    return {finding.what: finding.mark for finding in report.findings}


def test_a_good_store_needs_no_settings(s3: S3Access, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor_command().run(["--store", s3.url, "--s3-endpoint", s3.endpoint]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[0] == f"{s3.url} at {s3.endpoint}; credentials from the environment"
    assert lines[-1] == "This store can be used with the settings as they are."
    assert len([line for line in lines if "  works" in line]) == 12
    with s3.client() as client:
        assert "Contents" not in client.list_objects_v2(Bucket=s3.bucket, Prefix=s3.prefix)
        assert "Uploads" not in client.list_multipart_uploads(Bucket=s3.bucket, Prefix=s3.prefix)


def test_a_store_that_does_everything(scripted: ScriptedS3) -> None:
    report = diagnose(scripted)
    assert set(marks(report).values()) == {"works"}
    assert report.settings == {}
    assert scripted.uploads == {}


def test_a_store_without_checksums_or_conditions(
    scripted: ScriptedS3, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.lacks |= {Lack.CHECKSUMS, Lack.CONDITIONS}
    report = diagnose(scripted)
    assert report.usable
    assert report.settings == {"s3_checksum": "off", "s3_conditional_writes": "false"}
    assert doctor_command().run(["--store", "s3://bucket/runs", "--s3-endpoint", scripted.endpoint]) == 0
    printed = capsys.readouterr().out
    assert "  --s3-checksum off --no-s3-conditional-writes\n" in printed
    assert "an object was replaced; the uploader looks before and after each write instead" in printed
    assert "HIDDENFEED_S3_CONDITIONAL_WRITES=false" in printed


def test_a_store_that_finds_buckets_by_the_hosts_name_alone(
    scripted: ScriptedS3, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found out by itself, and told as a setting."""
    resolve_local_names(monkeypatch)
    scripted.lacks.add(Lack.PATHS)
    endpoint = f"http://localhost:{scripted.port}"
    assert doctor_command().run(["--store", "s3://bucket/runs", "--s3-endpoint", endpoint]) == 0
    printed = capsys.readouterr().out
    assert "the bucket is in the host's name" in printed
    assert "  --s3-addressing virtual\n" in printed
    assert scripted.objects == {}


def test_findings_are_told_as_they_are_made(scripted: ScriptedS3) -> None:
    """A store that is slow, or away in the middle, leaves nobody in the dark."""
    told: list[tuple[str, int]] = []
    options = StoreOptions(s3_endpoint=scripted.endpoint)
    report = try_store(
        "s3://bucket/runs", options, lambda finding: told.append((finding.what, len(scripted.log)))
    )
    assert [what for what, _ in told] == [finding.what for finding in report.findings]
    requests = [count for _, count in told]
    assert sorted(set(requests)) == requests, "findings were told together"


def test_a_store_without_uploads_in_parts(scripted: ScriptedS3) -> None:
    scripted.always("CreateMultipartUpload", Fail(501, "NotImplemented"))
    report = diagnose(scripted)
    assert report.usable
    assert report.settings == {"multipart_threshold_bytes": str(5 * 1024**3)}


def test_a_store_that_forgets_or_refuses_is_no_use(
    scripted: ScriptedS3, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.always("PutObject", Corrupt())
    assert doctor_command().run(["--store", "s3://bucket/runs", "--s3-endpoint", scripted.endpoint]) == 1
    assert "This store cannot be used as it is. write and read: other bytes" in capsys.readouterr().out
    scripted.always("PutObject", Fail(403, "AccessDenied"))
    report = diagnose(scripted)
    assert not report.usable
    assert "does not allow us" in report.findings[-1].detail


def test_where_nothing_can_be_tried_it_is_one_sentence(
    s3: S3Access, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor_command().run(["--store", "s3://no-such-bucket/x", "--s3-endpoint", s3.endpoint]) == 2
    assert capsys.readouterr().err.startswith("error: bucket 'no-such-bucket' does not exist")
    assert doctor_command().run(["--store", "/data/runs"]) == 2
    assert "is a folder, which needs no settings" in capsys.readouterr().err
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigError, match="no credentials"):
        try_store(s3.url, s3.options)


def asked(capsys: pytest.CaptureFixture[str], endpoint: str, *flags: str) -> tuple[int, str]:
    """(exit code, the one line of error) of a doctor that can try nothing."""
    code = doctor_command().run(["--store", "s3://bucket/runs", "--s3-endpoint", endpoint, *flags])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return code, line


def test_what_is_no_s3_server_is_said_to_be_none(
    scripted: ScriptedS3, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.always("ListObjects", Foreign(200, b"<html><body>welcome</body></html>"))
    code, line = asked(capsys, scripted.endpoint)
    assert (code, "does not answer like an S3 server" in line) == (2, True)
    scripted.always("ListObjects", Foreign(302, b"", {"Location": "/login"}))
    code, line = asked(capsys, scripted.endpoint)
    assert (code, "redirects to /login, " in line) == (2, True)
    scripted.always("ListObjects", Foreign(404, b"<html><br>"))
    code, line = asked(capsys, scripted.endpoint)
    assert (code, "answers 404 Not Found; it may be no S3 server" in line) == (2, True)
    code, line = asked(capsys, scripted.endpoint.replace("http:", "https:"))
    assert (code, f"set --s3-endpoint {scripted.endpoint}" in line) == (2, True)
    code, line = asked(capsys, scripted.endpoint, "--s3-region", "")
    assert (code, "--s3-region is empty" in line) == (2, True)


def test_a_store_that_never_answers_is_asked_in_one_way_only(
    scripted: ScriptedS3, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.always("ListObjects", Hang())
    code, line = asked(
        capsys, scripted.endpoint, "--s3-read-timeout-seconds", "0.2", "--s3-max-attempts", "1"
    )
    assert (code, "did not answer in time" in line) == (75, True)
    assert scripted.log == ["ListObjects"]


def test_a_store_that_falls_silent_is_not_waited_for_in_each_trial(scripted: ScriptedS3) -> None:
    for operation in ("HeadObject", "CreateMultipartUpload", "DeleteObject"):
        scripted.always(operation, Hang())
    options = StoreOptions(s3_endpoint=scripted.endpoint, s3_read_timeout_seconds=0.3, s3_max_attempts=1)
    with pytest.raises(TransientError, match="did not answer in time"):
        try_store("s3://bucket/runs", options)
    assert scripted.log.count("HeadObject") + scripted.log.count("CreateMultipartUpload") == 2
