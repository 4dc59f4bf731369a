"""Which run it is: what changes an output byte changes the identity, and nothing else does."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from common.settings.catalogue import DataSettings, PlanSettings
from hiddenfeed.errors import ConfigError, DataError, PermanentError
from hiddenfeed.layout import run_document_key, skipped_key, tokens_key
from hiddenfeed.run import RunIdentity, fingerprint, identity_differences
from hiddenfeed.store.memory import MemoryStore
from producer.console import Console
from producer.identity import PREPARATION, identify, refuse_differences, run_id_of
from producer.prepare import Prepared, prepare
from producer.publish import find_run, publish
from producer.recipe import Recipe, make_recipe
from tests.tiny_chat import CHATML, CHATML_MARKED, LLAMA3, conversations, write_model_folder, write_rows


class Inputs:
    """A model folder and a data file, and the recipe of both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = write_model_folder(folder / "model")
        self.data = write_rows(folder / "data.jsonl", conversations(40))

    def recipe(self, **settings: Any) -> Recipe:
        data = {"data": str(self.data), "model": str(self.model), "taps": "1,3"}
        plan = {
            name: settings.pop(name)
            for name in ("micro_batch_tokens", "target_file_bytes", "seed")
            if name in settings
        }
        return make_recipe(DataSettings(**{**data, **settings}), PlanSettings(**plan), lambda line: None)

    def identity(self, **settings: Any) -> RunIdentity:
        return identify(self.recipe(**settings))

    def prepared(self, recipe: Recipe, name: str = "out") -> Prepared:
        (self.folder / name).mkdir()
        return prepare(recipe, self.folder / name, Console(io.StringIO()))


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    return Inputs(tmp_path)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"taps": "1,2"}, "taps"),
        ({"final_state": "pre"}, "final_state"),
        ({"dtype": "float32"}, "dtype"),
        ({"loss_mask": "all"}, "loss_mask"),
        ({"max_length": 100}, "max_length"),
        ({"overlength": "drop"}, "overlength"),
        ({"min_length": 2}, "min_length"),
        ({"min_loss_tokens": 2}, "min_loss_tokens"),
        ({"duplicates": "drop"}, "duplicates"),
        ({"data_format": "messages"}, "data_format"),
        ({"columns": "id=uuid"}, "columns"),
        ({"micro_batch_tokens": 100}, "micro_batch_tokens"),
        ({"target_file_bytes": 100}, "target_file_bytes"),
        ({"seed": 1}, "seed"),
    ],
)
def test_a_setting_that_matters_changes_the_identity(
    inputs: Inputs, settings: dict[str, Any], field: str
) -> None:
    (difference,) = identity_differences(inputs.identity(), inputs.identity(**settings))
    assert difference.startswith(f"{field}: from ")


def edit(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda inputs: edit(inputs.data, b'{"text": "x"}\n'), "data"),
        (lambda inputs: edit(inputs.model / "model.safetensors", b"x"), "model"),
        (lambda inputs: write_model_folder(inputs.model, rope_theta=5.0), "model"),
        (lambda inputs: (inputs.model / "extra.safetensors").write_bytes(b"x"), "model"),
        (lambda inputs: edit(inputs.model / "tokenizer_config.json", b" "), "tokenizer"),
        (lambda inputs: (inputs.model / "chat_template.jinja").write_text(LLAMA3), "chat_template"),
    ],
)
def test_content_that_matters_changes_the_identity(
    inputs: Inputs, change: Callable[[Inputs], object], field: str
) -> None:
    before = inputs.identity()
    change(inputs)
    (difference,) = identity_differences(before, inputs.identity())
    assert difference.startswith("data: data.jsonl from " if field == "data" else f"{field}: from ")


