"""What preparation needs to know of a model, read from its configuration alone: no weights, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.hub import local_folder, model_error, quiet_libraries
from hiddenfeed.errors import ConfigError


@dataclass(frozen=True)
class ModelFacts:
    """One checkpoint, found and pinned."""

    #: Hub id, or the folder as an absolute path.
    name: str
    folder: Path | None
    #: The hub's commit; None for a folder.
    revision: str | None
    hidden_size: int
    num_blocks: int
    #: Rows of the embedding table: token ids are below it.
    vocab_size: int


def read_model_facts(model: str, revision: str | None) -> ModelFacts:
    """The facts of a folder or hub id; the newest revision is pinned where none is given.

    Raises ConfigError for a model that is not there or no decoder, TransientError when the hub is away.
    """
    folder = local_folder(model)
    if folder and revision:
        raise ConfigError(f"--model-revision {revision} is for models on the hub, and {model} is a folder")
    config = _load_config(model, folder, revision)
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(
            f"model {model} is an encoder-decoder; hiddenfeed extracts from decoder-only models"
        )
    text = config.get_text_config(decoder=True)
    sizes = [_size(model, text, key) for key in ("hidden_size", "num_hidden_layers", "vocab_size")]
    commit = None if folder else getattr(config, "_commit_hash", None)
    if not folder and not commit:
        raise ConfigError(
            f"model {model}: the hub's commit is not known, so that the run could not be repeated"
        )
    return ModelFacts(str(folder or model), folder, commit, *sizes)


def _load_config(model: str, folder: Path | None, revision: str | None) -> Any:
    from transformers import AutoConfig  # seconds to import; only preparation pays

    quiet_libraries()
    try:
        return AutoConfig.from_pretrained(str(folder or model), revision=revision)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise model_error(model, revision, "the configuration", error) from error


def _size(model: str, config: Any, key: str) -> int:
    value = getattr(config, key, None)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"model {model}: its configuration has no {key}")
    return value
