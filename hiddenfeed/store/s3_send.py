"""A file, or a part of one, in a single request: boto3 sends the first of its kind, and judges whatever is no plain success.

The reply that a request sent here got, or the failure that it met, is handed to boto3 as that of its
own first attempt: meaning, waiting and further attempts are boto3's whoever sent the first one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import BotoCoreError

from hiddenfeed.store.s3_line import Reply
from hiddenfeed.store.s3_way import Ways
from hiddenfeed.store.s3_wire import Wire
from hiddenfeed.store.verified_file import VerifiedBody

#: boto3's arguments that a body's own headers are made from; `ChecksumCRC32` and the like besides.
_MD5, _CHECKSUM = "ContentMD5", "Checksum"


class QuickSend:
    """Sends bodies of one client by one operation. Safe to share between threads."""

    def __init__(self, client: Any, wire: Wire, operation: str, succeeded: Callable[[], None]) -> None:
        """`succeeded` hears of each request that went well here; of boto3's own, boto3 tells."""
        self._wire, self._ways = wire, Ways(client, operation, wire.reaches)
        self._succeeded = succeeded

    def put(
        self,
        full_key: str,
        body: VerifiedBody,
        own: Mapping[str, str],
        by_boto3: Callable[[], Any],
        *,
        query: str = "",
    ) -> str:
        """The ETag of what was stored, "" if the store told none. `own` are the headers that `by_boto3` gives the same request.

        Raises what boto3 raises, or what the body raises.
        """
        way = self._ways.known(own)
        if way is None:
            etag = str(by_boto3().get("ETag", ""))
            self._ways.learn(full_key, query, own)
            return etag
        head = way.head("PUT", full_key, query, own)
        outcome: Reply | BotoCoreError
        try:
            outcome = self._wire.exchange(way.origin, "PUT", head, body)
        except BotoCoreError as error:
            outcome = error
        else:
            if outcome.status == 200 and not outcome.body and "etag" in outcome.headers:
                self._succeeded()
                return outcome.headers["etag"]
        with self._wire.foregone(body, outcome):
            return str(by_boto3().get("ETag", ""))


def own_headers(
    size_bytes: int, integrity: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The headers of a body of that size: `integrity` as boto3 has it, `{"ChecksumCRC32": …}` or `{"ContentMD5": …}`."""
    own = {"content-length": str(size_bytes)}
    for name, value in integrity.items():
        if name == _MD5:
            own["content-md5"] = value
        else:
            own[f"x-amz-checksum-{name.removeprefix(_CHECKSUM).lower()}"] = value
    for name, value in (metadata or {}).items():
        own[f"x-amz-meta-{name.lower()}"] = value
    return own


def tells_md5(etag: str, integrity: Mapping[str, Any]) -> bool:
    """Whether an ETag is the MD5 that was sent along, so that the store has computed it from what arrived."""
    sent = integrity.get(_MD5)
    return sent is not None and etag.strip('"').lower() == base64.b64decode(sent).hex()
