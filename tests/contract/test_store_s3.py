"""What is particular to S3: what it says to wrong access, how it pages, what it leaves behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hiddenfeed.checksum import checksum_of
from hiddenfeed.errors import ConfigError, DataError, TransientError
from hiddenfeed.options import MIB, StoreOptions
from hiddenfeed.store import PutOutcome, Store, open_store
from hiddenfeed.store.s3_client import make_session
from tests.conftest import S3Access
from tests.faults.scripted_faults import Fail
from tests.faults.scripted_s3 import ScriptedS3


def test_check_accepts_what_is_there(s3: S3Access) -> None:
    open_store(s3.url, s3.options).check()
    open_store(f"s3://{s3.bucket}", s3.options).check(create=True)


def test_a_bucket_that_does_not_exist(s3: S3Access) -> None:
    store = open_store("s3://no-such-bucket/runs", s3.options)
    with pytest.raises(ConfigError, match=f"^bucket 'no-such-bucket' does not exist at {s3.endpoint}$"):
        store.check()
    with pytest.raises(ConfigError, match="bucket 'no-such-bucket' does not exist"):
        store.write("run-1/run.json", b"x")
    with pytest.raises(ConfigError, match="bucket 'no-such-bucket' does not exist"):
        list(store.list(""))


def test_an_unknown_access_key(s3: S3Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "NOBODY")
    with pytest.raises(ConfigError, match="does not know the access key; check AWS_ACCESS_KEY_ID"):
        open_store(s3.url, s3.options).check()


def test_a_wrong_secret_key_is_refused_and_not_shown(s3: S3Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    with pytest.raises(ConfigError, match="refuses the credentials") as caught:
        open_store(s3.url, s3.options).check()
    assert "wrong-secret" not in str(caught.value)


def test_no_credentials_at_all(s3: S3Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigError, match=r"^there are no credentials for S3: set AWS_ACCESS_KEY_ID"):
        open_store(s3.url, s3.options).check()


def test_an_endpoint_that_nobody_serves(s3: S3Access) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        store = open_store(s3.url, StoreOptions(s3_endpoint=endpoint, s3_max_attempts=1))
        with pytest.raises(TransientError, match=f"^S3 at {endpoint} is not reachable: connection refused$"):
            store.check()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "it is empty"),
        ("gs://bucket/x", "is neither s3://bucket/prefix nor a folder"),
        ("s3:/bucket", "is neither"),
        ("s3://", "cannot be a bucket's name"),
        ("s3://B_ucket", "cannot be a bucket's name"),
        ("s3://bucket/a b", "the prefix may have"),
        ("s3://bucket/../x", "the prefix may have"),
        ("file://host/x", "is neither"),
    ],
)
def test_a_url_that_is_none(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_store(url)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (StoreOptions(s3_endpoint="127.0.0.1:9000"), "--s3-endpoint must be http"),
        (StoreOptions(s3_endpoint="http://me:password@host"), "without a login"),
        (StoreOptions(s3_profile="nobody"), "S3 cannot be set up: .*nobody"),
        (StoreOptions(s3_kms_key="key-1"), "--s3-kms-key needs --s3-encryption aws:kms"),
        (StoreOptions(s3_ca_bundle="/no/such/file"), "there is no file /no/such/file"),
    ],
)
def test_options_that_cannot_work(options: StoreOptions, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        open_store("s3://bucket", options)
    assert "password" not in str(caught.value)


def test_listing_goes_through_all_pages(s3: S3Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hiddenfeed.store.s3._KEYS_PER_PAGE", 3)
    store = open_store(s3.url, s3.options)
    keys = [f"run-1/batches/{number:06d}.safetensors" for number in range(10)]
    for key in keys:
        store.write(key, b"x")
    assert [info.key for info in store.list("run-1/batches/")] == keys


def test_stores_of_different_prefixes_do_not_see_each_other(s3: S3Access) -> None:
    one, two = open_store(f"{s3.url}/one", s3.options), open_store(f"{s3.url}/on", s3.options)
    one.write("run-1/run.json", b"x")
    assert list(two.list("")) == []
    assert two.head("e/run-1/run.json") is None


def test_the_object_tells_what_it_was_meant_to_be(s3: S3Access, tmp_path: Path) -> None:
    store = open_store(s3.url, s3.options)
    path = tmp_path / "file.bin"
    path.write_bytes(b"hello")
    checksum = checksum_of(b"hello")
    store.put_file("run-1/a", path, size_bytes=5, checksum=checksum, metadata={"worker": "gpu-7"})
    info = store.head("run-1/a")
    assert info is not None
    assert info.metadata == {"worker": "gpu-7", "hiddenfeed-size": "5", "hiddenfeed-checksum": checksum}


def test_an_object_of_another_tool_counts_by_its_bytes(s3: S3Access, tmp_path: Path) -> None:
    """Copied there by hand: no metadata, perhaps no checksum."""
    with s3.client() as client:
        client.put_object(Bucket=s3.bucket, Key=f"{s3.prefix}/run-1/a", Body=b"hello")
    store = open_store(s3.url, s3.options)
    info = store.head("run-1/a", checksum=True)
    assert info is not None
    assert info.checksum is not None
    assert info.checksum == checksum_of(b"hello", info.checksum.partition(":")[0])
    path = tmp_path / "file.bin"
    path.write_bytes(b"hello, world")
    outcome = store.put_file("run-1/a", path, size_bytes=12, checksum=checksum_of(b"hello, world"))
    assert outcome is PutOutcome.OTHER_WINS
    assert store.read("run-1/a") == b"hello"


#: Everything the store does, on a machine without awscrt.
_WITHOUT_AWSCRT = """
import sys
sys.modules["awscrt"] = sys.modules["awscrt.checksums"] = None
from pathlib import Path
from hiddenfeed.checksum import file_checksum
from hiddenfeed.errors import ConfigError
from hiddenfeed.options import StoreOptions
from hiddenfeed.store import open_store

