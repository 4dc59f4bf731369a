"""Datasets of the Hugging Face hub: their files of rows, of one commit, fetched into the hub's local cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from common.hub import hub_error, hub_or_cache, quiet_hub
from hiddenfeed.errors import ConfigError
from hiddenfeed.words import count_text
from producer.sources.files import DataFile, LocalFile
from producer.sources.folder import Say, files_of_rows, is_rows, natural
from producer.sources.pattern import translate

_URL = re.compile(r"hf://datasets/(?P<name>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[^/]+))?(/(?P<pattern>.+))?")
#: What the hub's client raises, and the HTTP library below it, which is one or another by version.
_FAILURES: tuple[type[Exception], ...] = (OSError, ValueError, HfHubHTTPError.__bases__[0])
_TRAIN = re.compile(r"(^|[/._-])train([/._-]|$)")


def find_on_hub(url: str, say: Say) -> list[DataFile]:
    """The files of `hf://datasets/NAME[@REVISION][/PATTERN]`, or of `NAME` alone the split `train`.

    Raises ConfigError if there is no such dataset or nothing in it that is read, TransientError if the
    hub is away and the dataset not in the local cache.
    """
    asked = _URL.fullmatch(url)
    if asked is None:
        raise ConfigError(
            f"--data {url}: write hf://datasets/NAME, hf://datasets/NAME@REVISION or …/NAME/PATTERN"
        )
    quiet_hub()
    name, revision, pattern = asked["name"], asked["revision"], asked["pattern"]
    say(f"looking for dataset {name} on the hub and in the local cache")
    with hub_or_cache("dataset", name, say):
        return _find(name, revision, pattern, say)


def _find(name: str, revision: str | None, pattern: str | None, say: Say) -> list[DataFile]:
    try:
        info = HfApi().dataset_info(name, revision=revision)
    except _FAILURES as error:
        return _from_cache(name, revision, pattern, say, error)
    names = [file.rfilename for file in info.siblings or []]
    configs = info.card_data.get("configs") if info.card_data is not None else None
    taken = choose(name, names, pattern, configs, say)
    say(f"dataset {name} at {str(info.sha)[:12]}: {count_text(len(taken), 'file')}")
    # By its own name once, so that the cache remembers which commit the name stands for.
    _fetched(name, revision or "main", taken[0])
    return [_fetched(name, str(info.sha), file) for file in taken]


def choose(name: str, names: Sequence[str], pattern: str | None, configs: Any, say: Say) -> list[str]:
    """The files of rows of a dataset: those of a pattern, else of its own default configuration's split `train`.

    `configs` is what the dataset's card says of itself, if anything. Raises ConfigError.
    """
    if pattern is not None:
        fits = re.compile(translate(pattern))
        taken = sorted((file for file in names if fits.fullmatch(file)), key=natural)
        if not taken:
            raise ConfigError(f"dataset {name} has no files {pattern}")
        return taken
    patterns = _of_card(name, configs)
    if patterns:
        fits = re.compile("|".join(translate(pattern) for pattern in patterns))
        names = [file for file in names if fits.fullmatch(file)]
    rows = files_of_rows(f"dataset {name}", names, _unreadable, lambda line: None)
    train = [file for file in rows if _TRAIN.search(file)]
    others = [file for file in rows if is_rows(file) and file not in train]
    if train and others:
        say(
            f"dataset {name}: {count_text(len(train), 'file')} of split train taken, not taken: {count_text(len(others), 'other')}"
        )
    return train or rows


def _of_card(name: str, configs: Any) -> list[str]:
    """Patterns of the files that the card's default configuration names for its split `train`, or for all."""
    if not isinstance(configs, list) or not all(isinstance(config, dict) for config in configs):
        return []
    default = [
        config for config in configs if config.get("default") or config.get("config_name") == "default"
    ]
    if len(configs) > 1 and not default:
        known = ", ".join(str(config.get("config_name")) for config in configs[:8])
        raise ConfigError(
            f"dataset {name} has the configurations {known} and no default: name the files of one, like "
            f"hf://datasets/{name}/FOLDER/*.parquet"
        )
    files = (default or configs or [{}])[0].get("data_files")
    if isinstance(files, list):
        splits = [entry for entry in files if isinstance(entry, dict)]
        train = [entry.get("path") for entry in splits if entry.get("split") == "train"]
        files = train or [entry.get("path") for entry in splits] or files
    flat = [
        path
        for entry in (files if isinstance(files, list) else [files])
        for path in (entry if isinstance(entry, list) else [entry])
    ]
    return [path for path in flat if isinstance(path, str)]


def _from_cache(
    name: str, revision: str | None, pattern: str | None, say: Say, error: BaseException
) -> list[DataFile]:
    """The dataset as the local cache has it; raises the hub's error where it has not."""
    failure = hub_error("dataset", name, revision, "the list of files", error)
    try:
        folder = Path(snapshot_download(name, repo_type="dataset", revision=revision, local_files_only=True))
    except _FAILURES:
        raise failure from error
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    taken = choose(name, names, pattern, None, say)
    say(
        f"dataset {name} at {folder.name[:12]}, from the local cache, which may lack files: {count_text(len(taken), 'file')}"
    )
    return [LocalFile(folder / file, file) for file in taken]


def _fetched(name: str, revision: str, file: str) -> LocalFile:
    try:
        return LocalFile(Path(hf_hub_download(name, file, repo_type="dataset", revision=revision)), file)
    except _FAILURES as error:
        raise hub_error("dataset", name, revision, file, error) from error


def _unreadable(name: str) -> bytes:
    raise ConfigError(f"a dataset saved with save_to_disk is not read from the hub ({name}); download it")
