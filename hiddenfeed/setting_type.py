"""What a setting may be, read off its declared type: a text made into its value, or refused in words for people.

Flags, the environment and what is set in a running fleet all come through here, so that each is refused alike.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import inspect

from hiddenfeed.errors import ConfigError
from hiddenfeed.sizes import parse_size, shown_size
from hiddenfeed.words import nearest_text

Kind = Literal["bool", "int", "float", "str"]

#: How no value is shown.
NOT_SET = "not set"
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}
_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_SHOWN_CHARACTERS = 80
#: Units as a sentence has them.
_UNITS = {"s": "seconds", "%": "percent", "tokens/s": "tokens a second"}


@dataclass(frozen=True)
class SettingType:
    """One declared type as facts."""

    #: What msgspec converts to, with its limits.
    declared: Any
    kind: Kind
    #: `Meta.description`.
    help: str
    #: `Meta.extra`: unit, metavar, choices or form of a text that follows a pattern, and what the roles add.
    extra: dict[str, Any]
    #: All that it may be, in the order of the declaration; empty if it is no matter of choice.
    choices: tuple[str, ...] = ()
    #: Least and greatest number, both allowed.
    least: float | None = None
    most: float | None = None
    #: A number that must be exceeded.
    above: float | None = None

    @property
    def unit(self) -> str | None:
        """`bytes`, `bytes/s`, `s`, `%`, `tokens` or `tokens/s`; None for what is counted, and for texts."""
        unit: str | None = self.extra.get("unit")
        return unit

    @property
    def is_size(self) -> bool:
        """True if it may be written with a unit, as `512MiB`."""
        return (self.unit or "").startswith("bytes")

    @property
    def metavar(self) -> str:
        """What stands behind the flag in `--help`."""
        if self.choices:
            return "{" + ",".join(self.choices) + "}"
        if self.kind == "bool":
            return "{yes,no}"
        number = {"int": "N", "float": "NUMBER"}.get(self.kind, "VALUE")
        unit = {"s": "seconds", "%": "percent"}.get(self.unit or "", self.unit)
        return str(self.extra.get("metavar") or unit or number).upper()

    @property
    def limits(self) -> str:
        """`1 to 64` or `3 or more`; "" where there is nothing that one would not guess."""
        if self.most is not None:
            return f"{self._shown(self.least or 0)} to {self._shown(self.most)}"
        return f"{self._shown(self.least)} or more" if self.least is not None and self.least > 1 else ""

    @property
    def allowed(self) -> str:
        """What it may be, as the end of `it takes …`."""
        if self.choices:
            return _either(self.choices)
        if self.kind == "bool":
            return "yes or no"
        if self.kind == "str":
            return str(self.extra.get("form", "text"))
        if self.is_size:
            what = "a size" if self.unit == "bytes" else "a size for each second"
            return f"{what} such as 512MiB or 50GB{self._bounds()}"
        number = "a whole number" if self.kind == "int" else "a number"
        unit = f" of {_UNITS.get(self.unit, self.unit)}" if self.unit else ""
        return number + unit + self._bounds()

    def shown(self, value: Any) -> str:
        """A value as a person reads it, with its unit; it may be a secret."""
        if value is None or value == "":
            return NOT_SET
        if self.is_size:
            return shown_size(value) + str(self.unit).removeprefix("bytes")
        if isinstance(value, bool):
            return "yes" if value else "no"
        if not isinstance(value, int | float):
            return str(value)
        unit = "token" if value == 1 and self.unit == "tokens" else self.unit
        return f"{value:.15g} {unit}" if unit else f"{value:.15g}"

    def value(self, raw: Any, source: str, *, secret: bool = False) -> Any:
        """`raw`, a text or already of the type, as a value of it.

        Raises ConfigError naming `source`, what was given (unless it is a secret) and what is allowed.
        """
        try:
            return msgspec.convert(self._read(raw) if isinstance(raw, str) else raw, self.declared)
        except (msgspec.ValidationError, ValueError):
            given = str(raw)
            shown = "" if secret else f" {given[:_SHOWN_CHARACTERS]!r}"
            nearest = nearest_text(given, self.choices)
            raise ConfigError(f"{source}{shown} cannot be used: it takes {self.allowed}{nearest}") from None

    def _read(self, text: str) -> Any:
        """The text as something of the type, not held against its limits yet; raises ValueError."""
        if self.kind == "str":
            return text
        word = text.strip().lower()
        if self.kind == "bool":
            if word not in _TRUE | _FALSE:
                raise ValueError
            return word in _TRUE
        if self.is_size:
            return parse_size(word)
        if self.kind == "float":
            number = float(word)
            if not math.isfinite(number):
                raise ValueError
            return number
        if not _WHOLE.fullmatch(word):
            raise ValueError
        return int(word)

    def _bounds(self) -> str:
        if self.most is not None:
            return f" from {self._shown(self.least or 0)} to {self._shown(self.most)}"
        if self.above is not None:
            return f" above {self._shown(self.above)}"
        if self.least is None or (self.is_size and self.least <= 1):
            return ""
        return f", {self._shown(self.least)} or more"

    def _shown(self, number: float) -> str:
        return shown_size(int(number)) if self.is_size else f"{number:.15g}"


@cache
def setting_type(declared: Any) -> SettingType:
    """The facts of a declared type: `Annotated[…, Meta(…)]` of a number, text, choice or yes and no, perhaps None."""
    node = inspect.type_info(declared)
    extra: dict[str, Any] = {}
    text = ""
    while isinstance(node, inspect.Metadata | inspect.UnionType):
        if isinstance(node, inspect.Metadata):
            extra |= node.extra or {}
            text = (node.extra_json_schema or {}).get("description", text)
            node = node.type
        else:
            node = next(part for part in node.types if not isinstance(part, inspect.NoneType))
    choices = _literals(declared) or tuple(extra.get("choices", ()))
    if isinstance(node, inspect.IntType | inspect.FloatType):
        kind: Kind = "int" if isinstance(node, inspect.IntType) else "float"
        return SettingType(declared, kind, text, extra, choices, node.ge, node.le, node.gt)
    return SettingType(
        declared, "bool" if isinstance(node, inspect.BoolType) else "str", text, extra, choices
    )


def _literals(declared: Any) -> tuple[str, ...]:
    """The values of the `Literal` in a type, in their order, which msgspec does not keep."""
    parts = get_args(declared)
    if get_origin(declared) is Literal:
        return tuple(map(str, parts))
    return next((found for part in parts if (found := _literals(part))), ())


def _either(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
