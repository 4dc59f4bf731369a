"""What the documents name is there: flags, files, commands, settings."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from common.settings.catalogue import ALL_GROUPS
from common.settings.declaration import ENVIRONMENT_PREFIX, settings_of
from common.settings.live import live_settings

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks/README.md", ROOT / ".env.example"]
)
#: Flags of programs that are not ours, pip and Docker, and those that stand for any.
FOREIGN = {"--build", "--scale", "--no-deps", "--wheel-dir", "--flag", "--no-flag"}
SETTINGS = {setting.name for group in ALL_GROUPS for setting in settings_of(group)}


@pytest.fixture(scope="module")
def flags() -> set[str]:
    """Of settings, and those that a parser of ours is told in so many words."""
    sources = [path for package in ROOT.glob("*/__init__.py") for path in package.parent.rglob("*.py")]
    sources += ROOT.glob("examples/*.py")
    told = {flag for path in sources for flag in re.findall(r'"(--[a-z][a-z-]*)"', path.read_text())}
    settings = {f"--{name.replace('_', '-')}" for name in SETTINGS}
    return told | settings | {flag.replace("--", "--no-", 1) for flag in settings}


def _named(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=_named)
def test_what_it_names_is_there(document: Path, flags: set[str]) -> None:
    text = document.read_text(encoding="utf-8")
    unknown = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]", text)) - flags - FOREIGN
    assert not unknown
    links = re.findall(r"\]\(([^)#\s]+)", text)
    gone = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert not gone
    modules = set(re.findall(r"python -m ([a-z_]+(?:\.[a-z_]+)*)", text))
    assert not [name for name in modules if importlib.util.find_spec(name) is None]
    variables = {name.lower() for name in re.findall(rf"\b{ENVIRONMENT_PREFIX}([A-Z0-9_]+)", text)}
    assert not variables - SETTINGS


def test_settings_that_documents_change_in_a_running_fleet_are_live() -> None:
    found = {
        name
        for document in DOCUMENTS
        for name in re.findall(r"producer set ([a-z_]+)=", document.read_text(encoding="utf-8"))
    }
    assert found
    assert found <= live_settings().keys()


def test_commands_of_the_producer_that_documents_name_are_there() -> None:
    from producer.__main__ import commands

    known = {command.prog.rsplit(" ", 1)[-1] for command in commands()}
    found = {
        name
        for document in DOCUMENTS
        for name in re.findall(r"python -m producer ([a-z][a-z-]*)", document.read_text(encoding="utf-8"))
    }
    assert {"run", "wait", "plan"} <= found <= known


def test_the_help_of_each_command_of_the_producer_has_an_example_and_one_line_of_usage() -> None:
    from producer.__main__ import commands

    for command in commands():
        text = command.parser.format_help()
        usage, _, rest = text.partition("\n\n")
        assert usage.startswith(f"usage: {command.prog} [FLAGS]")
        assert "\n" not in usage
        examples = re.findall(r"^examples?:\n((?:  .*\n)+)", rest, re.MULTILINE)
        assert len(examples) == 1, command.prog
        assert all(line.startswith(f"  {command.prog}") for line in examples[0].splitlines())
