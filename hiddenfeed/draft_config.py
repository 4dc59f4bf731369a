"""A draft model's config.json: which layers of its target it was trained on, and how they are numbered.

The same field name is numbered differently by different trainers, so what is read depends on where
the field stands. Where that does not settle it, the file is refused: a guess would be off by one
block and nobody would notice.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hiddenfeed.errors import ConfigError

_MAX_CONFIG_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class DraftLayers:
    """Layer ids of a draft as written, and tap = id + shift."""

    ids: tuple[int, ...]
    shift: int
    #: Where the ids stand, for messages.
    field: str
    #: How they are read, for messages.
    reading: str
    #: Blocks of the model the draft was made for, if the config says so.
    target_blocks: int | None


def draft_layers(path: Path) -> DraftLayers:
    """The target layers in the draft's config at `path`, a folder or a config.json.

    Raises ConfigError if there is no such file, no such field, or more than one reading of it.
    """
    if path == Path():
        raise ConfigError(
            "draft: names no folder; give draft:PATH, a draft model's folder or its config.json"
        )
    file = path / "config.json" if path.is_dir() else path
    config = _load(file)
    candidates = _candidates(config)
    if not candidates:
        raise ConfigError(
            f"{file} names no target layers: neither target_layer_ids (DFlash) nor "
            "eagle_aux_hidden_state_layer_ids (EAGLE-3) is in it"
        )
    if len({tuple(map(str, ids)) for _, ids in candidates}) > 1:
        names = " and ".join(field for field, _ in candidates)
        raise ConfigError(f"{file} names different target layers in {names}; give them as blocks:… or vllm:…")
    field, ids = candidates[0]
    if not ids or not all(isinstance(number, int) and not isinstance(number, bool) for number in ids):
        raise ConfigError(f"{file}: {field} is {ids!r}, not a list of layer numbers")
    shift, reading = _reading(file, config, field, ids)
    return DraftLayers(tuple(ids), shift, field, reading, _target_blocks(file, config))


def _target_blocks(file: Path, config: dict[str, Any]) -> int | None:
    blocks = config.get("num_target_layers")
    if blocks is not None and (not isinstance(blocks, int) or isinstance(blocks, bool) or blocks < 1):
        raise ConfigError(f"{file}: num_target_layers is {blocks!r}, not a number of layers")
    return blocks


def _load(file: Path) -> dict[str, Any]:
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for
            raise ConfigError(f"draft model's config {file} is not a file")
        if status.st_size > _MAX_CONFIG_BYTES:
            raise ConfigError(f"{file} is too large to be a draft model's config")
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"draft model's config {file} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not the JSON of a model's config: {error}") from None


def _candidates(config: dict[str, Any]) -> list[tuple[str, list[Any]]]:
    """(field, ids) of every place that may name target layers."""
    places: list[tuple[str, Any]] = [
        (name, config.get(name))
        for name in ("target_layer_ids", "eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
    ]
    for group, name in (
        ("dflash_config", "target_layer_ids"),
        ("eagle_config", "eagle_aux_hidden_state_layer_ids"),
    ):
        inner = config.get(group)
        places.append((f"{group}.{name}", inner.get(name) if isinstance(inner, dict) else None))
    return [(field, ids) for field, ids in places if isinstance(ids, list)]


def _reading(file: Path, config: dict[str, Any], field: str, ids: list[Any]) -> tuple[int, str]:
    """(shift, words). Speculators writes vLLM's ids, the others outputs of blocks; -1 is the embeddings."""
    speculators = any(name.startswith("speculators_") for name in config)
    if speculators and "aux_hidden_state" in field and "." not in field:
        return 0, "vLLM ids, as speculators writes them"
    if not speculators and field.endswith("target_layer_ids"):
        return 1, "outputs of blocks, as DFlash numbers them"
    if not speculators and field.startswith("eagle_config."):
        return 1, "outputs of blocks, as SGLang, SpecForge and ModelOpt number them"
    listed = ",".join(map(str, ids))
    raise ConfigError(
        f"{file}: {field} can be read in two ways, one block apart; say which: "
        f"blocks:{listed} (SGLang, SpecForge, ModelOpt) or vllm:{listed} (vLLM, speculators)"
    )
