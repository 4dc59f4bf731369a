"""Taps out of a draft model's config: each trainer's numbering, and no guess where it is open."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hiddenfeed.errors import ConfigError
from hiddenfeed.taps import parse_taps


def _draft(folder: Path, config: Any) -> str:
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return f"draft:{folder}"


@pytest.mark.parametrize(
    ("config", "taps"),
    [
        ({"target_layer_ids": [1, 9, 17]}, (2, 10, 18)),
        ({"dflash_config": {"target_layer_ids": [-1, 9]}, "num_target_layers": 36}, (0, 10)),
        ({"target_layer_ids": [35, 1], "dflash_config": {"target_layer_ids": [35, 1]}}, (2, 36)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32]}}, (2, 18, 33)),
        ({"speculators_model_type": "eagle3", "eagle_aux_hidden_state_layer_ids": [2, 18, 33]}, (2, 18, 33)),
        ({"speculators_version": "0.4", "aux_hidden_state_layer_ids": [2, 18, 36]}, (2, 18, 36)),
    ],
)
def test_ids_are_read_as_their_trainer_numbers_them(
    tmp_path: Path, config: dict[str, Any], taps: tuple[int, ...]
) -> None:
    spec = _draft(tmp_path, config)
    found = parse_taps(spec, 36)
    assert found.taps == taps
    assert "of the draft" in found.meaning
    assert parse_taps(f"{spec}/config.json", 36).taps == taps


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"hidden_size": 8}, "names no target layers"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 17]}, "two ways, one block apart"),
        ({"speculators_version": "1", "target_layer_ids": [1, 17]}, "two ways, one block apart"),
        ({"target_layer_ids": [1], "eagle_aux_hidden_state_layer_ids": [2]}, "different target layers"),
        ({"target_layer_ids": []}, "not a list of layer numbers"),
        ({"target_layer_ids": [1, "2"]}, "not a list of layer numbers"),
        ({"target_layer_ids": [True]}, "not a list of layer numbers"),
        (
            {"target_layer_ids": [36]},
            r"names layer 36, .* taps are 0\.\.36 .* blocks:0\.\.35 .* vllm:0\.\.36, hf:0\.\.35",
        ),
        ({"target_layer_ids": [-2, 3]}, "names layer -2"),
        ({"target_layer_ids": [3, 3]}, "more than once"),
        ({"target_layer_ids": [1], "num_target_layers": 28}, "made for a model of 28 blocks"),
        ({"target_layer_ids": [1], "num_target_layers": "36"}, "num_target_layers is '36', not a number"),
        ({"target_layer_ids": [1], "num_target_layers": True}, "num_target_layers is True, not a number"),
        ("{", "not the JSON of a model's config"),
        ("[1]", "not the JSON of a model's config"),
        ("[" * 100_000, "not the JSON of a model's config"),
    ],
)
def test_what_cannot_be_read_for_sure_is_refused(tmp_path: Path, config: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_taps(_draft(tmp_path, config), 36)


def test_a_draft_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ConfigError, match="is not a file"):
        parse_taps(f"draft:{tmp_path}", 36)


def test_a_draft_without_a_name_is_not_the_folder_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _draft(tmp_path, {"target_layer_ids": [1]})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="draft: names no folder"):
        parse_taps("draft:", 36)


def test_a_draft_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.* cannot be read: No such file"):
        parse_taps(f"draft:{tmp_path}/nowhere", 36)
