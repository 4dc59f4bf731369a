"""Rows in S3: objects read in ranges, so that nothing of them is kept here, and all of one version."""

from __future__ import annotations

import io
import re
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from common.retry import keep_trying
from hiddenfeed.errors import ConfigError
from hiddenfeed.options import MIB, StoreOptions
from hiddenfeed.ranged_reader import RangedReader
from hiddenfeed.store.s3_client import S3Place, make_client
from hiddenfeed.store.s3_errors import (
    NOT_FOUND,
    PRECONDITION_FAILED,
    error_code,
    from_client,
    from_reply,
    translated,
)
from producer.sources.files import DataFile, FileState
from producer.sources.folder import Say, files_of_rows, natural
from producer.sources.pattern import translate

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_READ_BYTES = 8 * MIB
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_MAGIC = re.compile(r"[*?\[]")


class S3File:
    """One object, in the version that was found."""

    path: Path | None = None

    def __init__(
        self, client: S3Client, place: S3Place, key: str, state: FileState, say: Say, name: str | None = None
    ) -> None:
        """`place` is the bucket, without a prefix; `state` is size and entity tag; `say` hears when S3 is away."""
        self._client, self._place, self._key, self._say = client, place, key, say
        self._size, self._tag = state
        self.where = f"s3://{place.bucket}/{key}"
        self.name = name or key.rpartition("/")[2]

    def open(self) -> io.BufferedReader:
        """See `DataFile.open`; reading waits for as long as S3 is away."""
        return io.BufferedReader(RangedReader(self.read, self._size), _READ_BYTES)

    def state(self) -> FileState:
        """See `DataFile.state`."""
        found = _head(self._client, self._place, self._key)
        if found is None:
            raise ConfigError(f"{self.where} is not there any more")
        return found

    def read(self, start: int, length: int) -> bytes:
        """Bytes `[start, start + length)`; raises ConfigError if the object is not the one that was found."""
        return keep_trying(
            lambda: self._read(start, length),
            wait=Event().wait,
            on_failure=lambda error, seconds: self._say(f"waiting: {error}"),
        )

    def _read(self, start: int, length: int) -> bytes:
        doing = f"read {self.where}"
        try:
            reply = self._client.get_object(
                Bucket=self._place.bucket,
                Key=self._key,
                Range=f"bytes={start}-{start + length - 1}",
                IfMatch=self._tag,
            )
            with closing(reply["Body"]) as body:
                return bytes(body.read())
        except ClientError as error:
            if error_code(error) in PRECONDITION_FAILED | NOT_FOUND:
                raise ConfigError(
                    f"{self.where} was changed while it was read; start again when it is whole"
                ) from error
            raise from_reply(error, self._place, doing) from error
        except BotoCoreError as error:
            raise from_client(error, self._place, doing) from error


def find_in_s3(url: str, options: StoreOptions, say: Say) -> list[DataFile]:
    """The objects that `s3://bucket/key` names: one, all that fit a pattern, or the files of rows below a prefix.

    Raises ConfigError if there are none, TransientError if S3 is away.
    """
    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(f"--data {url}: {bucket!r} cannot be a bucket's name; write s3://bucket/key")
    client, endpoint = make_client(options)
    place = S3Place(bucket=bucket, prefix="", endpoint=endpoint)

    state = _head(client, place, key) if key and not key.endswith("/") else None
    if state is not None:
        return [S3File(client, place, key, state, say)]
    if _MAGIC.search(key):
        found, names = _fitting(client, place, key)
    else:
        found, names = _below(client, place, key.rstrip("/"), say)
    if not names:
        raise ConfigError(f"--data {url} is not there")
    start = len(_common_folder(names))
    return [S3File(client, place, name, found[name], say, name[start:]) for name in names]


def _fitting(client: S3Client, place: S3Place, pattern: str) -> tuple[dict[str, FileState], list[str]]:
    """Objects, and the keys of those among them that fit a pattern, in order."""
    literal = _MAGIC.split(pattern, maxsplit=1)[0]
    found, fits = _list(client, place, literal), re.compile(translate(pattern))
    return found, sorted((key for key in found if fits.fullmatch(key)), key=natural)


def _below(client: S3Client, place: S3Place, folder: str, say: Say) -> tuple[dict[str, FileState], list[str]]:
    """The objects below a prefix, and the keys of those among them that are rows, in order."""
    prefix = f"{folder}/" if folder else ""
    found, where = _list(client, place, prefix), f"s3://{place.bucket}/{folder}".rstrip("/")
    if not found:
        return found, []

    def read(name: str) -> bytes:
        key = prefix + name
        if key not in found:
            raise ConfigError(f"{where}/{name} is missing")
        with S3File(client, place, key, found[key], say).open() as file:
            return file.read()

    taken = files_of_rows(where, [key.removeprefix(prefix) for key in found], read, say)
    missing = next((name for name in taken if prefix + name not in found), None)
    if missing is not None:
        raise ConfigError(f"{where}/{missing} is missing")
    return found, [prefix + name for name in taken]


def _common_folder(keys: list[str]) -> str:
    folders = [key.split("/")[:-1] for key in keys]
    same = 0
    while all(len(folder) > same and folder[same] == folders[0][same] for folder in folders):
        same += 1
    return "".join(f"{part}/" for part in folders[0][:same])


def _head(client: S3Client, place: S3Place, key: str) -> FileState | None:
    try:
        reply = client.head_object(Bucket=place.bucket, Key=key)
    except ClientError as error:
        if error_code(error) in NOT_FOUND:
            return None
        raise from_reply(error, place, f"look at {key}") from error
    except BotoCoreError as error:
        raise from_client(error, place, f"look at {key}") from error
    return int(reply["ContentLength"]), reply["ETag"]


def _list(client: S3Client, place: S3Place, prefix: str) -> dict[str, FileState]:
    """Size and entity tag of every object below a prefix; folders' own markers are none."""
    found: dict[str, FileState] = {}
    with translated(place, f"list s3://{place.bucket}/{prefix}"):
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=place.bucket, Prefix=prefix):
            for entry in page.get("Contents", []):
                if not entry["Key"].endswith("/"):
                    found[entry["Key"]] = (int(entry["Size"]), entry["ETag"])
    return found
