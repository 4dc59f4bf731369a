"""A HEAD without TLS in as few steps as it takes: after every put there is one, and boto3's costs more than a small body.

boto3 asks the first time and shows the way: the address, the headers, and what signs. From then on
the question goes over the same connections as files do, signed by the same signer; whatever is not
a plain answer is left to boto3, which asks again, in its own time and with its own meaning.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec
from botocore.awsrequest import AWSRequest
from urllib3.exceptions import HTTPError

from hiddenfeed.store.s3_client import SIGNATURE
from hiddenfeed.store.s3_wire import Wire

#: What every question carries, if boto3's did.
_KEPT_HEADERS = ("User-Agent", "x-amz-checksum-mode", "x-amz-request-payer")
_METADATA = "x-amz-meta-"
#: The answer's header -> its name in boto3's answer.
_FIELDS = {
    "etag": "ETag",
    "x-amz-checksum-crc64nvme": "ChecksumCRC64NVME",
    "x-amz-checksum-crc32": "ChecksumCRC32",
    "x-amz-checksum-type": "ChecksumType",
}


class _Way(msgspec.Struct, frozen=True):
    """What boto3 signed: enough to sign the same for another key."""

    url: str
    headers: dict[str, str]
    signer: Any
    signing_name: str
    region: str
    context: dict[str, Any]


class QuickLook:
    """Looks at objects of one client. Safe to share between threads."""

    def __init__(self, client: Any, wire: Wire) -> None:
        """Watches what the client signs; asks nothing yet."""
        self._wire = wire
        self._seen = threading.local()
        #: `url` without the key.
        self._way: _Way | None = None
        client.meta.events.register("before-sign.s3.HeadObject", self._see)

    def learn(self, full_key: str) -> None:
        """This thread's last question of boto3's was for `full_key`, and was answered."""
        seen: _Way | None = getattr(self._seen, "way", None)
        if self._way is None and seen is not None and seen.url.endswith(f"/{full_key}"):
            self._way = msgspec.structs.replace(seen, url=seen.url.removesuffix(full_key))

    def head(self, full_key: str) -> dict[str, Any] | None:
        """What boto3's `head_object` would reply of an object that is there, as far as it is needed; None: ask boto3."""
        way = self._way
        if way is None:
            return None
        url = way.url + full_key
        request = AWSRequest("HEAD", url, headers=way.headers)
        request.context = way.context
        way.signer.get_auth_instance(way.signing_name, way.region, SIGNATURE).add_auth(request)
        try:
            reply = self._wire.ask("HEAD", url, dict(request.headers.items()))
        except (HTTPError, OSError):
            return None
        if reply.status != 200 or "content-length" not in reply.headers:
            return None
        answer: dict[str, Any] = {"ContentLength": int(reply.headers["content-length"]), "Metadata": {}}
        for name, value in reply.headers.items():
            lower = name.lower()
            if lower in _FIELDS:
                answer[_FIELDS[lower]] = value
            elif lower.startswith(_METADATA):
                answer["Metadata"][lower.removeprefix(_METADATA)] = value
        return answer

    def _see(
        self,
        request: AWSRequest,
        request_signer: Any,
        signing_name: str,
        region_name: str,
        signature_version: str,
        **details: object,
    ) -> None:
        """boto3 is about to sign a HEAD."""
        url = request.url or ""
        if signature_version != SIGNATURE or not self._wire.reaches(url):
            return
        signing = request.context.get("signing", {})
        self._seen.way = _Way(
            url=url,
            headers={name: request.headers[name] for name in _KEPT_HEADERS if name in request.headers},
            signer=request_signer,
            signing_name=signing.get("signing_name", signing_name),
            region=signing.get("region", region_name),
            context={"client_config": request.context["client_config"]},
        )
