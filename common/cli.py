"""The shell of every command: parse, resolve settings, run, and turn errors into exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from common.settings.resolve import Resolved, add_flags, resolve
from hiddenfeed.errors import HiddenfeedError
from hiddenfeed.shell import Parser, exit_code_of
from hiddenfeed.words import nearest_text

#: A command's body: gets its settings and the parsed arguments that are not settings; returns the exit code.
Body = Callable[[Resolved, argparse.Namespace], int]


class Command:
    """One command line with settings of some groups, `--help` made from them, and `--show-config`."""

    def __init__(
        self,
        prog: str,
        summary: str,
        groups: Sequence[type[msgspec.Struct]],
        body: Body,
        epilog: str = "",
        *,
        complete: Callable[[argparse.Namespace], bool] = lambda parsed: True,
        defaults: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`complete` says of the parsed arguments whether the required settings must be given.

        `defaults`, by setting name, are those in which this command differs from the declarations.
        """
        self._complete = complete
        self.prog, self.summary, self.groups, self.body = prog, summary, tuple(groups), body
        self.parser = Parser(
            prog=prog,
            description=summary,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.parser.add_argument(
            "--show-config",
            action="store_true",
            help="print every setting with its value and source, those changed in the running fleet included, and stop",
        )
        self._defaults = defaults
        add_flags(self.parser, self.groups, defaults)

    def run(self, arguments: Sequence[str]) -> int:
        """Run with the process's environment; returns the exit code, errors printed as one line."""
        parsed = self.parser.parse_args(arguments)
        return exit_code_of(lambda: self._run(parsed))

    def _run(self, parsed: argparse.Namespace) -> int:
        complete = not parsed.show_config and self._complete(parsed)
        settings = resolve(self.groups, parsed, os.environ, complete=complete, defaults=self._defaults)
        if not parsed.show_config:
            return self.body(settings, parsed)
        for name, value, source in _as_a_process_sees_them(settings).table():
            print(f"{name:32} {value:32} {source}")
        return 0


def dispatch(prog: str, summary: str, commands: Sequence[Command], arguments: Sequence[str]) -> int:
    """Run the command named by the first argument; without one, or with --help, list them all."""
    by_name = {command.prog.rsplit(" ", 1)[-1]: command for command in commands}
    if arguments and arguments[0] in by_name:
        return by_name[arguments[0]].run(arguments[1:])
    stream = sys.stdout if arguments and arguments[0] in ("-h", "--help") else sys.stderr
    print(
        f"usage: {prog} COMMAND [--help]\n\n{summary} COMMAND --help says more of each.\n\ncommands:",
        file=stream,
    )
    for name, command in by_name.items():
        print(f"  {name:12} {command.summary.splitlines()[0]}", file=stream)
    if stream is sys.stderr and arguments:
        print(
            f"\nerror: unknown command {arguments[0]!r}{nearest_text(arguments[0], by_name)}", file=sys.stderr
        )
    return 0 if stream is sys.stdout else 2


def _as_a_process_sees_them(settings: Resolved) -> Resolved:
    """With what is changed in the running fleet laid over, where a Redis is among the settings and answers."""
    # Only this needs Redis's client; most commands of the library have none.
    import redis

    from common.redis_client import make_client
    from common.settings.catalogue import RedisSettings
    from common.settings.live import overlay, read_live

    if RedisSettings not in settings.groups:
        return settings
    try:
        seen = read_live(make_client(settings.group(RedisSettings)))
    except (HiddenfeedError, redis.RedisError) as error:
        print(f"without what may be changed in the running fleet: {error}", file=sys.stderr)
        return settings
    settings, complaints = overlay(settings, seen)
    for complaint in complaints:
        print(f"ignored: {complaint}", file=sys.stderr)
    return settings
