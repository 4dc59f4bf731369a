"""What a run is: the document at its root, and the identity its fingerprint is taken of."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from hiddenfeed.errors import DataError
from hiddenfeed.words import count_text

FORMAT_VERSION = 1
FINGERPRINT_DIGITS = 12
#: What is said of data that differs: so many files, so many digits of the hash of each.
_FILES_SHOWN, _DIGITS_SHOWN = 5, 8
#: Fields of the identity that runs of the first version did not have.
_ADDED = ("min_loss_tokens", "duplicates", "data_format", "columns", "preparation")
#: What is said of a field that is no setting and differs.
_MEANINGS = {"preparation": "preparation (how this version of the program makes samples of rows)"}


class InputFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input file, by content; its folder does not matter."""

    name: str
    size_bytes: int
    blake2b: str


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that changes an output byte. Two runs of equal identity are the same run."""

    format_version: int = FORMAT_VERSION
    data: tuple[InputFile, ...]
    #: Hub id, or `weights:<hash>` for a folder, whose place on disk does not matter.
    model: str
    model_revision: str | None
    #: Hash over the tokenizer's files.
    tokenizer: str
    #: Hash of the chat template's text.
    chat_template: str
    loss_mask: str
    max_length: int
    overlength: str
    min_length: int
    #: Canonical: residual stream after t blocks, strictly increasing.
    taps: tuple[int, ...]
    #: `none`, `pre` or `post`: the extra state for the language-model head, and on which side of the final norm.
    final_state: str
    #: `bfloat16`, `float16` or `float32`, as stored.
    dtype: str
    micro_batch_tokens: int
    target_file_bytes: int
    seed: int
    # What follows was added later: the default is what every run before it had, and does not count in the
    # fingerprint, so that stored runs keep theirs.
    min_loss_tokens: int = 1
    #: `keep` or `drop`: what became of rows of the same content.
    duplicates: str = "keep"
    #: `auto` or the one kind of rows that was taken.
    data_format: str = "auto"
    #: Which column is what, where that was told: `id=uuid,messages=chat`.
    columns: str = ""
    #: Number of the program's way to make samples of rows; runs without one have the first.
    preparation: int = 1


class PlanSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan in numbers. rows = samples + skipped."""

    rows: int
    samples: int
    skipped: int
    tokens: int
    padded_tokens: int
    loss_tokens: int
    longest: int
    micro_batches: int
    batches: int


class StoredFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object of the run that other parts fetch whole and verify."""

    key: str
    size_bytes: int
    checksum: str


class RunDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """run.json: written last by preparation and never changed afterwards."""

    run_id: str
    fingerprint: str
    identity: RunIdentity
    created_at: str
    #: What to load: a hub id or an absolute folder, as the user gave it.
    model: str
    hidden_size: int
    num_blocks: int
    #: The tap specification as given and as understood, for people.
    taps_spec: str
    taps_meaning: str
    plan: PlanSummary
    tokens: StoredFile
    skipped: StoredFile
    #: Versions of the programs that prepared the run.
    versions: dict[str, str]
    #: Resolved settings of the preparation: name -> value.
    settings: dict[str, Any]


def fingerprint(identity: RunIdentity) -> str:
    """The first 12 hex digits of BLAKE2b over the identity's canonical JSON, without later fields at their default."""
    fields = msgspec.to_builtins(identity)
    for field in msgspec.structs.fields(RunIdentity):
        if field.name in _ADDED and fields[field.name] == field.default:
            del fields[field.name]
    canonical = msgspec.json.encode(fields, order="sorted")
    return hashlib.blake2b(canonical).hexdigest()[:FINGERPRINT_DIGITS]


def identity_differences(stored: RunIdentity, wanted: RunIdentity) -> list[str]:
    """`name: from X to Y` for every field in which two identities differ; of the data, which files."""
    old, new = msgspec.structs.asdict(stored), msgspec.structs.asdict(wanted)
    return [
        f"data: {_data_difference(stored.data, wanted.data)}"
        if name == "data"
        else f"{_MEANINGS.get(name, name)}: from {old[name]!r} to {new[name]!r}"
        for name in old
        if old[name] != new[name]
    ]


def _data_difference(stored: tuple[InputFile, ...], wanted: tuple[InputFile, ...]) -> str:
    """Which files changed, from what to what, the first few of them."""
    old, new = ({file.name: file for file in files} for files in (stored, wanted))
    differences = [
        f"{name} from {_content(old.get(name))} to {_content(new.get(name))}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]
    if not differences:
        return f"the same files in another order, from {_names(stored)} to {_names(wanted)}"
    more = len(differences) - _FILES_SHOWN
    return ", ".join(differences[:_FILES_SHOWN]) + (
        f" and {count_text(more, 'more file')}" if more > 0 else ""
    )


def _content(file: InputFile | None) -> str:
    return (
        "not there"
        if file is None
        else f"{count_text(file.size_bytes, 'byte')} ({file.blake2b[:_DIGITS_SHOWN]})"
    )


def _names(files: tuple[InputFile, ...]) -> str:
    return " ".join(file.name for file in files[:_FILES_SHOWN])


def decode_run_document(data: bytes, where: str) -> RunDocument:
    """The run document in `data`; raises DataError naming `where` and the reason."""
    try:
        document = msgspec.json.decode(data, type=RunDocument)
    except msgspec.MsgspecError as error:
        raise DataError(f"{where} is not a run document this version reads: {error}") from None
    if fingerprint(document.identity) != document.fingerprint:
        raise DataError(f"{where}: the fingerprint does not match the identity; the document was altered")
    return document
