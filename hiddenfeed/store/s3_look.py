"""A HEAD in as few steps as it takes: after every put there is one, and boto3's costs more than a small body.

boto3 asks the first time and shows the way. Whatever is not a plain answer is left to boto3, which
asks again, in its own time and with its own meaning.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from hiddenfeed.store.s3_way import Ways
from hiddenfeed.store.s3_wire import Wire

_METADATA = "x-amz-meta-"
#: The answer's header -> its name in boto3's answer.
_FIELDS = {
    "etag": "ETag",
    "x-amz-checksum-crc64nvme": "ChecksumCRC64NVME",
    "x-amz-checksum-crc32": "ChecksumCRC32",
    "x-amz-checksum-type": "ChecksumType",
}
#: What boto3 makes of a reply without a body.
_MISSING: Any = {
    "Error": {"Code": "404", "Message": "Not Found"},
    "ResponseMetadata": {"HTTPStatusCode": 404},
}


class QuickLook:
    """Looks at objects of one client. Safe to share between threads."""

    def __init__(self, client: Any, wire: Wire) -> None:
        """Watches what the client asks; asks nothing yet."""
        self._wire, self._ways = wire, Ways(client, "HeadObject", wire.reaches)

    def learn(self, full_key: str) -> None:
        """This thread's last question of boto3's was for `full_key`, and was answered."""
        self._ways.learn(full_key, "", {})

    def head(self, full_key: str) -> dict[str, Any] | None:
        """What boto3's `head_object` would reply of an object that is there, as far as it is needed; None: ask boto3.

        Raises what boto3 raises where there is no object.
        """
        way = self._ways.known({})
        if way is None:
            return None
        try:
            reply = self._wire.exchange(way.origin, "HEAD", way.head("HEAD", full_key, "", {}))
        except BotoCoreError:
            return None
        if (
            reply.status == HTTPStatus.NOT_FOUND
        ):  # the first look at a large file's key finds nothing, as a rule
            raise ClientError(_MISSING, "HeadObject")
        if reply.status != HTTPStatus.OK or not reply.headers.get("content-length", "").isdigit():
            return None
        answer: dict[str, Any] = {"ContentLength": int(reply.headers["content-length"]), "Metadata": {}}
        for name, value in reply.headers.items():
            if name in _FIELDS:
                answer[_FIELDS[name]] = value
            elif name.startswith(_METADATA):
                answer["Metadata"][name.removeprefix(_METADATA)] = value
        return answer
