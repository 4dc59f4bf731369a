"""Which of the files of a folder are rows, by their names alone; the folder may be here or anywhere.

A dataset that was saved whole (`save_to_disk`) says itself which of its files are rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import msgspec

from hiddenfeed.errors import ConfigError
from hiddenfeed.words import count_text

#: A file of one of these names below a folder, in capitals or not, is taken for rows.
SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".feather")
PACKED = (".gz", ".zst", ".bz2", ".xz")
#: Files about a dataset, which are JSON and no rows.
_ABOUT = {"dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json", "config.json"}
_SAVED, _SPLITS = "state.json", "dataset_dict.json"
_SHOWN = 5

Read = Callable[[str], bytes]
Say = Callable[[str], None]
StructT = TypeVar("StructT", bound=msgspec.Struct)


class _File(msgspec.Struct):
    filename: str


class _State(msgspec.Struct, rename={"files": "_data_files"}):
    files: list[_File]


class _Splits(msgspec.Struct):
    splits: list[str]


def is_rows(name: str) -> bool:
    """Whether a file of this name, a path below the folder, is one of rows."""
    parts = name.split("/")
    if any(part.startswith((".", "__")) for part in parts) or parts[-1] in _ABOUT:
        return False
    folded = name.lower()
    bare = next((folded.removesuffix(packed) for packed in PACKED if folded.endswith(packed)), folded)
    return bare.endswith(SUFFIXES)


def files_of_rows(where: str, names: Collection[str], read: Read, say: Say) -> list[str]:
    """The files of rows among `names`, in the order of their rows; `read` gives the bytes of one of them.

    What is left out is said aloud. Raises ConfigError naming `where` if there are none.
    """
    if _SPLITS in names:
        split = _one_split(where, _decoded(where, _SPLITS, read, _Splits).splits, say)
        return [
            f"{split}/{name}" for name in _saved(f"{where}/{split}", lambda name: read(f"{split}/{name}"))
        ]
    if _SAVED in names and any(name.endswith(".arrow") for name in names):
        return _saved(where, read)
    taken = sorted((name for name in names if is_rows(name)), key=natural)
    others = sorted(set(names) - set(taken))
    if not taken:
        raise ConfigError(
            f"{where} has no files of rows ({', '.join(SUFFIXES)}; they may be packed as {', '.join(PACKED)}); "
            f"it has {_listed(others) or 'nothing'}"
        )
    if others:
        say(f"{where}: {count_text(len(taken), 'file')} of rows; not taken: {_listed(others)}")
    return taken


def natural(name: str) -> list[tuple[str, int]]:
    """A key that sorts `part-10` behind `part-9`."""
    return [(text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def _saved(where: str, read: Read) -> list[str]:
    """The files that a saved dataset consists of."""
    state = _decoded(where, _SAVED, read, _State)
    for file in state.files:
        if "/" in file.filename or file.filename in ("", ".", ".."):
            raise ConfigError(f"{where}/{_SAVED} names a file outside its folder: {file.filename[:80]!r}")
    return [file.filename for file in state.files]


def _one_split(where: str, splits: Sequence[str], say: Say) -> str:
    if len(splits) != 1 and "train" not in splits:
        raise ConfigError(
            f"{where} has the splits {', '.join(splits) or 'none'}: name one, like {where}/{splits[0] if splits else 'train'}"
        )
    split = "train" if "train" in splits else splits[0]
    if "/" in split or split.startswith("."):
        raise ConfigError(f"{where}/{_SPLITS} names a split outside its folder: {split[:80]!r}")
    others = [other for other in splits if other != split]
    if others:
        say(f"{where}: split {split} is taken; not taken: {_listed(others)}")
    return split


def _decoded(where: str, name: str, read: Read, kind: type[StructT]) -> StructT:
    try:
        return msgspec.json.decode(read(name), type=kind)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{where}/{name} is not what datasets writes: {error}") from None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
