"""What all puts of one S3 store share: client, place, gate, notes, and whether the store is known to verify."""

from __future__ import annotations

import base64
import hashlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from botocore.exceptions import BotoCoreError, ClientError

from hiddenfeed.checksum import checksum_of, parse
from hiddenfeed.options import StoreOptions
from hiddenfeed.store.base import UploadNotes
from hiddenfeed.store.gate import RequestGate
from hiddenfeed.store.s3_client import POOL_CONNECTIONS, S3Place, make_client, object_arguments
from hiddenfeed.store.s3_errors import BUSY, DAMAGED, error_code, refuses_keys
from hiddenfeed.store.s3_look import QuickLook
from hiddenfeed.store.s3_send import QuickSend
from hiddenfeed.store.s3_wire import Wire
from hiddenfeed.store.verified_file import VerifiedBody, VerifiedFile

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_log = logging.getLogger(__name__)

#: Below this much in all, checking files while they are read costs nothing worth asking the store for.
WORTH_ASKING_BYTES = 16 * 1024 * 1024
#: A question that was not answered is asked again after this.
_ASK_AGAIN_SECONDS = 60.0
#: Credentials that are refused are looked for anew no more often than this.
_RENEW_SECONDS = 5.0
#: Operations that carry data.
_CARRIERS = ("PutObject", "UploadPart")
_BUSY_STATUSES = frozenset({429, 503})


