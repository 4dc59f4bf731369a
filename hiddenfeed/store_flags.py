"""Flags and environment names for reaching a store, made from `StoreOptions`; no default of their own.

The roles make theirs from the same declaration. What only matters for uploads is left out here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import msgspec

from hiddenfeed.errors import ConfigError
from hiddenfeed.options import StoreOptions

ENVIRONMENT_PREFIX = "HIDDENFEED_"


@dataclass(frozen=True)
class _Option:
    name: str
    type: Any
    default: Any
    help: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def environment(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()


def add_store_flags(parser: argparse.ArgumentParser) -> None:
    """Give `parser` a flag for every option that reading needs."""
    section = parser.add_argument_group("S3", "credentials come from where AWS tools look for them")
    for option in _options():
        shown = "not set" if option.default is None else option.default
        text = f"{option.help} (default {shown}; {option.environment})".replace("%", "%%")
        section.add_argument(option.flag, default=None, metavar="VALUE", help=text)


def store_options(flags: argparse.Namespace, environ: Mapping[str, str]) -> StoreOptions:
    """Flag, else environment (set but empty counts as not set), else default.

    Raises ConfigError naming the flag or variable that is wrong.
    """
    values = {}
    for option in _options():
        raw, source = getattr(flags, option.name, None), option.flag
        if raw is None:
            raw, source = environ.get(option.environment) or None, option.environment
        if raw is None:
            continue
        try:
            values[option.name] = msgspec.convert(raw, option.type, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{source}: {raw!r} cannot be used: {error}") from None
    return StoreOptions(**values)


def environment_options(environ: Mapping[str, str]) -> StoreOptions:
    """As `store_options` where no flag is given."""
    return store_options(argparse.Namespace(), environ)


def _options() -> Iterator[_Option]:
    hints = get_type_hints(StoreOptions, include_extras=True)
    for field in msgspec.structs.fields(StoreOptions):
        meta = next(part for part in get_args(hints[field.name]) if isinstance(part, msgspec.Meta))
        if field.name.startswith("s3_"):
            yield _Option(field.name, hints[field.name], field.default, meta.description or "")
