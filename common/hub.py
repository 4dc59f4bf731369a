"""What is said when a model's folder or hub id leads nowhere: one sentence for each way it can."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from hiddenfeed.errors import ConfigError, HiddenfeedError, TransientError

_NOT_THERE = {"RepositoryNotFoundError", "HFValidationError"}
_AWAY = {
    "LocalEntryNotFoundError",
    "OfflineModeIsEnabled",
    "ConnectError",
    "ConnectTimeout",
    "ReadTimeout",
    "ConnectionError",
}


def local_folder(model: str) -> Path | None:
    """The folder that `model` names, absolute; None for a hub id.

    Raises ConfigError for a path that is not there, which transformers would look up on the hub.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(f"model folder {model} has no config.json")
        return path.resolve()
    if path.exists() or model.startswith(("/", ".", "~")) or model.count("/") > 1:
        raise ConfigError(f"model folder {model} is not there")
    return None


def model_error(model: str, revision: str | None, what: str, error: BaseException) -> HiddenfeedError:
    """The sentence for what transformers raised while it looked for `what` of a model."""
    return hub_error("model", model, revision, what, error)


def hub_error(
    noun: Literal["model", "dataset"], name: str, revision: str | None, what: str, error: BaseException
) -> HiddenfeedError:
    """The sentence for what was raised on the way to `what` of a model or dataset of the hub."""
    kinds = {type(link).__name__ for link in _chain(error)}
    if "GatedRepoError" in kinds:
        return ConfigError(f"{noun} {name} is gated on the hub: accept its terms there and set HF_TOKEN")
    if "RevisionNotFoundError" in kinds:
        return ConfigError(f"{noun} {name} has no revision {revision} on the hub")
    if kinds & _NOT_THERE:
        here = "a folder" if noun == "model" else "a file or folder here"
        return ConfigError(
            f"{noun} {name} is neither {here} nor a {noun} on the hub (a private one needs HF_TOKEN)"
        )
    if kinds & _AWAY or "We couldn't connect" in str(error):
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            return ConfigError(
                f"{noun} {name} is not in the local cache and HF_HUB_OFFLINE forbids asking the hub"
            )
        return TransientError(f"{noun} {name} is not in the local cache and the hub cannot be reached")
    return ConfigError(f"{what} of {noun} {name} cannot be read: {_first_sentence(error)}")


def quiet_libraries() -> None:
    """Stop the progress bars and retry notices of transformers and its hub client; failures are said by us."""
    from transformers.utils import logging  # seconds to import

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    quiet_hub()


def quiet_hub() -> None:
    """The same for the hub's client alone."""
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def _chain(error: BaseException | None) -> list[BaseException]:
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__cause__ or error.__context__
    return links


def _first_sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    head, dot, _ = text.partition(". ")
    return (head if dot else text.rstrip("."))[:300]
