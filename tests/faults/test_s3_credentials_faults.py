"""A role that is assumed, and assumed again as its keys expire in mid-run, against a security token service that we play."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from hiddenfeed.checksum import checksum_of
from hiddenfeed.errors import ConfigError
from hiddenfeed.options import MIB, StoreOptions
from hiddenfeed.store import PutOutcome, Store, open_store
from tests.faults.scripted_s3 import ScriptedS3

ROLE = "arn:aws:iam::123456789012:role/uploader"
DATA = bytes(7 * MIB)


class Sts(HTTPServer):
    """Gives keys with a number that rises and a short life, or refuses."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict[str, list[str]]] = []
        self.refuses = False
        #: boto3 looks for new ones some minutes before the old ones end, so here at every request.
        self.life = timedelta(seconds=60)


class _Handler(BaseHTTPRequestHandler):
    server: Sts

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        owner = self.server
        owner.asked.append(parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        number = len(owner.asked)
        body = (
            "<AssumeRoleResponse xmlns='https://sts.amazonaws.com/doc/2011-06-15/'><AssumeRoleResult><Credentials>"
            f"<AccessKeyId>ASIA{number}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
            f"<SessionToken>token-{number}</SessionToken>"
            f"<Expiration>{(datetime.now(UTC) + owner.life).strftime('%Y-%m-%dT%H:%M:%SZ')}</Expiration>"
            "</Credentials></AssumeRoleResult></AssumeRoleResponse>"
        )
        if owner.refuses:
            body = "<ErrorResponse><Error><Code>AccessDenied</Code><Message>not you</Message></Error></ErrorResponse>"
        self.send_response(403 if owner.refuses else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


@contextmanager
def serving(server: Sts) -> Iterator[Sts]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def sts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sts]:
    with serving(Sts()) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA1")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield server


def opened(server: ScriptedS3) -> Store:
    options = StoreOptions(
        s3_endpoint=server.endpoint,
        s3_role_arn=ROLE,
        s3_max_attempts=1,
        multipart_threshold_bytes=5 * MIB,
        multipart_part_bytes=5 * MIB,
    )
    return open_store("s3://bucket/runs", options)


def put(store: Store, path: Path) -> PutOutcome:
    return store.put_file("run-1/a", path, size_bytes=len(DATA), checksum=checksum_of(DATA))


def test_a_role_whose_keys_expire_is_assumed_again_in_mid_upload(sts: Sts, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(DATA)
    with ScriptedS3() as server:
        assert put(opened(server), path) is PutOutcome.STORED
        used = [headers["authorization"].split("Credential=")[1].split("/")[0] for headers in server.headers]
        assert len(server.headers) >= 6, server.log
        assert len(set(used)) == len(used), "a key was used again beyond its life"
        assert {headers["x-amz-security-token"].removeprefix("token-") for headers in server.headers} == {
            key.removeprefix("ASIA") for key in used
        }
        assert all("x-amz-security-token" in headers["authorization"] for headers in server.headers)
        assert {tuple(asked["RoleArn"]) for asked in sts.asked} == {(ROLE,)}


def test_a_role_is_assumed_once_while_its_keys_last(sts: Sts, tmp_path: Path) -> None:
    sts.life = timedelta(hours=1)
    path = tmp_path / "file.bin"
    path.write_bytes(DATA)
    with ScriptedS3() as server:
        assert put(opened(server), path) is PutOutcome.STORED
    assert len(sts.asked) == 1


def test_a_role_that_is_refused_is_said_to_be(sts: Sts) -> None:
    sts.refuses = True
    refusal = r"the role cannot be assumed \(AccessDenied: not you\); check --s3-role-arn"
    with ScriptedS3() as server, pytest.raises(ConfigError, match=refusal):
        opened(server).check()
