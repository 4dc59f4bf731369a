"""The way to the hub: whether it answers, and what is said when a folder or hub id leads nowhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from hiddenfeed.errors import ConfigError, HiddenfeedError, TransientError

Noun = Literal["model", "dataset"]

#: How long the hub may take to answer, unless HF_HUB_ETAG_TIMEOUT sets another time.
_PATIENCE_SECONDS = 5.0

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


@contextmanager
def hub_or_cache(noun: Noun, name: str, say: Callable[[str], object]) -> Iterator[None]:
    """Within it a hub that does not answer is not asked: what the local cache has is found at once, the rest is refused.

    The hub's client by itself would ask six times for each file, which takes half a minute where
    connections are refused and several where nothing answers. `say` is told. For one thread at a time; nothing
    is asked for a model that is a folder.
    """
    if noun == "model" and local_folder(name) is not None:
        yield
        return
    from huggingface_hub import constants  # half a second to import

    patience = float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or _PATIENCE_SECONDS)
    if constants.is_offline_mode() or _answers(noun, name, patience):
        yield
        return
    say(
        f"the hub ({constants.ENDPOINT}) does not answer: {noun} {name} is looked for in the local cache alone "
        "(HF_HUB_OFFLINE=1 does so without asking)"
    )
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = False


def _answers(noun: Noun, name: str, patience_seconds: float) -> bool:
    """True if the hub says anything about the repository in time, a refusal included."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    # The HTTP library below the client is one or another by version.
    failures: tuple[type[Exception], ...] = (OSError, HfHubHTTPError.__bases__[0])
    answered: list[bool] = []

    def ask() -> None:
        try:
            reply = get_session().head(url, timeout=patience_seconds, follow_redirects=False)
        except failures:
            return
        answered.append(reply.status_code < 500)

    try:
        url = hf_hub_url(name, "README.md", repo_type=noun)
    except ValueError:
        return True  # no name that a repository can have, as whoever asks for it will be told
    # No timeout holds for a name server that is silent.
    thread = threading.Thread(target=ask, name="is the hub there", daemon=True)
    thread.start()
    thread.join(patience_seconds + 1.0)
    return answered == [True]


def model_error(model: str, revision: str | None, what: str, error: BaseException) -> HiddenfeedError:
    """The sentence for what transformers raised while it looked for `what` of a model."""
    return hub_error("model", model, revision, what, error)


def hub_error(
    noun: Noun, name: str, revision: str | None, what: str, error: BaseException
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
        return TransientError(
            f"{noun} {name} is not in the local cache and the hub cannot be reached: try again when it can, or give a "
            f"local {'folder' if noun == 'model' else 'file or folder'} in place of its name"
        )
    return ConfigError(f"{what} of {noun} {name} cannot be read: {_first_sentence(error)}")


def quiet_libraries() -> None:
    """Stop the progress bars and retry notices of transformers and its hub client; failures are said by us."""
    from transformers.utils import logging  # seconds to import

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    quiet_hub()
    _hide_bars()


def quiet_hub() -> None:
    """The same for the hub's client alone."""
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def _hide_bars() -> None:
    """Of libraries that ask nobody: compressed-tensors shows one for each step of making a model."""
    from tqdm.std import tqdm  # type: ignore[import-untyped]

    shown = tqdm.__init__
    if getattr(shown, "__name__", "") == "hidden":
        return

    def hidden(bar: Any, *arguments: Any, **named: Any) -> None:
        shown(bar, *arguments, **{**named, "disable": True})

    tqdm.__init__ = hidden


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
