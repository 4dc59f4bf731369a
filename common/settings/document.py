"""docs/settings.md: every setting in one table per group, made from the declarations.

python -m common.settings.document          write it
python -m common.settings.document --check  fail if it is not up to date
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from common.settings.catalogue import ALL_GROUPS
from common.settings.declaration import ENVIRONMENT_PREFIX, Setting, settings_of
from common.settings.resolve import shown_value

DOCUMENT = Path(__file__).parents[2] / "docs" / "settings.md"

_HEAD = f"""\
# Settings

Made by `python -m common.settings.document` from `common/settings/catalogue.py` and
`hiddenfeed/options.py`; do not edit by hand.

A value comes from the flag, else from the environment, else it is the default. Each setting is a
flag (`--log-level debug`) and an environment variable (`{ENVIRONMENT_PREFIX}LOG_LEVEL=debug`) of
every command that uses it. An empty variable counts as not set. Sizes may be written as `512MiB`
or `50GB`, booleans as `--flag` and `--no-flag`, or `yes` and `no` in the environment.
`--show-config` prints each value and where it comes from. A setting marked *live* can be changed
while processes run, by `python -m producer set NAME=VALUE`: the value is kept in Redis, holds for all
processes until `NAME=` ends it, and is written again by whoever knew it should Redis lose it.
"""


def render() -> str:
    """The whole document."""
    return "\n".join([_HEAD, *(_section(group) for group in ALL_GROUPS)])


def main(arguments: Sequence[str] | None = None, document: Path = DOCUMENT) -> int:
    """Write the document, or with `--check` compare it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m common.settings.document", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="do not write; fail if the document is not up to date"
    )
    check = parser.parse_args(arguments).check
    text = render()
    if check:
        if not document.is_file() or document.read_text(encoding="utf-8") != text:
            print(
                f"error: {document} is not up to date; run python -m common.settings.document",
                file=sys.stderr,
            )
            return 1
        return 0
    document.parent.mkdir(parents=True, exist_ok=True)
    document.write_text(text, encoding="utf-8")
    return 0


def _section(group: type[msgspec.Struct]) -> str:
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", group.__name__).capitalize()
    summary = (group.__doc__ or "").strip().splitlines()[0]
    rows = [_row(setting) for setting in settings_of(group)]
    head = "| setting | default | what it is |\n|---|---|---|"
    return "\n".join([f"## {title}\n\n{summary}\n", head, *rows, ""])


def _row(setting: Setting) -> str:
    default = "required" if setting.required else f"`{shown_value(setting, setting.default)}`"
    notes = [setting.help]
    if setting.type.choices:
        notes.append("one of " + ", ".join(f"`{choice}`" for choice in setting.type.choices))
    if setting.type.limits:
        notes.append(setting.type.limits)
    if setting.live:
        notes.append("*live*")
    cells = (f"`{setting.flag}`", default, "; ".join(notes))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
