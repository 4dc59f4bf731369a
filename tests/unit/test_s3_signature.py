"""Requests that are signed without botocore: the same signatures, learned from its requests or left to it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.hooks import HierarchicalEmitter

from hiddenfeed.store.s3_client import SIGNATURE
from hiddenfeed.store.s3_sign import UNSIGNED_PAYLOAD, authorization, host_of
from hiddenfeed.store.s3_way import Way, Ways

KEY = "runs/run-1/batches/000000.safetensors"
OWN = {"content-length": "1000", "x-amz-checksum-crc64nvme": "AAAAAAAAAAA=", "x-amz-meta-worker": "gpu 7"}
CONTEXT = {"client_config": Config(s3={"payload_signing_enabled": False})}


def signed_by_botocore(url: str, token: str | None = None, **headers: str) -> AWSRequest:
    request = AWSRequest("PUT", url, headers={"User-Agent": "Boto3/1", "If-None-Match": "*", **headers})
    request.context = dict(CONTEXT)
    S3SigV4Auth(Credentials("AKIA1", "secret", token), "s3", "eu-west-1").add_auth(request)
    return request


@pytest.mark.parametrize("token", [None, "a/token=="])
@pytest.mark.parametrize(
    "url",
    [
        f"http://127.0.0.1:8333/bucket/{KEY}",
        f"https://Bucket.s3.eu-west-1.amazonaws.com:443/{KEY}?partNumber=12&uploadId=a%2Bb~c",
        f"http://[::1]:80/bucket/{KEY}",
    ],
)
def test_signatures_are_those_of_botocore(url: str, token: str | None) -> None:
    request = signed_by_botocore(url, token, **OWN)
    parts = urlsplit(url)
    covered = {name.lower(): value for name, value in request.headers.items() if name != "User-Agent"}
    theirs = covered.pop("authorization")
    assert covered["x-amz-content-sha256"] == UNSIGNED_PAYLOAD
    ours = authorization(
        "AKIA1",
        "secret",
        "eu-west-1",
        "s3",
        method="PUT",
        path=parts.path,
        query=parts.query,
        signed={**covered, "host": host_of(parts)},
    )
    assert ours == theirs


class Signer:
    """What boto3 gives credentials by."""

    def __init__(self) -> None:
        self.keys = Credentials("AKIA1", "secret")

    def get_auth_instance(self, service: str, region: str, signature: str) -> S3SigV4Auth:
        return S3SigV4Auth(self.keys.get_frozen_credentials(), service, region)


class Client:
    """The part of a client that tells what it does."""

    def __init__(self) -> None:
        self.meta = self
        self.events = HierarchicalEmitter()

    def send(self, signer: Signer, url: str, signature: str = SIGNATURE, **headers: str) -> None:
        """Do what boto3 does with a request."""
        request = AWSRequest("PUT", url, headers={"User-Agent": "Boto3/1", "If-None-Match": "*", **headers})
        request.context = dict(CONTEXT)
        self.events.emit(
            "before-sign.s3.PutObject",
            request=request,
            request_signer=signer,
            signing_name="s3",
            region_name="eu-west-1",
            signature_version=signature,
        )
        signer.get_auth_instance("s3", "eu-west-1", "").add_auth(request)
        self.events.emit("before-send.s3.PutObject", request=request.prepare())


def headers_of(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head.decode().removesuffix("\r\n\r\n").split("\r\n")
    return first, {name: value for name, _, value in (line.partition(": ") for line in lines)}


def learned(url: str = f"http://127.0.0.1:8333/bucket/{KEY}", **changes: Any) -> Way | None:
    client, signer = Client(), Signer()
    ways = Ways(client, "PutObject", lambda url: True)
    client.send(signer, url, **{**OWN, **changes})
    ways.learn(KEY, "", OWN)
    return ways.known(OWN)


def test_a_way_makes_requests_that_botocore_would_sign_alike() -> None:
    client, signer = Client(), Signer()
    ways = Ways(client, "PutObject", lambda url: True)
    assert ways.known(OWN) is None
    client.send(signer, f"http://127.0.0.1:8333/bucket/{KEY}", **OWN)
    ways.learn(KEY, "", OWN)
    other = {"content-length": "2", "x-amz-checksum-crc64nvme": "BBBBBBBBBBB=", "x-amz-meta-batch": "8"}
    way = ways.known(other)
    assert way is not None
    signer.keys = Credentials("AKIA2", "another secret", "token")  # as renewed meanwhile
    first, headers = headers_of(way.head("PUT", "runs/b", "", other))
    assert first == "PUT /bucket/runs/b HTTP/1.1"
    assert other.items() <= headers.items()
    assert "x-amz-meta-worker" not in headers
    assert (headers["If-None-Match".lower()], headers["user-agent"]) == ("*", "Boto3/1")
    assert headers["x-amz-security-token"] == "token"
    covered = headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert set(headers) - set(covered) == {"user-agent", "authorization"}


@pytest.mark.parametrize(
    "changes",
    [
        {"x-amz-checksum-crc32": "AAAA"},
        {"x-amz-meta-other": "1"},
        {"content-length": "999"},
        {"url": "http://127.0.0.1:8333/bucket/other"},
        {"url": f"http://127.0.0.1:8333/bucket/{KEY}?versionId=1"},
        {"signature": "s3v4a"},
    ],
    ids=["a header that depends on the body", "metadata", "a length", "a key", "a query", "a signature"],
)
def test_what_was_not_understood_is_left_to_boto3(changes: dict[str, str]) -> None:
    assert learned() is not None
    assert learned(**changes) is None


def test_values_that_need_care_are_left_to_boto3() -> None:
    client, signer = Client(), Signer()
    ways = Ways(client, "PutObject", lambda url: True)
    client.send(signer, f"http://127.0.0.1:8333/bucket/{KEY}", **OWN)
    ways.learn(KEY, "", OWN)
    assert ways.known(OWN) is not None
    for value in ("zwölf", "two  spaces", " before", "a\r\nx-amz-acl: public-read", ""):
        assert ways.known({**OWN, "x-amz-meta-worker": value}) is None
    assert ways.known({**OWN, "x-amz-meta-a: b\r\nc": "1"}) is None
    assert ways.known({**OWN, "x-amz-checksum-crc32": "AAAA"}) is None, "another kind of request"
