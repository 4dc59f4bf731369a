"""Preparation from a data file to tokens.parquet and skipped.parquet: every row accounted for, every byte repeatable."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.settings.catalogue import DataSettings, PlanSettings
from hiddenfeed.errors import ConfigError, DataError
from hiddenfeed.layout import tokens_key
from hiddenfeed.plan_file import SKIPPED_SCHEMA, TOKENS_SCHEMA
from hiddenfeed.skipped import general_reason
from hiddenfeed.store.memory import MemoryStore
from producer import workplace as workplaces
from producer.console import Console
from producer.prepare import Prepared, prepare, survey
from producer.recipe import Recipe, make_recipe
from producer.report import tally_lines
from producer.spill import Spill
from producer.tokens_file import read_manifests
from producer.workplace import workplace
from tests.tiny_chat import (
    CHATML,
    CHATML_MARKED,
    FORGETFUL,
    conversations,
    pretrained,
    write_model_folder,
    write_rows,
)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("model"))


def quiet() -> Console:
    return Console(io.StringIO())


def recipe_of(data: Path, model: Path, **settings: Any) -> Recipe:
    plan = {
        name: settings.pop(name)
        for name in ("micro_batch_tokens", "target_file_bytes", "seed", "prepare_processes")
        if name in settings
    }
    return make_recipe(
        DataSettings(**{"data": str(data), "model": str(model), "taps": "1,3", **settings}),
        PlanSettings(**{"micro_batch_tokens": 512, "target_file_bytes": 100_000, **plan}),
        lambda line: None,
    )


def prepared_in(folder: Path, recipe: Recipe) -> Prepared:
    folder.mkdir()
    return prepare(recipe, folder, quiet())


def rows_of(prepared: Prepared) -> list[dict[str, Any]]:
    return pq.read_table(prepared.tokens_path).to_pylist()  # type: ignore[no-any-return]


def test_every_row_is_in_exactly_one_of_the_two_files(tmp_path: Path, model: Path) -> None:
    rows: list[Any] = conversations(300)
    rows[7] = "{broken"
    rows[20] = {"id": "c19", "messages": rows[20]["messages"]}
    rows[33] = {"id": "x", "messages": []}
    rows[290] = {"id": "y", "text": "no messages"}
    data = write_rows(tmp_path / "data.jsonl", rows)
    prepared = prepared_in(tmp_path / "out", recipe_of(data, model))
    skipped = pq.read_table(prepared.skipped_path)
    planned = [row["source_row"] for row in rows_of(prepared)]
    assert sorted(planned + skipped["source_row"].to_pylist()) == list(range(300))
    assert skipped.select(SKIPPED_SCHEMA.names).schema.equals(SKIPPED_SCHEMA)
    assert skipped["filter"].to_pylist() == ["malformed", "duplicate id", "empty", "no loss mask"]
    assert [(row["source_row"], row["sample_id"], row["source_file"]) for row in skipped.to_pylist()] == [
        (7, None, "data.jsonl"),
        (20, "c19", "data.jsonl"),
        (33, "x", "data.jsonl"),
        (290, "y", "data.jsonl"),
    ]
    summary = prepared.summary
    assert (summary.rows, summary.samples, summary.skipped) == (300, 296, 4)


def test_tokens_are_those_of_transformers(tmp_path: Path, model: Path) -> None:
    rows = conversations(60)
    prepared = prepared_in(tmp_path / "out", recipe_of(write_rows(tmp_path / "data.jsonl", rows), model))
    tokenizer, found = pretrained(CHATML), rows_of(prepared)
    assert len(found) == 60
    for row in found:
        source = rows[row["source_row"]]
        assert row["sample_id"] == source["id"]
        assert row["input_ids"] == tokenizer.apply_chat_template(source["messages"])["input_ids"]
        predicted = tokenizer.decode(
            [token for token, mask in zip(row["input_ids"], row["loss_mask"], strict=True) if mask]
        )
        answers = [message["content"] for message in source["messages"] if message["role"] == "assistant"]
        assert predicted == "".join(f"{answer}<|im_end|>" for answer in answers)
    assert prepared.summary.tokens == sum(len(row["input_ids"]) for row in found)
    assert prepared.summary.loss_tokens == sum(sum(row["loss_mask"]) for row in found)


def test_the_file_is_laid_out_as_planned(tmp_path: Path, model: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", conversations(200))
    prepared = prepared_in(tmp_path / "out", recipe_of(data, model))
    file = pq.ParquetFile(prepared.tokens_path)
    assert file.schema_arrow.remove_metadata().equals(TOKENS_SCHEMA)
    assert file.num_row_groups == prepared.plan.batches >= 16
    store = MemoryStore()
    store.write(tokens_key("r-1"), prepared.tokens_path.read_bytes())
    manifests = read_manifests(store, "r-1")
    longest = 0
    for batch_id, manifest in enumerate(manifests):
        table = file.read_row_group(batch_id)
        lengths = [len(ids) for ids in table["input_ids"].to_pylist()]
        micros = table["micro_batch"].to_pylist()
        assert micros == sorted(micros)
        assert set(micros) == set(range(micros[-1] + 1))
        for micro in set(micros):
            members = [length for length, place in zip(lengths, micros, strict=True) if place == micro]
            assert members == sorted(members, reverse=True)
            assert len(members) * members[0] <= 512 or len(members) == 1
        assert (manifest.batch_id, manifest.row_group, manifest.tokens) == (
            batch_id,
            batch_id,
            "r-1/tokens.parquet",
        )
        assert (manifest.samples, manifest.tokens_total, manifest.longest) == (
            len(lengths),
            sum(lengths),
            max(lengths),
        )
        longest = max(longest, *lengths)
    assert manifests[0].longest == longest == prepared.summary.longest
    assert len(file.read_row_group(0)["input_ids"][0]) == longest


def test_manifests_of_a_footer_larger_than_the_first_read(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepared_in(
        tmp_path / "out", recipe_of(write_rows(tmp_path / "d.jsonl", conversations(100)), model)
    )
    store = MemoryStore()
    store.write(tokens_key("r-1"), prepared.tokens_path.read_bytes())
    expected = read_manifests(store, "r-1")
    monkeypatch.setattr("producer.tokens_file._FIRST_READ_BYTES", 16)
    assert read_manifests(store, "r-1") == expected


def test_manifests_of_what_is_no_plan(tmp_path: Path) -> None:
    store = MemoryStore()
    with pytest.raises(DataError, match=r"r-1/tokens\.parquet is missing"):
        read_manifests(store, "r-1")
    store.write(tokens_key("r-1"), b"this is not parquet, whatever its name")
    with pytest.raises(DataError, match=r"r-1/tokens\.parquet is not a parquet file"):
        read_manifests(store, "r-1")
    pq.write_table(TOKENS_SCHEMA.empty_table(), tmp_path / "bare")
    store.write(tokens_key("r-1"), (tmp_path / "bare").read_bytes())
    with pytest.raises(DataError, match="does not say how big its batches are"):
        read_manifests(store, "r-1")


def test_twice_the_same_data_gives_twice_the_same_bytes(tmp_path: Path, model: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", [*conversations(150), "broken"])
    first, second = (prepared_in(tmp_path / name, recipe_of(data, model)) for name in ("one", "two"))
    assert first.tokens_path.read_bytes() == second.tokens_path.read_bytes()
    assert first.skipped_path.read_bytes() == second.skipped_path.read_bytes()
    other = prepared_in(tmp_path / "three", recipe_of(data, model, seed=1))
    assert first.tokens_path.read_bytes() != other.tokens_path.read_bytes()
    assert sorted(row["sample_id"] for row in rows_of(first)) == sorted(
        row["sample_id"] for row in rows_of(other)
    )


def test_rows_of_every_kind_over_several_files(tmp_path: Path, model: Path) -> None:
    write_rows(
        tmp_path / "1.jsonl",
        [{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}],
    )
    write_rows(
        tmp_path / "2.jsonl", [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [9999]}]
    )
    said: list[str] = []
    recipe = recipe_of(tmp_path / "*.jsonl", model)
    console = quiet()
    console.say = lambda message, **fields: said.append(message)  # type: ignore[method-assign]
    (tmp_path / "out").mkdir()
    prepared = prepare(recipe, tmp_path / "out", console)
    assert said == [
        "reading 1.jsonl (JSON lines): column conversations, ids made from row numbers",
        "reading 2.jsonl (JSON lines): column input_ids, loss mask from column labels, ids made from row numbers",
    ]
    assert {row["sample_id"] for row in rows_of(prepared)} == {"row-0", "row-1"}
    assert pq.read_table(prepared.skipped_path)["source_file"].to_pylist() == ["2.jsonl"]


def test_files_of_every_format_in_one_folder_are_one_run(tmp_path: Path, model: Path) -> None:
    rows, folder = conversations(40), tmp_path / "chats"
    folder.mkdir()
    packed = b"".join(json.dumps(row).encode() + b"\n" for row in rows[:10])
    (folder / "1.jsonl.zst").write_bytes(pa.Codec("zstd").compress(packed, asbytes=True))
    (folder / "2.json").write_text(json.dumps(rows[10:20]))
    pq.write_table(pa.Table.from_pylist(rows[20:30]), folder / "3.parquet")
    with pa.ipc.new_stream(folder / "4.arrow", pa.Table.from_pylist(rows).schema) as stream:
        stream.write_table(pa.Table.from_pylist(rows[30:]))
    recipe = recipe_of(folder, model)
    assert recipe.name.endswith("-chats")
    prepared = prepared_in(tmp_path / "out", recipe)
    one = prepared_in(tmp_path / "one", recipe_of(write_rows(tmp_path / "data.jsonl", rows), model))
    assert prepared.tokens_path.read_bytes() == one.tokens_path.read_bytes()
    assert [file.name for file in recipe.files] == ["1.jsonl.zst", "2.json", "3.parquet", "4.arrow"]


def test_what_is_said_of_it(tmp_path: Path, model: Path) -> None:
    rows: list[Any] = [*conversations(50), *["{broken"] * 3, {"messages": []}]
    recipe = recipe_of(write_rows(tmp_path / "data.jsonl", rows), model, max_length=40)
    prepared = prepared_in(tmp_path / "out", recipe)
    lines = tally_lines(prepared.tally)
    assert lines[0].startswith("54 rows: ")
    assert "skipped by filter: 16 too few loss tokens, 3 malformed, 1 empty" in lines
    assert any(
        line.startswith("skipped: 3 × line 51 is not JSON") and "(first: row 50 of data.jsonl)" in line
        for line in lines
    )
    assert any("longer than --max-length and lost the end" in line for line in lines)


def test_a_survey_plans_what_a_preparation_plans_and_writes_nothing(tmp_path: Path, model: Path) -> None:
    recipe = recipe_of(write_rows(tmp_path / "d.jsonl", [*conversations(60), "broken"]), model)
    prepared = prepared_in(tmp_path / "out", recipe)
    before = sorted(tmp_path.rglob("*"))
    plan, tally = survey(recipe, quiet())
    assert plan.order.tolist() == prepared.plan.order.tolist()
    assert plan.lengths.tolist() == prepared.plan.lengths.tolist()
    assert (tally.rows, tally.samples, tally.skipped) == (61, 60, 1)
    assert sorted(tmp_path.rglob("*")) == before


def test_no_sample_is_longer_than_the_model_has_positions(tmp_path: Path) -> None:
    model = write_model_folder(tmp_path / "model", max_position_embeddings=16)
    data, said = write_rows(tmp_path / "data.jsonl", conversations(20)), list[str]()
    settings = DataSettings(data=str(data), model=str(model), taps="1")
    recipe = make_recipe(settings, PlanSettings(), said.append)
    assert "--max-length 4,096 is lowered to 16, which is all the positions that the model has" in said
    prepared = prepared_in(tmp_path / "out", recipe)
    assert prepared.summary.longest == 16


def test_duplicates_by_content_are_left_out_if_asked(tmp_path: Path, model: Path) -> None:
    rows = [{**row, "id": f"{copy}-{row['id']}"} for copy in "ab" for row in conversations(10)]
    data = write_rows(tmp_path / "data.jsonl", rows)
    kept = prepared_in(tmp_path / "keep", recipe_of(data, model))
    dropped = prepared_in(tmp_path / "drop", recipe_of(data, model, duplicates="drop"))
    assert (kept.summary.samples, dropped.summary.samples, dropped.summary.skipped) == (20, 10, 10)
    assert dropped.tally.causes == {"duplicate content": 10}
    reasons = pq.read_table(dropped.skipped_path)["reason"].to_pylist()
    assert reasons == ["an earlier row has the same tokens and loss mask"] * 10


def test_a_template_that_refuses_many_rows_is_told_early(tmp_path: Path) -> None:
    model = write_model_folder(tmp_path / "model", FORGETFUL)
    warned: list[str] = []
    console = quiet()
    console.warn = lambda message, **fields: warned.append(message)  # type: ignore[method-assign]
    survey(recipe_of(write_rows(tmp_path / "d.jsonl", conversations(600)), model), console)
    (text,) = warned
    assert re.match(r"\d+ of the first 512 rows get no loss mask: ", text)
    assert "rewrites history; give --loss-mask last-turn or all, --loss-mask template:FILE" in text
    assert "of d.jsonl" in text
    _, tally = survey(recipe_of(tmp_path / "d.jsonl", model, loss_mask="last-turn"), console)
    # Once of each kind, what the samples are without; and how many at the end.
    assert [warning.partition(" (")[0] for warning in warned[1:]] == [
        "the chat template does not show what a user says",
        "the chat template does not show what the assistant says",
    ]
    assert all(warning.endswith("how many are is said at the end") for warning in warned[1:])
    lines = [line for line in tally_lines(tally) if line.startswith("not shown by the chat template: ")]
    assert re.match(
        r"not shown by the chat template: \d+ × what the assistant says \(message 1, '.*'\) \(first: row \d+ of d.jsonl\)",
        lines[0],
    )
    assert len(lines) == 2


def test_reasons_are_counted_without_their_particulars() -> None:
    assert general_reason("line 51: id 'a' has 1001 characters") == general_reason(
        "line 7: id 'bc' has 2 characters"
    )


# --- bad input ---


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "has no rows"),
        (["", "  "], "has no rows"),
        (["{", "{"], "no sample is left of 2 rows; mostly: 2 × line 1 is not JSON"),
        (
            [{"text": "x"}],
            "no sample is left of 1 row; mostly: 1 × plain text has no assistant's turns; --loss-mask all",
        ),
        ([{"input_ids": [1, 2]}], "mostly: 1 × input_ids came without loss_mask or labels"),
        (
            [{"title": "x"}],
            "mostly: 1 × line 1 has none of messages, conversations, conversation, input_ids, prompt,",
        ),
    ],
)
def test_data_that_leaves_nothing_is_an_error(
    tmp_path: Path, model: Path, rows: list[Any], message: str
) -> None:
    recipe = recipe_of(write_rows(tmp_path / "data.jsonl", rows), model)
    with pytest.raises(ConfigError) as caught:
        prepared_in(tmp_path / "out", recipe)
    assert message in str(caught.value)


def test_data_that_changes_while_it_is_read_is_an_error(tmp_path: Path, model: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", conversations(5))
    recipe, console = recipe_of(data, model), quiet()

    def append(message: str, **fields: Any) -> None:
        data.write_text(data.read_text() + json.dumps(conversations(1, seed=9)[0]) + "\n")

    console.say = append  # type: ignore[method-assign]
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="was changed while it was read"):
        prepare(recipe, tmp_path / "out", console)


def test_a_full_disk_is_an_error_that_names_the_way_out(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Spill, "append", full)
    recipe = recipe_of(write_rows(tmp_path / "data.jsonl", conversations(5)), model)
    with pytest.raises(ConfigError, match=r"the disk under .* is full; set TMPDIR"):
        prepared_in(tmp_path / "out", recipe)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "/nowhere"}, "model folder /nowhere is not there"),
        ({"taps": "1,99"}, "99"),
        ({"name": "a/b"}, "--name: run name 'a/b' is not allowed"),
        ({"min_length": 9, "max_length": 8}, "--min-length 9 is above --max-length 8"),
        ({"min_loss_tokens": 9, "max_length": 8}, "--min-loss-tokens 9 is above --max-length 8"),
        ({"min_length": 3000}, "--min-length 3000 is above the model's 2048 positions"),
        ({"columns": "talk=chat"}, "'talk=chat' is not WHAT=COLUMN"),
        ({"model_revision": "main"}, "--model-revision main is for models on the hub"),
        ({"chat_template": "/nowhere.jinja"}, "--chat-template /nowhere.jinja cannot be read"),
        ({"data": "/nowhere.jsonl"}, "--data /nowhere.jsonl is not there"),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, model: Path, change: dict[str, Any], message: str) -> None:
    data = write_rows(tmp_path / "data.jsonl", conversations(1))
    settings = {"data": str(data), "model": str(model), "taps": "1", **change}
    with pytest.raises(ConfigError) as caught:
        make_recipe(DataSettings(**settings), PlanSettings(), lambda line: None)
    assert message in str(caught.value)


def _without_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def _configured(folder: Path, **config: Any) -> None:
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "the configuration of model"),
        (lambda folder: _configured(folder, model_type="of-my-own"), "the configuration of model"),
        (lambda folder: _configured(folder, model_type="t5"), "is an encoder-decoder"),
        (_without_tokenizer, "has no tokenizer (tokenizer.json)"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "the tokenizer of model"),
    ],
)
def test_model_folders_that_lack_something(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    folder = write_model_folder(tmp_path / "model")
    damage(folder)
    with pytest.raises(ConfigError) as caught:
        recipe_of(write_rows(tmp_path / "data.jsonl", conversations(1)), folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_template_file_takes_the_place_of_the_models_own(tmp_path: Path) -> None:
    model = write_model_folder(tmp_path / "model", chat_template=None)
    data = write_rows(tmp_path / "data.jsonl", conversations(3))
    with pytest.raises(ConfigError, match="no chat template: give one with --chat-template FILE"):
        prepared_in(tmp_path / "without", recipe_of(data, model))
    (tmp_path / "mine.jinja").write_text(CHATML)
    prepared = prepared_in(
        tmp_path / "with", recipe_of(data, model, chat_template=str(tmp_path / "mine.jinja"))
    )
    assert prepared.summary.samples == 3


def test_marks_of_a_template_of_their_own_are_what_is_learnt(tmp_path: Path) -> None:
    def dropping(template: str) -> str:
        return template.replace("message.content", "message.content.split('</think>')[-1]")

    model = write_model_folder(tmp_path / "model", dropping(CHATML))
    thinking = [
        {"role": "user", "content": "how"},
        {"role": "assistant", "content": "<think>hello</think>fine"},
        {"role": "user", "content": "are"},
        {"role": "assistant", "content": "thanks"},
    ]
    data = write_rows(tmp_path / "data.jsonl", [{"messages": thinking}] * 3)
    marks = tmp_path / "marks.jinja"
    marks.write_text(dropping(CHATML_MARKED))
    recipe = recipe_of(data, model, loss_mask=f"template:{marks}", prepare_processes=2)
    prepared = prepared_in(tmp_path / "out", recipe)
    rows = pq.read_table(prepared.tokens_path).to_pylist()
    assert len(rows) == 3
    learnt = [token for token, one in zip(rows[0]["input_ids"], rows[0]["loss_mask"], strict=True) if one]
    assert pretrained().decode(learnt) == "fine<|im_end|>thanks<|im_end|>"
    assert any(
        line.startswith("not shown by the chat template: 3 × thoughts")
        for line in tally_lines(prepared.tally)
    )
    marks.write_text(CHATML)
    with pytest.raises(ConfigError, match=r"marks\.jinja marks nothing with \{% generation %\}"):
        recipe_of(data, model, loss_mask=f"template:{marks}")
    with pytest.raises(ConfigError, match="--loss-mask template:/nowhere cannot be read"):
        recipe_of(data, model, loss_mask="template:/nowhere")


# --- the folder ---


def test_the_workplace_is_removed_whatever_happens() -> None:
    made: list[Path] = []

    def interrupted() -> None:
        with workplace() as folder:
            made.append(folder)
            (folder / "x").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not made[0].exists()


def test_what_a_killed_preparation_left_is_swept_and_a_living_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, alive = tmp_path / f"{workplaces._PREFIX}dead", tmp_path / f"{workplaces._PREFIX}alive"
    for folder in (dead, alive):
        folder.mkdir()
        (folder / "tokens.parquet").write_text("x")
        (folder / "owner").touch()
    holder = os.open(alive / "owner", os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    try:
        with workplace():
            assert not dead.exists()
            assert alive.exists()
    finally:
        os.close(holder)


def test_no_temporary_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="no temporary folder can be made"), workplace():
        pass