def test_a_run_of_another_preparation_is_finished_as_it_is_or_made_anew(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, recipe = MemoryStore(), inputs.recipe()
    monkeypatch.setattr("producer.identity.PREPARATION", 1)
    older = publish(store, "r-1", recipe, identify(recipe), inputs.prepared(recipe))
    monkeypatch.undo()
    identity = identify(recipe)
    assert fingerprint(identity) != older.fingerprint
    with pytest.raises(ConfigError) as caught:
        refuse_differences(older, identity)
    text = str(caught.value)
    assert (
        f"preparation (how this version of the program makes samples of rows): from 1 to {PREPARATION}"
        in text
    )
    assert text.endswith("or finish it as it was prepared with `python -m producer wait r-1`")


def test_marks_of_a_template_are_part_of_the_identity_by_their_text(inputs: Inputs) -> None:
    (inputs.folder / "a.jinja").write_text(CHATML_MARKED)
    (inputs.folder / "b.jinja").write_text(CHATML_MARKED)
    first = inputs.identity(loss_mask=f"template:{inputs.folder / 'a.jinja'}")
    assert first.loss_mask.startswith("template:")
    assert inputs.identity(loss_mask=f"template:{inputs.folder / 'b.jinja'}") == first
    (inputs.folder / "b.jinja").write_text(CHATML_MARKED + " ")
    (difference,) = identity_differences(
        first, inputs.identity(loss_mask=f"template:{inputs.folder / 'b.jinja'}")
    )
    assert difference.startswith("loss_mask: from 'template:")


def test_places_and_names_do_not_matter(inputs: Inputs, tmp_path: Path) -> None:
    before = inputs.identity()
    inputs.model = Path(shutil.move(inputs.model, tmp_path / "elsewhere"))
    (tmp_path / "sub").mkdir()
    inputs.data = Path(shutil.move(inputs.data, tmp_path / "sub" / "data.jsonl"))
    (inputs.model / "README.md").write_text("not part of it")
    (tmp_path / "mine.jinja").write_text(CHATML)
    # The same taps in another convention, the same template from a file, another name.
    after = inputs.identity(taps="blocks:0,2", chat_template=str(tmp_path / "mine.jinja"), name="other")
    assert after == before


def test_a_folder_without_weights_has_no_identity(inputs: Inputs) -> None:
    (inputs.model / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="has no weights"):
        inputs.identity()


@pytest.mark.parametrize(
    ("name", "file", "start"),
    [
        (None, "data.jsonl", "model-data-"),
        (None, "my chats (1).jsonl.gz", "model-my-chats-1-"),
        ("mine", "data.jsonl", "mine-"),
        (None, "ä" * 200 + ".json", "model-"),
    ],
)
def test_run_ids(inputs: Inputs, name: str | None, file: str, start: str) -> None:
    if len(file.encode()) > 250:
        file = file[:100] + ".json"
    inputs.data = inputs.data.rename(inputs.folder / file)
    recipe = inputs.recipe(name=name)
    identity = identify(recipe)
    run_id = run_id_of(recipe, identity)
    assert run_id == f"{recipe.name}-{fingerprint(identity)}"
    assert run_id.startswith(start)
    assert len(run_id) <= 100


# --- publishing ---


def test_a_published_run_is_found_again_and_its_files_are_what_it_says(inputs: Inputs) -> None:
    store, recipe = MemoryStore(), inputs.recipe()
    identity = identify(recipe)
    assert find_run(store, "r-1") is None
    document = publish(store, "r-1", recipe, identity, inputs.prepared(recipe))
    assert find_run(store, "r-1") == document
    assert (document.run_id, document.identity, document.fingerprint) == (
        "r-1",
        identity,
        fingerprint(identity),
    )
    assert (document.model, document.hidden_size, document.num_blocks) == (str(inputs.model), 32, 4)
    for file in (document.tokens, document.skipped):
        info = store.head(file.key, checksum=True)
        assert info is not None
        assert (info.size_bytes, info.checksum) == (file.size_bytes, file.checksum)
    assert document.settings["taps"] == "1,3"
    assert set(document.versions) >= {"python", "hiddenfeed", "transformers", "pyarrow"}


def test_what_an_interrupted_publication_left_is_taken_up(inputs: Inputs) -> None:
    store, recipe = MemoryStore(), inputs.recipe()
    identity, prepared = identify(recipe), inputs.prepared(recipe)
    publish(store, "r-1", recipe, identity, prepared)
    store.delete(run_document_key("r-1"))
    store.delete(skipped_key("r-1"))
    again = publish(store, "r-1", recipe, identity, inputs.prepared(recipe, "again"))
    assert find_run(store, "r-1") == again


def test_two_publications_end_in_one_document(inputs: Inputs) -> None:
    store, recipe = MemoryStore(), inputs.recipe()
    identity, prepared = identify(recipe), inputs.prepared(recipe)
    first = publish(store, "r-1", recipe, identity, prepared)
    altered = msgspec.structs.replace(first, created_at="1999-01-01T00:00:00+00:00")
    store.write(run_document_key("r-1"), msgspec.json.encode(altered))
    assert publish(store, "r-1", recipe, identity, prepared).created_at == "1999-01-01T00:00:00+00:00"


def test_a_plan_of_other_bytes_is_not_mixed_with_ours(inputs: Inputs) -> None:
    store, recipe = MemoryStore(), inputs.recipe()
    store.write(tokens_key("r-1"), b"left by another version")
    with pytest.raises(
        PermanentError, match=r"holds another r-1/tokens\.parquet, .*delete it and start again"
    ):
        publish(store, "r-1", recipe, identify(recipe), inputs.prepared(recipe))
    assert store.head(run_document_key("r-1")) is None


def test_a_document_that_cannot_be_read_is_an_error(inputs: Inputs) -> None:
    store = MemoryStore()
    store.write(run_document_key("r-1"), json.dumps({"run_id": "r-1"}).encode())
    with pytest.raises(DataError, match=r"r-1/run\.json is not a run document"):
        find_run(store, "r-1")


def test_more_data_is_another_run_that_shares_nothing(inputs: Inputs) -> None:
    store, recipe = MemoryStore(), inputs.recipe(name="mine")
    first = publish(
        store, run_id_of(recipe, identify(recipe)), recipe, identify(recipe), inputs.prepared(recipe)
    )
    before = {info.key: store.read(info.key) for info in store.list("")}
    with inputs.data.open("a") as file:
        file.write(
            '{"id": "new", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
        )
    more = inputs.recipe(name="mine")
    identity = identify(more)
    assert find_run(store, run_id_of(more, identity)) is None
    second = publish(store, run_id_of(more, identity), more, identity, inputs.prepared(more, "more"))
    assert second.run_id != first.run_id
    assert second.plan.rows == first.plan.rows + 1
    assert {key: store.read(key) for key in before} == before
    # And the first run does not take the new data under its own name.
    with pytest.raises(ConfigError, match=r"data: data\.jsonl from [\d,]+ bytes \([0-9a-f]{8}\) to"):
        refuse_differences(first, identity)


def test_a_resume_with_other_settings_names_every_difference(inputs: Inputs) -> None:
    store, recipe = MemoryStore(), inputs.recipe()
    document = publish(store, "r-1", recipe, identify(recipe), inputs.prepared(recipe))
    refuse_differences(document, inputs.identity())
    with pytest.raises(ConfigError) as caught:
        refuse_differences(document, inputs.identity(taps="2", seed=5))
    text = str(caught.value)
    assert "taps: from (1, 3) to (2,)" in text
    assert "seed: from 0 to 5" in text
    assert "\n" not in text