url, endpoint, path = sys.argv[1:]
options = StoreOptions(s3_endpoint=endpoint, multipart_threshold_bytes=5 << 20, multipart_part_bytes=5 << 20)
store, file = open_store(url, options), Path(path)
checksum, size = file_checksum(file), file.stat().st_size
print(checksum.partition(":")[0])
print(store.write("run-1/run.json", b"{}").value, store.read("run-1/run.json"))
for _ in range(2):
    print(store.put_file("run-1/a", file, size_bytes=size, checksum=checksum).value)
print(store.head("run-1/a", checksum=True).checksum == checksum, store.read("run-1/a") == file.read_bytes())
try:
    store.read("run-1/b")
except ConfigError as error:
    print(error)
"""


def test_without_awscrt_crc32_does_it_all(s3: S3Access, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(os.urandom(6 * MIB))
    open_store(s3.url, s3.options).write("run-1/b", b"written with awscrt")
    arguments = [sys.executable, "-c", _WITHOUT_AWSCRT, s3.url, s3.endpoint, str(path)]
    result = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == [
        "crc32",
        "stored b'{}'",
        "stored",
        "already-there",
        "True True",
        "checksum crc64nvme needs the package awscrt: pip install 'hiddenfeed[s3]'",
    ]


def test_a_failed_upload_in_parts_leaves_no_parts(s3: S3Access, tmp_path: Path) -> None:
    options = StoreOptions(
        s3_endpoint=s3.endpoint, multipart_threshold_bytes=5 * MIB, multipart_part_bytes=5 * MIB
    )
    data = os.urandom(11 * MIB)
    path = tmp_path / "file.bin"
    path.write_bytes(data)
    wrong = checksum_of(data[:-1])
    with pytest.raises(DataError, match="has checksum"):
        open_store(s3.url, options).put_file("run-1/a", path, size_bytes=len(data), checksum=wrong)
    with s3.client() as client:
        uploads = client.list_multipart_uploads(Bucket=s3.bucket, Prefix=s3.prefix).get("Uploads", [])
    assert uploads == []


#: Prints a key that expires within minutes, and counts how often it was asked.
_CREDENTIAL_PROCESS = """
import datetime, json, pathlib, sys
counter = pathlib.Path(sys.argv[1])
counter.write_text(counter.read_text() + "x")
expires = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=60)
print(json.dumps({
    "Version": 1, "AccessKeyId": sys.argv[2], "SecretAccessKey": sys.argv[3], "Expiration": expires.isoformat(),
}))
"""


def test_credentials_that_expire_are_renewed_in_mid_run(
    s3: S3Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """boto3 renews what expires within minutes at every request."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    program, counter, config = tmp_path / "process.py", tmp_path / "count", tmp_path / "config"
    program.write_text(_CREDENTIAL_PROCESS)
    counter.write_text("")
    process = f"{sys.executable} {program} {counter} {s3.access_key} {s3.secret_key}"
    config.write_text(f"[profile lab]\ncredential_process = {process}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    store = open_store(s3.url, StoreOptions(s3_endpoint=s3.endpoint, s3_profile="lab"))
    path = tmp_path / "file.bin"
    path.write_bytes(b"hello")
    for number in range(3):
        store.put_file(f"run-1/{number}", path, size_bytes=5, checksum=checksum_of(b"hello"))
    assert len(counter.read_text()) > 3


def test_keys_that_are_replaced_in_their_file_are_found_when_the_old_ones_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hiddenfeed.store.s3_link._RENEW_SECONDS", 0.0)
    keys, path = tmp_path / "credentials", tmp_path / "file.bin"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    path.write_bytes(b"hello")

    def put(store: Store) -> PutOutcome:
        return store.put_file("run-1/a", path, size_bytes=5, checksum=checksum_of(b"hello"))

    with ScriptedS3() as server:
        keys.write_text("[lab]\naws_access_key_id = OLD\naws_secret_access_key = s\n")
        store = open_store("s3://bucket/x", StoreOptions(s3_endpoint=server.endpoint, s3_profile="lab"))
        server.script("PutObject", Fail(400, "ExpiredToken"))
        with pytest.raises(ConfigError, match="have expired"):
            put(store)
        keys.write_text("[lab]\naws_access_key_id = NEW\naws_secret_access_key = s\n")
        assert put(store) is PutOutcome.STORED
        used = [headers["authorization"] for headers in server.headers]
        assert ["Credential=OLD/" in header for header in used] == [True, False, False]


def test_a_role_needs_credentials_to_assume_it_with(s3: S3Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigError, match=r"^--s3-role-arn needs credentials to assume the role with"):
        open_store(s3.url, StoreOptions(s3_role_arn="arn:aws:iam::123456789012:role/uploader"))


def test_a_role_is_assumed_with_what_the_chain_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """STS itself is played: only what we ask of it and what becomes of its answer is ours."""
    asked: list[dict[str, Any]] = []

    class Sts:
        def assume_role(self, **arguments: Any) -> dict[str, Any]:
            asked.append(arguments)
            expires = datetime.now(UTC) + timedelta(hours=1)
            given = {
                "AccessKeyId": "ASIA1",
                "SecretAccessKey": "s",
                "SessionToken": "t",
                "Expiration": expires,
            }
            return {"Credentials": given, "AssumedRoleUser": {"AssumedRoleId": "a:b", "Arn": "c"}}

    def create_client(session: object, service: str, **named: Any) -> Sts:
        assert (service, named["aws_access_key_id"]) == ("sts", "AKIA1")
        return Sts()

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr("botocore.session.Session.create_client", create_client)
    role = "arn:aws:iam::123456789012:role/uploader"
    credentials = make_session(StoreOptions(s3_role_arn=role)).get_credentials().get_frozen_credentials()
    assert (credentials.access_key, credentials.token) == ("ASIA1", "t")
    assert [each["RoleArn"] for each in asked] == [role]
