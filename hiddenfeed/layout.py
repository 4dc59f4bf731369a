"""Where everything of a run lives: keys relative to the root of a store, and their inverse.

A key is a POSIX path without a leading slash, made of `[A-Za-z0-9._-]` segments. Nothing else in
the project builds or takes apart a key.
"""

from __future__ import annotations

import re

from hiddenfeed.errors import DataError

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
#: A name is followed by a dash and a fingerprint in the id.
MAX_NAME_CHARACTERS = 60
_SEGMENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_BATCH_KEY = re.compile(r"(?P<run>[^/]+)/batches/(?P<batch>\d{6,})\.safetensors")
_NOTE_KEY = re.compile(r"(?P<run>[^/]+)/quarantine/(?P<batch>\d{6,})\.json")


def check_run_id(run_id: str) -> str:
    """Return `run_id` if it can name a folder, an object prefix and a queue; else raise DataError."""
    if not _RUN_ID.fullmatch(run_id):
        raise DataError(
            f"run id {run_id!r} is not allowed: letters, digits, '-' and '_' only, at most 100, "
            "starting with a letter or digit"
        )
    return run_id


def check_run_name(name: str) -> str:
    """Return `name` if a run's id can start with it; else raise DataError."""
    if len(name) > MAX_NAME_CHARACTERS or not _RUN_ID.fullmatch(name):
        raise DataError(
            f"run name {name!r} is not allowed: letters, digits, '-' and '_' only, at most "
            f"{MAX_NAME_CHARACTERS}, starting with a letter or digit"
        )
    return name


def check_key(key: str) -> str:
    """Return `key` if it stays below the root of a store; else raise DataError."""
    if not all(_SEGMENT.fullmatch(segment) for segment in key.split("/")):
        raise DataError(f"key {key!r} is not allowed: it must be a relative path of plain names")
    return key


def batch_name(batch_id: int) -> str:
    """`000042` for batch 42: fixed width, so that names sort in batch order."""
    if batch_id < 0:
        raise DataError(f"batch id {batch_id} is negative")
    return f"{batch_id:06d}"


def run_document_key(run_id: str) -> str:
    """The resolved run; written last by preparation, so a run exists once this object does."""
    return f"{check_run_id(run_id)}/run.json"


def tokens_key(run_id: str) -> str:
    """Token ids, loss masks and the plan: one row group per batch."""
    return f"{check_run_id(run_id)}/tokens.parquet"


def index_key(run_id: str) -> str:
    """sample id -> file, token offset, length."""
    return f"{check_run_id(run_id)}/index.parquet"


def skipped_key(run_id: str) -> str:
    """Input rows that were not planned, each with its reason."""
    return f"{check_run_id(run_id)}/skipped.parquet"


def quarantine_key(run_id: str) -> str:
    """Planned samples that could not be extracted, each with its reason."""
    return f"{check_run_id(run_id)}/quarantine.parquet"


def complete_key(run_id: str) -> str:
    """The proof of completeness; its existence ends the run."""
    return f"{check_run_id(run_id)}/complete.json"


def report_key(run_id: str) -> str:
    """How the run went, as JSON: written after the proof, for people; no proof looks at it."""
    return f"{check_run_id(run_id)}/report.json"


def report_page_key(run_id: str) -> str:
    """The same as a page that needs nothing else."""
    return f"{check_run_id(run_id)}/report.html"


def batches_prefix(run_id: str) -> str:
    """Common prefix of all batch files of a run."""
    return f"{check_run_id(run_id)}/batches/"


def batch_key(run_id: str, batch_id: int) -> str:
    """The batch file: one per batch, written once."""
    return f"{batches_prefix(run_id)}{batch_name(batch_id)}.safetensors"


def quarantine_prefix(run_id: str) -> str:
    """Common prefix of the quarantine notes of a run."""
    return f"{check_run_id(run_id)}/quarantine/"


def quarantine_note_key(run_id: str, batch_id: int) -> str:
    """A note in place of the batch file of a batch that could not be extracted."""
    return f"{quarantine_prefix(run_id)}{batch_name(batch_id)}.json"


def parse_batch_key(key: str) -> tuple[str, int] | None:
    """(run id, batch id) of a batch file's key; None for any other key."""
    match = _BATCH_KEY.fullmatch(key)
    return (match["run"], int(match["batch"])) if match else None


def parse_quarantine_note_key(key: str) -> tuple[str, int] | None:
    """(run id, batch id) of a quarantine note's key; None for any other key."""
    match = _NOTE_KEY.fullmatch(key)
    return (match["run"], int(match["batch"])) if match else None
