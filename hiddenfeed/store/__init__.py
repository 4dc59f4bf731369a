"""Stores: one root that holds runs, in a folder or under an S3 prefix, opened by its URL."""

from __future__ import annotations

import re
from pathlib import Path

from hiddenfeed.errors import ConfigError
from hiddenfeed.options import StoreOptions
from hiddenfeed.store.base import ObjectInfo, PutOutcome, Store, UploadNote, UploadNotes
from hiddenfeed.store.gate import RequestGate

__all__ = ["ObjectInfo", "PutOutcome", "RequestGate", "Store", "UploadNote", "UploadNotes", "open_store"]

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):/")


def open_store(
    url: str,
    options: StoreOptions | None = None,
    *,
    gate: RequestGate | None = None,
    notes: UploadNotes | None = None,
) -> Store:
    """The store at `s3://bucket/prefix`, `file:///folder` or a folder; reads and writes nothing yet.

    `gate` limits how many files or parts are under way at a time. With `notes`, an upload in parts
    that was interrupted is gone on with; without, it is given up.
    What a kind of store needs is imported with it, boto3 for S3 alone. Raises ConfigError for a URL that
    is none of these, and for S3 without boto3 or without a usable profile. Whether the store is there is
    what `check` tells.
    """
    scheme = _SCHEME.match(url)
    if not url.strip():
        raise ConfigError("the store must be s3://bucket/prefix or a folder, and it is empty")
    if scheme is None or (scheme["scheme"] == "file" and url.startswith("file:///")):
        from hiddenfeed.store.directory import DirectoryStore  # what computes checksums takes a while to load

        return DirectoryStore(Path(url if scheme is None else url.removeprefix("file://")), gate)
    if scheme["scheme"] == "s3" and url.startswith("s3://"):
        try:
            from hiddenfeed.store.s3 import S3Store  # boto3 takes a third of a second and 40 MB
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("boto3", "botocore"):
                raise
            raise ConfigError("a store in S3 needs the package boto3: pip install 'hiddenfeed[s3]'") from None
        return S3Store(url, options or StoreOptions(), gate=gate, notes=notes)
    raise ConfigError(f"store {url!r} is neither s3://bucket/prefix nor a folder")
