"""What preparation needs to know of a model, read from its configuration alone: no weights, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.hub import local_folder, model_error, quiet_libraries
from common.rope import said_length, steady_length
from hiddenfeed.errors import ConfigError

#: What transformers raises for a configuration it cannot read.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError)


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
    #: Longest input the model was made for, in tokens; None where its configuration sets no limit.
    max_positions: int | None = None


def read_model_facts(model: str, revision: str | None) -> ModelFacts:
    """The facts of a folder or hub id; the newest revision is pinned where none is given.

    Raises ConfigError for a model that is not there or no decoder, TransientError when the hub is away.
    """
    quiet_libraries()
    folder = local_folder(model)
    if folder and revision:
        raise ConfigError(f"--model-revision {revision} is for models on the hub, and {model} is a folder")
    commit = None if folder else _commit(model, revision)
    name = str(folder or model)
    config = _load_config(name, commit)
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(
            f"model {model} is an encoder-decoder; hiddenfeed extracts from decoder-only models"
        )
    text = config.get_text_config(decoder=True)
    sizes = [_size(model, text, key) for key in ("hidden_size", "num_hidden_layers", "vocab_size")]
    hidden_size, num_blocks, vocab_size = sizes
    return ModelFacts(name, folder, commit, hidden_size, num_blocks, vocab_size, max_positions(text))


def _commit(model: str, revision: str | None) -> str:
    """The commit that a revision of a hub model stands for now; without network, the one in the local cache."""
    from huggingface_hub import hf_hub_download  # half a second to import

    try:
        path = Path(hf_hub_download(model, "config.json", revision=revision))
    except (OSError, ValueError) as error:
        raise model_error(model, revision, "the configuration", error) from error
    # The cache keeps what it downloads as snapshots/<commit>/<file>.
    return path.parent.name


def _load_config(name: str, commit: str | None) -> Any:
    from transformers import AutoConfig  # seconds to import; only preparation pays

    try:
        return AutoConfig.from_pretrained(name, revision=commit or "main")
    except UNREADABLE as error:
        raise model_error(name, commit, "the configuration", error) from error


def _size(model: str, config: Any, key: str) -> int:
    value = getattr(config, key, None)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"model {model}: its configuration has no {key}")
    return value


def max_positions(config: Any) -> int | None:
    """What the configuration says of positions; more where rotary positions are scaled beyond what it says."""
    if (said := said_length(config)) is None:
        return None
    if (steady := steady_length(config)) is not None:
        return steady
    scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(scaling, dict):
        return said
    # One set of parameters, or one for each type of layer.
    sets = [scaling, *(value for value in scaling.values() if isinstance(value, dict))]
    return max(said, *(_scaled(parameters, said) for parameters in sets))


def _scaled(parameters: dict[str, Any], said: int) -> int:
    factor, original = parameters.get("factor"), parameters.get("original_max_position_embeddings")
    if not isinstance(factor, int | float):
        return said
    return int(factor * (original if isinstance(original, int) else said))
