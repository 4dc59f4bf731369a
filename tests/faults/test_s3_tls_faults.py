"""Bodies over TLS: whom the client trusts, and the same guarantees as without."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hiddenfeed.checksum import checksum_of
from hiddenfeed.errors import ConfigError, DataError, HiddenfeedError, TransientError
from hiddenfeed.options import MIB, StoreOptions
from hiddenfeed.store import PutOutcome, Store, open_store
from hiddenfeed.store.verified_file import BLOCK_BYTES, VerifiedBody
from tests.certificates import Certificate, make_certificate, needs_openssl
from tests.faults.scripted_faults import CutBody, StopReading
from tests.faults.scripted_s3 import ScriptedS3

pytestmark = needs_openssl

KEY = "run-1/batches/000000.safetensors"
PLACE = f"runs/{KEY}"
#: More than the kernel's buffers take from a connection that nobody reads.
DATA = os.urandom(6 * MIB + 1000)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("ours"))


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@pytest.fixture
def server(certificate: Certificate) -> Iterator[ScriptedS3]:
    with ScriptedS3(certificate) as started:
        yield started


@pytest.fixture(params=["checked here", "checked there"], autouse=True)
def trust(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TLS the kernel would send the file where the store checks it; here it cannot."""
    if request.param == "checked there":
        monkeypatch.setattr("hiddenfeed.store.s3_link.WORTH_ASKING_BYTES", 1)


def opened(server: ScriptedS3, ca: Path | None, **changes: Any) -> Store:
    options = StoreOptions(
        s3_endpoint=server.endpoint,
        s3_ca_bundle=None if ca is None else str(ca),
        s3_connect_timeout_seconds=20,
        s3_read_timeout_seconds=20,
        s3_max_attempts=2,
    )
    return open_store("s3://bucket/runs", msgspec.structs.replace(options, **changes))


def put(store: Store, tmp_path: Path, *, announced: bytes = DATA) -> PutOutcome:
    path = tmp_path / "file.bin"
    path.write_bytes(DATA)
    return store.put_file(KEY, path, size_bytes=len(DATA), checksum=checksum_of(announced))


@pytest.mark.parametrize("part_mib", [128, 5], ids=["one request", "parts"])
def test_a_file_arrives_whole(
    server: ScriptedS3, certificate: Certificate, tmp_path: Path, part_mib: int
) -> None:
    sizes = {"multipart_threshold_bytes": part_mib * MIB, "multipart_part_bytes": part_mib * MIB}
    store = opened(server, certificate.path, **sizes)
    server.script("UploadPart" if part_mib == 5 else "PutObject", CutBody(MIB))
    assert put(store, tmp_path) is PutOutcome.STORED
    assert server.objects[PLACE].data == DATA
    assert put(store, tmp_path) is PutOutcome.ALREADY_THERE
    assert store.read(KEY) == DATA
    server.objects.clear()
    with pytest.raises(DataError, match="has checksum"):
        put(store, tmp_path, announced=DATA[::-1])
    assert (server.objects, server.uploads) == ({}, {})


def test_another_authority_is_one_sentence_that_names_the_setting(server: ScriptedS3, tmp_path: Path) -> None:
    other = make_certificate(tmp_path / "other")
    for ca in (other.path, None):
        with pytest.raises(
            ConfigError,
            match=rf"^the certificate of {server.endpoint} is not trusted \(self.signed certificate\); "
            r"give the file of the CA that signed it with --s3-ca-bundle$",
        ):
            put(opened(server, ca, s3_max_attempts=1), tmp_path)
    assert server.log == []


def test_a_certificate_of_another_host_is_said_to_be_one(tmp_path: Path) -> None:
    other = make_certificate(tmp_path / "other", "DNS:elsewhere.example")
    with (
        ScriptedS3(other) as server,
        pytest.raises(
            ConfigError, match=r"is another host's \(.*; give the name it was made for in --s3-endpoint$"
        ),
    ):
        opened(server, other.path, s3_max_attempts=1).check()


def test_a_file_that_holds_no_certificate_is_refused_at_the_start(server: ScriptedS3, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"^--s3-ca-bundle: .*ca\.pem holds no certificates"):
        opened(server, tmp_path / "ca.pem")


def test_a_server_that_stops_reading_is_given_up(
    server: ScriptedS3, certificate: Certificate, tmp_path: Path
) -> None:
    server.always("PutObject", StopReading())
    impatient = opened(
        server,
        certificate.path,
        s3_connect_timeout_seconds=0.5,
        s3_read_timeout_seconds=0.5,
        s3_max_attempts=1,
    )
    with pytest.raises(TransientError, match=f"could not store {KEY}"):
        put(impatient, tmp_path)
    assert server.objects == {}


def test_a_request_holds_one_block_of_its_file(
    server: ScriptedS3, certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So requests in flight times the size of a block is what an uploader holds of its files."""
    blocks: list[memoryview] = []
    read = VerifiedBody.read

    def watched(body: VerifiedBody, size: int | None = -1) -> memoryview:
        blocks.append(read(body, size))
        return blocks[-1]

    monkeypatch.setattr(VerifiedBody, "read", watched)
    assert put(opened(server, certificate.path), tmp_path) is PutOutcome.STORED
    assert sum(len(block) for block in blocks) == len(DATA)
    assert max(len(block) for block in blocks) == BLOCK_BYTES
    assert len({id(block.obj) for block in blocks}) == 1, "blocks do not share one buffer"


def test_plain_http_to_a_server_with_tls_names_the_other_address(server: ScriptedS3) -> None:
    plain = server.endpoint.replace("https:", "http:")
    options = StoreOptions(s3_endpoint=plain, s3_max_attempts=1)
    with pytest.raises(HiddenfeedError, match=f"speaks TLS.* set --s3-endpoint {server.endpoint}$"):
        open_store("s3://bucket/x", options).check()


def test_an_alert_of_tls_is_no_reply_of_s3s() -> None:
    """What other servers than Python's send before they hang up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        answering = threading.Thread(target=_alert, args=(listener,))
        answering.start()
        options = StoreOptions(s3_endpoint=f"http://127.0.0.1:{port}", s3_max_attempts=1)
        with pytest.raises(ConfigError, match=f"speaks TLS; set --s3-endpoint https://127.0.0.1:{port}$"):
            open_store("s3://bucket/x", options).check()
        answering.join()


def _alert(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"\x15\x03\x01\x00\x02\x02\x16")
