"""From flags and environment to typed groups, remembering where each value came from.

Order: flag, environment, default. Live settings may be overlaid later from Redis
(`common.settings.live`). An environment variable that is set but empty counts as not set, so that
Compose files can pass optional settings through.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from common.settings.catalogue import ALL_GROUPS
from common.settings.declaration import ENVIRONMENT_PREFIX, Setting, settings_of
from hiddenfeed.errors import ConfigError
from hiddenfeed.setting_type import NOT_SET
from hiddenfeed.words import nearest_text

GroupT = TypeVar("GroupT", bound=msgspec.Struct)


@dataclass(frozen=True)
class Resolved:
    """The settings of one process: a value and a source for each."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]
    groups: tuple[type[msgspec.Struct], ...]
    _built: dict[type[msgspec.Struct], msgspec.Struct] = field(default_factory=dict, repr=False)

    def group(self, kind: type[GroupT]) -> GroupT:
        """The group's values as its struct; raises KeyError for a group this process has not."""
        if kind not in self._built:
            if kind not in self.groups:
                raise KeyError(kind.__name__)
            self._built[kind] = kind(
                **{setting.name: self.values[setting.name] for setting in settings_of(kind)}
            )
        built = self._built[kind]
        assert isinstance(built, kind)
        return built

    def table(self) -> Iterator[tuple[str, str, str]]:
        """(name, value, source) of every setting, secrets hidden; what `--show-config` prints."""
        for group in self.groups:
            for setting in settings_of(group):
                yield (
                    setting.name,
                    shown_value(setting, self.values[setting.name]),
                    self.sources[setting.name],
                )


def add_flags(
    parser: argparse.ArgumentParser,
    groups: Sequence[type[msgspec.Struct]],
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Give `parser` a flag for every setting of `groups`, with help made from its declaration.

    `defaults`, by setting name, are those in which this command differs from the declaration.
    """
    for group in groups:
        title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", group.__name__).lower()
        section = parser.add_argument_group(title, (group.__doc__ or "").strip().splitlines()[0])
        for setting in settings_of(group):
            default = defaults.get(setting.name, setting.default)
            shown = shown_value(setting, default)
            note = f"{NOT_SET} by default" if shown == NOT_SET else f"default {shown}"
            note = "required" if setting.required else note
            limits = f"; {setting.type.limits}" if setting.type.limits else ""
            live = "; can be changed in a running fleet" if setting.live else ""
            text = f"{setting.help} ({note}{limits}{live}; {setting.environment})".replace("%", "%%")
            if setting.type.kind == "bool":
                section.add_argument(
                    setting.flag, action=argparse.BooleanOptionalAction, default=None, help=text
                )
            else:
                section.add_argument(setting.flag, default=None, metavar=setting.type.metavar, help=text)


def resolve(
    groups: Sequence[type[msgspec.Struct]],
    flags: argparse.Namespace | Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    complete: bool = True,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> Resolved:
    """Typed values of `groups`; raises ConfigError naming the flag or variable that is wrong, and what it takes.

    A required setting that is not given is an error too, or, if not `complete`, has the source `required`.
    `defaults`, by setting name, are those in which the command differs from the declaration.
    """
    given = vars(flags) if isinstance(flags, argparse.Namespace) else flags
    _refuse_unknown(environ)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for group in groups:
        for setting in settings_of(group):
            raw, source, named = given.get(setting.name), f"flag {setting.flag}", setting.flag
            if raw is None and environ.get(setting.environment):
                raw, named = environ[setting.environment], setting.environment
                source = f"environment {named}"
            if raw is None:
                if setting.required and complete:
                    raise ConfigError(
                        f"{setting.flag} (or {setting.environment}) must be given: {setting.help}"
                    )
                raw, source = defaults.get(setting.name, setting.default), "default"
            values[setting.name] = raw if source == "default" else parse_value(setting, raw, named)
            sources[setting.name] = "required" if setting.required and source == "default" else source
    return Resolved(values=values, sources=sources, groups=tuple(groups))


def parse_value(setting: Setting, raw: Any, named: str) -> Any:
    """`raw`, text or already typed, as the setting's type; raises ConfigError that calls the setting `named`."""
    return setting.type.value(raw, named, secret=setting.secret)


def shown_value(setting: Setting, value: Any) -> str:
    """A value as a person reads it; a secret, or the password inside a URL, is not shown."""
    if setting.secret and value:
        return "***"
    return re.sub(r"(://[^:@/]*):[^@/]*@", r"\1:***@", setting.type.shown(value))


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    known = {setting.environment for group in ALL_GROUPS for setting in settings_of(group)}
    unknown = sorted(name for name in environ if name.startswith(ENVIRONMENT_PREFIX) and name not in known)
    if unknown:
        # What all begin with makes nothing alike.
        bare = [name.removeprefix(ENVIRONMENT_PREFIX) for name in known]
        meant = nearest_text(unknown[0].removeprefix(ENVIRONMENT_PREFIX), bare)
        meant = meant.replace("did you mean ", f"did you mean {ENVIRONMENT_PREFIX}")
        raise ConfigError(f"unknown setting in the environment: {', '.join(unknown)}{meant}")
