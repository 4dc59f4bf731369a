"""One declared setting as facts: read off a group's fields, used by flags, environment and docs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from hiddenfeed.setting_type import SettingType, setting_type

ENVIRONMENT_PREFIX = "HIDDENFEED_"


@dataclass(frozen=True)
class Setting:
    """One setting. `name` is unique over all groups."""

    name: str
    group: type[msgspec.Struct]
    default: Any
    #: What the value may be.
    type: SettingType

    @property
    def flag(self) -> str:
        """`--upload-parallelism`"""
        return "--" + self.name.replace("_", "-")

    @property
    def environment(self) -> str:
        """`HIDDENFEED_UPLOAD_PARALLELISM`"""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def help(self) -> str:
        """What it is, without its default and limits."""
        return self.type.help

    @property
    def live(self) -> bool:
        """True if it can be changed while processes run."""
        return bool(self.type.extra.get("live"))

    @property
    def secret(self) -> bool:
        """True if its value is never shown."""
        return bool(self.type.extra.get("secret"))

    @property
    def required(self) -> bool:
        """True if there is no default that would do."""
        return bool(self.type.extra.get("required"))


def settings_of(group: type[msgspec.Struct]) -> Iterator[Setting]:
    """The settings that a group declares, in their order."""
    for field in msgspec.structs.fields(group):
        yield Setting(field.name, group, field.default, setting_type(field.type))
