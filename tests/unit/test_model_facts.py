"""Models of the hub, from its local cache, without network: found, pinned to a commit, told apart from folders."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.settings.catalogue import DataSettings, PlanSettings
from hiddenfeed.errors import ConfigError
from producer.model_facts import max_positions
from producer.recipe import make_recipe
from tests.tiny_chat import CHATML, conversations, pretrained, write_model_folder, write_rows

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_SCRIPT = """
import json, sys
sys.modules["torch"] = None
from common.settings.catalogue import DataSettings, PlanSettings
from hiddenfeed.errors import HiddenfeedError
from producer.identity import identify
from producer.recipe import make_recipe
for model, revision in json.loads(sys.argv[2]):
    try:
        recipe = make_recipe(DataSettings(data=sys.argv[1], model=model, model_revision=revision, taps="1"), PlanSettings(), lambda line: None)
        identity = identify(recipe)
        print(json.dumps([identity.model, identity.model_revision, identity.tokenizer, recipe.name]))
    except HiddenfeedError as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.fixture
def silent_hub() -> Iterator[tuple[str, list[str]]]:
    """URL of a hub that takes connections and says nothing, and the first lines of what it was asked."""
    asked: list[str] = []
    held: list[socket.socket] = []

    def take() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            held.append(connection)
            asked.append(connection.recv(65536).decode().partition("\r\n")[0])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=take)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in held:
        connection.close()


def cached_model(cache: Path) -> None:
    """`org/tiny` as the hub's cache holds it, without its weights, which only the worker needs."""
    root = cache / "models--org--tiny"
    folder = write_model_folder(root / "snapshots" / COMMIT)
    (folder / "model.safetensors").unlink()
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)


def ask(cache: Path, asked: list[tuple[str, str | None]], **environment: str) -> list[list[str]]:
    """For each (model, revision) what a process of its own finds, or the error."""
    data = write_rows(cache.parent / "data.jsonl", conversations(2))
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(data), json.dumps(asked)],
        env={**os.environ, "HF_HUB_CACHE": str(cache), **environment},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_model_in_the_hubs_cache_is_pinned_to_its_commit(tmp_path: Path) -> None:
    cached_model(tmp_path / "hub")
    asked = [("org/tiny", None), ("org/tiny", COMMIT), ("org/tiny", "v2"), ("org/other", None)]
    newest, pinned, other_revision, other_model = ask(tmp_path / "hub", asked, HF_HUB_OFFLINE="1")
    assert newest[:2] == ["org/tiny", COMMIT]
    assert newest == pinned
    assert newest[3] == "tiny-data"
    assert (other_revision[0], other_model[0]) == ("ConfigError", "ConfigError")
    assert "HF_HUB_OFFLINE" in other_model[1]


def test_a_hub_that_does_not_answer_is_asked_once_for_each_model(
    tmp_path: Path, silent_hub: tuple[str, list[str]]
) -> None:
    url, requests = silent_hub
    cached_model(tmp_path / "hub")
    found, missing = ask(
        tmp_path / "hub", [("org/tiny", None), ("org/other", None)], HF_ENDPOINT=url, HF_HUB_ETAG_TIMEOUT="1"
    )
    assert found[:2] == ["org/tiny", COMMIT]
    assert missing[0] == "TransientError"
    assert "the hub cannot be reached: try again when it can, or give a local folder" in missing[1]
    assert requests == [f"HEAD /org/{name}/resolve/main/README.md HTTP/1.1" for name in ("tiny", "other")]


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({}, None),
        ({"max_position_embeddings": 100}, 100),
        ({"max_position_embeddings": 100, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 100),
        ({"max_position_embeddings": 100, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}, 200),
        (
            {"max_position_embeddings": 131072, "rope_parameters": {"factor": 8.0, "original_max_position_embeddings": 8192}},
            131072,
        ),
        (
            {"max_position_embeddings": 32768, "rope_parameters": {"factor": 4.0, "original_max_position_embeddings": 32768}},
            131072,
        ),
        ({"max_position_embeddings": 100, "rope_parameters": {"full_attention": {"factor": 3}, "sliding_attention": {}}}, 300),
        ({"max_position_embeddings": 100, "rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, 100),
        (
            {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
             "rope_parameters": {"rope_type": "longrope", "factor": 32.0}},
            4096,
        ),
    ],
)  # fmt: skip
def test_positions_are_those_that_scaling_leads_to(config: dict[str, Any], positions: int | None) -> None:
    assert max_positions(SimpleNamespace(**config)) == positions


def test_several_templates_need_a_default(tmp_path: Path) -> None:
    model = write_model_folder(tmp_path / "model", chat_template=None)
    tokenizer = pretrained()
    data = write_rows(tmp_path / "data.jsonl", conversations(1))
    settings = DataSettings(data=str(data), model=str(model), taps="1")
    tokenizer.chat_template = {"default": CHATML, "tool_use": "{{ tools }}"}
    tokenizer.save_pretrained(model)
    template = make_recipe(settings, PlanSettings(), lambda line: None).template
    assert template is not None
    assert template.text == CHATML
    (model / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="several chat templates and none is the default; give one"):
        make_recipe(settings, PlanSettings(), lambda line: None)