class S3Link:
    """Everything a put needs besides its file. Safe to share between threads."""

    def __init__(
        self,
        place: tuple[str, str],
        options: StoreOptions,
        gate: RequestGate | None,
        notes: UploadNotes | None,
    ) -> None:
        """`place` is (bucket, prefix). Raises ConfigError for options that cannot work."""
        self.options = options
        self._renewing = threading.Lock()
        self._stale = False
        self._renewed_at = float("-inf")
        self._wire = None if options.s3_expect_continue else Wire(options, POOL_CONNECTIONS)
        self._look: QuickLook | None = None
        self._quick: dict[str, QuickSend] = {}
        self.gate = gate or RequestGate()
        self._client, endpoint = self._make_client()
        self.place = S3Place(bucket=place[0], prefix=place[1], endpoint=endpoint)
        self.notes = notes
        self.object_arguments = object_arguments(options)
        #: False once the store has turned out to want one with every part, or not to verify the whole.
        self.whole_checksum_will_do = True
        self._asking = threading.Lock()
        self._verifies: bool | None = None
        self._offered_bytes = 0
        self._ask_at = float("-inf")

    @property
    def client(self) -> S3Client:
        """boto3's client; a new one after the credentials were refused, as others may lie where they came from.

        boto3 renews what it knows to expire. It does not look again at keys in a file or in the
        environment, which a person or another program has to replace.
        """
        if self._stale and time.monotonic() - self._renewed_at > _RENEW_SECONDS:
            with self._renewing:
                if self._stale:
                    self._stale, self._renewed_at = False, time.monotonic()
                    self._client, _ = self._make_client()
                    _log.info("looked for credentials again, as %s refused those in use", self.place.endpoint)
        return self._client

    def head_object(self, full_key: str) -> Any:
        """What boto3's `head_object` replies, or as much of it as is needed, from whoever asks with less ado.

        Raises what boto3 raises.
        """
        look = self._look
        if look is not None and (found := look.head(full_key)) is not None:
            return found
        reply = self.client.head_object(Bucket=self.place.bucket, Key=full_key, ChecksumMode="ENABLED")
        if look is not None:
            look.learn(full_key)
        return reply

    def send(
        self,
        operation: Literal["PutObject", "UploadPart"],
        full_key: str,
        body: VerifiedBody,
        own: Mapping[str, str],
        by_boto3: Callable[[S3Client], Any],
        *,
        query: str = "",
    ) -> str:
        """The ETag that the store answers a body with, "" without one, from whoever sends it with less ado; see `QuickSend.put`.

        Raises what boto3 raises, or what the body raises.
        """
        client = self.client
        quick = self._quick.get(operation)
        if quick is None:
            return str(by_boto3(client).get("ETag", ""))
        return quick.put(full_key, body, own, lambda: by_boto3(client), query=query)

    def _make_client(self) -> tuple[S3Client, str]:
        client, endpoint = make_client(self.options)
        if self._wire is not None:
            self._wire.install(client)
            self._look = QuickLook(client, self._wire)
            self._quick = {
                operation: QuickSend(client, self._wire, operation, self.gate.fine) for operation in _CARRIERS
            }
        for operation in _CARRIERS:
            client.meta.events.register(f"response-received.s3.{operation}", self._watch)
        client.meta.events.register("response-received.s3", self._watch_credentials)
        return client, endpoint

    def condition(self) -> dict[str, Any]:
        """The argument that lets a write succeed only where nothing is."""
        return {"IfNoneMatch": "*"} if self.options.s3_conditional_writes else {}

    def integrity(self, checksum: str) -> dict[str, Any]:
        """The argument that makes the store verify a body of that checksum, `{"ChecksumCRC64NVME": base64}`."""
        if self.options.s3_checksum != "header":
            return {}
        algorithm, _ = parse(checksum)
        return {f"Checksum{algorithm.upper()}": checksum.partition(":")[2]}

    def document_md5(self, data: bytes) -> dict[str, Any]:
        """The same for a store that knows nothing but Content-MD5, if that is what is set."""
        if self.options.s3_checksum != "md5":
            return {}
        digest = hashlib.md5(data, usedforsecurity=False).digest()
        return {"ContentMD5": base64.b64encode(digest).decode()}

    def section_md5(self, file: VerifiedFile, start: int, length: int) -> dict[str, Any]:
        """The same for a section of a file, read once more for that."""
        if self.options.s3_checksum != "md5":
            return {}
        digest = hashlib.md5(usedforsecurity=False)
        for block in file.blocks(start, length):
            digest.update(block)
        return {"ContentMD5": base64.b64encode(digest.digest()).decode()}

    @property
    def has_verified(self) -> bool:
        """Whether the store is known to have compared what it acknowledged with the checksum that came with it."""
        return bool(self._verifies)

    def verifies(self, size_bytes: int) -> bool:
        """Whether the store is known to refuse a body that is not what its checksum says.

        It is asked once, when some megabytes are to be sent: a byte under a wrong checksum.
        """
        if self._verifies is not None:
            return self._verifies
        self._offered_bytes += size_bytes
        if self._offered_bytes < WORTH_ASKING_BYTES:
            return False
        if self.options.s3_checksum != "header":
            return False
        if time.monotonic() < self._ask_at or not self._asking.acquire(blocking=False):
            return False
        try:
            self._ask()
        finally:
            self._asking.release()
        return bool(self._verifies)

    def _ask(self) -> None:
        key: dict[str, Any] = {
            "Bucket": self.place.bucket,
            "Key": self.place.full_key(f"scratch-{uuid.uuid4().hex}"),
        }
        self._ask_at = time.monotonic() + _ASK_AGAIN_SECONDS
        try:
            self.client.put_object(**key, **self.integrity(checksum_of(b"other")), Body=b"bytes")
            self._verifies = False
            _log.warning(
                "%s verifies no checksums, so files are verified while they are read", self.place.endpoint
            )
            self.client.delete_object(**key)
        except ClientError as error:
            if error_code(error) in DAMAGED:
                self._verifies = True
            else:
                _log.info("%s did not tell whether it verifies: %s", self.place.endpoint, error)
        except BotoCoreError as error:
            _log.info("%s did not tell whether it verifies: %s", self.place.endpoint, error)

    def _watch_credentials(self, parsed_response: Any, **details: object) -> None:
        if refuses_keys(parsed_response or {}):
            self._stale = True

    def _watch(self, response_dict: Any, parsed_response: Any, **details: object) -> None:
        """boto3 tells of every reply to a request that carried data, its own tries included."""
        if response_dict is None:
            return
        code = (parsed_response or {}).get("Error", {}).get("Code", "")
        if response_dict["status_code"] in _BUSY_STATUSES or code in BUSY:
            if self.gate.busy():
                _log.warning(
                    "%s is busy: %d requests at a time for now", self.place.endpoint, self.gate.limit
                )
        elif response_dict["status_code"] < 300:
            self.gate.fine()
