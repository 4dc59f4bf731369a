"""Samples made by several processes: the same, in the same order, and an error where a process is lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker, spawn
from pathlib import Path

import pytest

from common.processors import allowed_processors
from common.settings.catalogue import DataSettings, PlanSettings
from hiddenfeed.errors import ConfigError, PermanentError
from producer.crew import LITTLE_BYTES, MAX_PROCESSES, Crew, crew_size
from producer.prepare import _chunks
from producer.recipe import Recipe, make_recipe
from producer.rows import RawRow
from producer.samples import Sample
from producer.sources import RowReader
from tests.tiny_chat import conversations, write_model_folder, write_rows


def recipe_of(
    folder: Path, chat_template: str | None = "{{ messages[0].content }}<|user|>{{ messages[1].content }}"
) -> Recipe:
    model = write_model_folder(folder / "model", chat_template)
    data = write_rows(
        folder / "data.jsonl", [*conversations(40), "{broken", {"input_ids": [5, 700]}, *conversations(20)]
    )
    return make_recipe(
        DataSettings(data=str(data), model=str(model), taps="1,3"), PlanSettings(), lambda line: None
    )


def chunks_of(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RawRow]]:
    monkeypatch.setattr("producer.prepare._CHUNK_ROWS", 7)
    return _chunks(RowReader(recipe.files, recipe.columns))


def facts(made: object) -> object:
    if isinstance(made, Sample):
        return made.sample_id, made.source_row, made.ids.tolist(), made.mask.tolist(), made.truncated
    return made


def test_processes_make_the_same_in_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(tmp_path)
    made = {}
    for processes in (1, 2):
        with Crew(recipe.sample_parts, processes) as crew:
            pairs = list(crew.make(chunks_of(recipe, monkeypatch)))
        assert [row.source_row for rows, _ in pairs for row in rows] == list(range(62))
        made[processes] = [facts(one) for _, results in pairs for one in results]
    assert made[1] == made[2]
    assert not multiprocessing.active_children()


def test_a_process_that_is_killed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(tmp_path)
    with Crew(recipe.sample_parts, 2) as crew:
        made = crew.make(chunks_of(recipe, monkeypatch))
        next(made)
        for child in multiprocessing.active_children():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(PermanentError, match="--prepare-processes 1"):
            list(made)
    assert not multiprocessing.active_children()


def test_processes_that_end_before_they_begin_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than a pipe holds is on its way to each of them, as with any real tokenizer.
    recipe = recipe_of(tmp_path, "{# " + "x" * 300_000 + " #}" + "{{ messages[0].content }}")
    resource_tracker.ensure_running()
    monkeypatch.setattr(spawn, "_python_exe", b"/bin/false")
    with Crew(recipe.sample_parts, 2) as crew, pytest.raises(PermanentError, match="--prepare-processes 1"):
        list(crew.make(chunks_of(recipe, monkeypatch)))


def test_what_a_process_raises_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(tmp_path, None)
    with Crew(recipe.sample_parts, 2) as crew, pytest.raises(ConfigError, match="no chat template"):
        list(crew.make(chunks_of(recipe, monkeypatch)))
    assert not multiprocessing.active_children()


def test_how_many_processes() -> None:
    assert crew_size(5, 0) == 5
    assert crew_size(0, LITTLE_BYTES - 1) == 1
    assert crew_size(0, LITTLE_BYTES) == min(MAX_PROCESSES, allowed_processors())
