"""The shell of commands: one sentence and an exit code for every failure."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.cli import Command, dispatch
from common.settings.catalogue import HomeSettings, StoreSettings, UploadSettings
from common.settings.resolve import Resolved
from hiddenfeed.errors import ConfigError, DataError, PermanentError, TransientError
from hiddenfeed.shell import exit_code_of, say


def _command(error: Exception | None = None) -> Command:
    def body(settings: Resolved, arguments: argparse.Namespace) -> int:
        if error:
            raise error
        print("parallelism", settings.group(UploadSettings).upload_parallelism)
        return 0

    return Command("thing go", "Go there.", [StoreSettings, UploadSettings], body)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("no"), 2),
        (DataError("no"), 65),
        (TransientError("no"), 75),
        (PermanentError("no"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_one_line_and_an_exit_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _command(error).run(["--store", "x"]) == code
    assert capsys.readouterr().err in ("error: no\n", "interrupted\n")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    # In a process of its own: its stdout is put out of the way.
    script = "import sys; from tests.unit.test_cli_shell import _command; sys.exit(_command().run(['--store', 'x']))"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", 0)


def test_a_full_disk_behind_the_output_is_one_line() -> None:
    script = "import sys; from tests.unit.test_cli_shell import _command; sys.exit(_command().run(['--store', 'x']))"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", script], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.stderr == "error: the output cannot be written: no space left on device\n"
    assert done.returncode == TransientError.exit_code


def _say(line: str) -> int:
    say(line)
    return 0


def test_what_is_quoted_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of files and data may hold anything."""
    assert exit_code_of(lambda: _say("a\x1b[31mb\rc")) == 0
    assert _command(ConfigError("\x1b]0;title\x07")).run(["--store", "x"]) == 2
    said = capsys.readouterr()
    assert said.out == "a\\x1b[31mb\\rc\n"
    assert said.err == "error: \\x1b]0;title\\x07\n"


def test_what_an_encoding_has_not_got_is_written_all_the_same() -> None:
    code = "from hiddenfeed.shell import exit_code_of; raise SystemExit(exit_code_of(lambda: print('Grüße ✓') or 0))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONIOENCODING": "latin-1"}, capture_output=True
    )
    assert (done.returncode, done.stdout.decode("latin-1"), done.stderr) == (0, "Grüße \\u2713\n", b"")


def test_a_commands_own_default_is_shown_and_used(capsys: pytest.CaptureFixture[str]) -> None:
    def body(settings: Resolved, arguments: argparse.Namespace) -> int:
        print(settings.group(HomeSettings).home, settings.sources["home"])
        return 0

    command = Command("thing go", "Go there.", [HomeSettings], body, defaults={"home": "demo"})
    assert "(default demo;" in command.parser.format_help()
    assert command.run([]) == 0
    assert command.run(["--home", "x"]) == 0
    assert capsys.readouterr().out == "demo default\nx flag --home\n"


def test_a_body_gets_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert _command().run(["--store", "x", "--upload-parallelism", "7"]) == 0
    assert capsys.readouterr().out == "parallelism 7\n"


def test_show_config_names_each_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDENFEED_UPLOAD_PARALLELISM", "9")
    assert _command().run(["--store", "x", "--show-config"]) == 0
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert ["store", "x", "flag --store"] in lines
    assert ["upload_parallelism", "9", "environment HIDDENFEED_UPLOAD_PARALLELISM"] in lines


def test_a_missing_setting_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert _command().run([]) == 2
    assert capsys.readouterr().err.startswith("error: --store (or HIDDENFEED_STORE) must be given")


def test_dispatch_lists_and_finds_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch("thing", "Things.", [_command()], ["--help"]) == 0
    assert "go           Go there." in capsys.readouterr().out
    assert dispatch("thing", "Things.", [_command()], ["fly"]) == 2
    assert "unknown command 'fly'\n" in capsys.readouterr().err
    assert dispatch("thing", "Things.", [_command()], ["goo"]) == 2
    assert "unknown command 'goo'; did you mean go?" in capsys.readouterr().err
    assert dispatch("thing", "Things.", [_command()], ["go", "--store", "x"]) == 0


def test_a_flag_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        _command().run(["--store", "x", "--upload-paralelism", "5"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "error: there is no flag --upload-paralelism; did you mean --upload-parallelism? thing go --help tells more\n"
    )


def test_show_config_teaches_before_anything_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert _command().run(["--show-config"]) == 0
    assert "required" in next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("store")
    )
