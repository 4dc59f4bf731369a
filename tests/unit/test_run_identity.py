"""A run's identity: what changes the fingerprint, and how a difference is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hiddenfeed.errors import DataError
from hiddenfeed.run import (
    InputFile,
    PlanSummary,
    RunDocument,
    RunIdentity,
    StoredFile,
    decode_run_document,
    fingerprint,
    identity_differences,
)

IDENTITY = RunIdentity(
    data=(InputFile(name="a.jsonl", size_bytes=10, blake2b="00"),), model="org/model", model_revision="abc",
    tokenizer="t", chat_template="c", loss_mask="assistant", max_length=4096, overlength="truncate", min_length=1,
    taps=(1, 15, 28), final_state="none", dtype="bfloat16", micro_batch_tokens=1024, target_file_bytes=1 << 29, seed=0,
)  # fmt: skip
STORED = StoredFile(key="k", size_bytes=1, checksum="crc32:AAAAAA==")
DOCUMENT = RunDocument(
    run_id="r-1", fingerprint=fingerprint(IDENTITY), identity=IDENTITY, created_at="2026-01-01T00:00:00Z",
    model="org/model", hidden_size=64, num_blocks=30, taps_spec="1,15,28", taps_meaning="…",
    plan=PlanSummary(
        rows=3, samples=2, skipped=1, tokens=20, padded_tokens=22, loss_tokens=9, longest=12, micro_batches=1, batches=1
    ),
    tokens=STORED, skipped=STORED, versions={}, settings={},
)  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"data": ()}, {"model": "m"}, {"model_revision": None}, {"tokenizer": "u"}, {"chat_template": "d"},
        {"loss_mask": "all"}, {"max_length": 1}, {"overlength": "drop"}, {"min_length": 2}, {"taps": (1, 15, 29)},
        {"min_loss_tokens": 2}, {"duplicates": "drop"}, {"data_format": "text"}, {"columns": "id=uuid"},
        {"final_state": "post"}, {"dtype": "float32"}, {"micro_batch_tokens": 1}, {"target_file_bytes": 1}, {"seed": 1},
        {"format_version": 2}, {"preparation": 2},
    ],
)  # fmt: skip
def test_every_field_changes_the_fingerprint_and_is_named(change: dict[str, Any]) -> None:
    other = msgspec.structs.replace(IDENTITY, **change)
    assert fingerprint(other) != fingerprint(IDENTITY)
    (difference,) = identity_differences(IDENTITY, other)
    name = next(iter(change))
    said = {
        "data": "data: a.jsonl from 10 bytes (00)",
        "preparation": "preparation (how this version of the program makes samples of rows): from 1 to 2",
    }
    assert difference.startswith(said.get(name, f"{name}: from "))


def test_data_that_differs_is_named_by_file() -> None:
    def files(*names: str) -> RunIdentity:
        data = tuple(InputFile(name=name, size_bytes=len(name), blake2b=f"{name}-hash") for name in names)
        return msgspec.structs.replace(IDENTITY, data=data)

    (text,) = identity_differences(files("a", "b"), files("a", "ccc"))
    assert text == "data: b from 1 byte (b-hash) to not there, ccc from not there to 3 bytes (ccc-hash)"
    (text,) = identity_differences(files("a", "b"), files("b", "a"))
    assert text == "data: the same files in another order, from a b to b a"
    (text,) = identity_differences(files("a"), files("a", *map(str, range(100))))
    assert text.endswith("4 from not there to 1 byte (4-hash) and 95 more files")
    assert len(text) < 300


def test_all_fields_are_covered_above() -> None:
    fields = {field.name for field in msgspec.structs.fields(RunIdentity)}
    assert len(fields) == 21


def test_the_fingerprint_is_stable() -> None:
    # A changed value here orphans every stored run: it must be a decision, not an accident.
    assert fingerprint(IDENTITY) == "157f0da54b83"


def test_a_run_that_was_stored_before_a_field_was_added_is_the_same_run() -> None:
    stored = msgspec.to_builtins(DOCUMENT)
    for added in ("min_loss_tokens", "duplicates", "data_format", "columns", "preparation"):
        del stored["identity"][added]
    assert decode_run_document(msgspec.json.encode(stored), "run.json") == DOCUMENT


def test_documents_round_trip_and_an_altered_one_is_refused() -> None:
    encoded = msgspec.json.encode(DOCUMENT)
    assert decode_run_document(encoded, "run.json") == DOCUMENT
    with pytest.raises(DataError, match=r"x/run.json: the fingerprint does not match"):
        decode_run_document(encoded.replace(b'"seed":0', b'"seed":1'), "x/run.json")
    with pytest.raises(DataError, match=r"x/run.json is not a run document"):
        decode_run_document(b"{}", "x/run.json")
