"""The shell of a command: its flags, and what its body raises as one line on stderr with the exit code."""

from __future__ import annotations

import argparse
import errno
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

from hiddenfeed.errors import HiddenfeedError, TransientError
from hiddenfeed.words import nearest_text, visible_text

#: What argparse says, and what it means.
_IN_OUR_WORDS = (
    (r"^argument (\S+): invalid int value: (.*)$", r"\1 \2 cannot be used: it takes a whole number"),
    (r"^argument (\S+): invalid float value: (.*)$", r"\1 \2 cannot be used: it takes a number"),
    (r"^argument (\S+): expected one argument$", r"\1 needs a value behind it"),
    (r"^argument (\S+): not allowed with argument (\S+)$", r"give \1 or \2, not both"),
    (r"^the following arguments are required: (.*)$", r"\1 is missing"),
)
#: What writing to a file fails with that has no more room, or may have none.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one line that names what may be meant, and whose usage is one line too."""

    def format_help(self) -> str:
        """The help; flags are listed in it, and not in its first lines as well."""
        if self.usage is None:
            words = (_usage_of(action) for action in self._actions if not action.option_strings)
            self.usage = " ".join([self.prog, "[FLAGS]", *words]).replace("%", "%%")
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and exit with 2."""
        unknown = re.match(r"unrecognized arguments: (-[^\s=]*)?(\S*)", message)
        if unknown and unknown[1]:
            message = f"there is no flag {unknown[1]}{nearest_text(unknown[1], self._flags())}"
        elif unknown:
            message = f"{unknown[2]!r} is one word too many"
        chosen = re.search(r"invalid choice: '([^']*)'", message)
        if chosen:
            message = f"there is no command {chosen[1]!r}{nearest_text(chosen[1], self._commands())}"
        for pattern, words in _IN_OUR_WORDS:
            message = re.sub(pattern, words, message)
        self.exit(
            2, f"error: {message}{'' if message.endswith('?') else ';'} {self.prog} --help tells more\n"
        )

    def _flags(self) -> Iterator[str]:
        """The long flags of this command and of those below it."""
        for action in self._actions:
            yield from (flag for flag in action.option_strings if flag.startswith("--"))
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    yield from command._flags()

    def _commands(self) -> Iterator[str]:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from action.choices


def say(*lines: str) -> None:
    """Print lines of a result, in which nothing that they quote does more than stand there."""
    for line in lines:
        print(visible_text(line), flush=True)


def _usage_of(positional: argparse.Action) -> str:
    name = str(positional.metavar)
    return {"?": f"[{name}]", "*": f"[{name} …]"}.get(str(positional.nargs), name)


def exit_code_of(body: Callable[[], int]) -> int:
    """What `body` returns, or the exit code of what it raised: 130 when interrupted."""
    for stream in (sys.stdout, sys.stderr):
        # A name or a sign that the terminal's encoding has not got is no reason to stop.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = body()
        sys.stdout.flush()
        return code
    except HiddenfeedError as error:
        print(f"error: {visible_text(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read us has seen enough; nothing more can be written, not even at exit.
        _write_no_more()
        return 0
    except OSError as error:
        # Of a file it has opened by name, Python tells the name.
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        _write_no_more()
        print(f"error: the output cannot be written: {os.strerror(error.errno).lower()}", file=sys.stderr)
        return TransientError.exit_code


def _write_no_more() -> None:
    """Not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
