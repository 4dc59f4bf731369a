"""Flags and environment names for reaching a store, made from `StoreOptions`; no default of their own.

The roles make theirs from the same declaration. What only matters for uploads is left out here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from hiddenfeed.options import StoreOptions
from hiddenfeed.setting_type import NOT_SET, SettingType, setting_type

ENVIRONMENT_PREFIX = "HIDDENFEED_"


@dataclass(frozen=True)
class _Option:
    name: str
    type: SettingType
    default: Any

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def environment(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()


def add_store_flags(parser: argparse.ArgumentParser) -> None:
    """Give `parser` a flag for every option that reading needs."""
    section = parser.add_argument_group(
        "S3",
        "credentials come from where AWS's own tools look: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or the "
        "machine's role",
    )
    for option in _options():
        shown = option.type.shown(option.default)
        note = f"{NOT_SET} by default" if shown == NOT_SET else f"default {shown}"
        text = f"{option.type.help} ({note}; {option.environment})"
        section.add_argument(
            option.flag, default=None, metavar=option.type.metavar, help=text.replace("%", "%%")
        )


def store_options(flags: argparse.Namespace, environ: Mapping[str, str]) -> StoreOptions:
    """Flag, else environment (set but empty counts as not set), else default.

    Raises ConfigError naming the flag or variable that is wrong, and what it takes.
    """
    values = {}
    for option in _options():
        raw, named = getattr(flags, option.name, None), option.flag
        if raw is None:
            raw, named = environ.get(option.environment) or None, option.environment
        if raw is not None:
            values[option.name] = option.type.value(raw, named)
    return StoreOptions(**values)


def environment_options(environ: Mapping[str, str]) -> StoreOptions:
    """As `store_options` where no flag is given."""
    return store_options(argparse.Namespace(), environ)


def _options() -> Iterator[_Option]:
    for field in msgspec.structs.fields(StoreOptions):
        if field.name.startswith("s3_"):
            yield _Option(field.name, setting_type(field.type), field.default)
