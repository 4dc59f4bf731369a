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

GroupT = TypeVar("GroupT", bound=msgspec.Struct)

_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]i?)?B?", re.IGNORECASE)
_FACTORS = {
    "": 1,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
}
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


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
            note = "required" if setting.required else f"default {shown_value(setting, default)}"
            live = "; can be changed in a running fleet" if setting.live else ""
            text = f"{setting.help} ({note}{live}; {setting.environment})".replace("%", "%%")
            if setting.kind == "bool":
                section.add_argument(
                    setting.flag, action=argparse.BooleanOptionalAction, default=None, help=text
                )
            else:
                metavar = (
                    "{" + ",".join(setting.choices) + "}"
                    if setting.choices
                    else (setting.unit or setting.kind).upper()
                )
                section.add_argument(setting.flag, default=None, metavar=metavar, help=text)


def resolve(
    groups: Sequence[type[msgspec.Struct]],
    flags: argparse.Namespace | Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    complete: bool = True,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> Resolved:
    """Typed values of `groups`; raises ConfigError naming the flag or variable that is wrong.

    A required setting that is not given is an error too, or, if not `complete`, has the source `required`.
    `defaults`, by setting name, are those in which the command differs from the declaration.
    """
    given = vars(flags) if isinstance(flags, argparse.Namespace) else flags
    _refuse_unknown(environ)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for group in groups:
        for setting in settings_of(group):
            raw, source = given.get(setting.name), f"flag {setting.flag}"
            if raw is None and environ.get(setting.environment):
                raw, source = environ[setting.environment], f"environment {setting.environment}"
            if raw is None:
                if setting.required and complete:
                    raise ConfigError(
                        f"{setting.flag} (or {setting.environment}) must be given: {setting.help}"
                    )
                raw, source = defaults.get(setting.name, setting.default), "default"
            values[setting.name] = raw if source == "default" else parse_value(setting, raw, source)
            sources[setting.name] = "required" if setting.required and source == "default" else source
    return Resolved(values=values, sources=sources, groups=tuple(groups))


def parse_value(setting: Setting, raw: Any, source: str) -> Any:
    """`raw`, text or already typed, as the setting's type; raises ConfigError naming `source`."""
    value = raw
    try:
        if isinstance(raw, str) and setting.unit == "bytes":
            value = parse_size(raw)
        elif isinstance(raw, str) and setting.kind == "bool":
            value = _parse_bool(raw)
        return msgspec.convert(value, setting.type, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        limits = f"; one of {', '.join(setting.choices)}" if setting.choices else ""
        raise ConfigError(f"{source}: {raw!r} is not a value of {setting.name}: {error}{limits}") from None


def parse_size(text: str) -> int:
    """Bytes in `512MiB`, `2 GB` or `4096`; raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError("a size is a number with B, KB, MB, GB, TB, KiB, MiB, GiB or TiB")
    return int(float(match["number"]) * _FACTORS[(match["unit"] or "").lower()])


def shown_value(setting: Setting, value: Any) -> str:
    """A value as a person reads it; a secret, or the password inside a URL, is not shown."""
    if value is None or value == "":
        return "not set"
    if setting.secret:
        return "***"
    if setting.unit == "bytes":
        return shown_size(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    unit = f" {setting.unit}" if setting.unit else ""
    return re.sub(r"(://[^:@/]*):[^@/]*@", r"\1:***@", str(value)) + unit


def shown_size(size_bytes: int) -> str:
    """`512 MiB`: the largest binary unit that divides the size, or one decimal of the next."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            number = size_bytes / factor
            return f"{number:.0f} {unit}" if number == int(number) else f"{number:.1f} {unit}"
    return f"{size_bytes} B"


def _parse_bool(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError("yes or no")
    return word in _TRUE


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    known = {setting.environment for group in ALL_GROUPS for setting in settings_of(group)}
    unknown = sorted(name for name in environ if name.startswith(ENVIRONMENT_PREFIX) and name not in known)
    if unknown:
        raise ConfigError(f"unknown setting in the environment: {', '.join(unknown)}")
