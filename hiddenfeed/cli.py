"""`hiddenfeed`: verify, show, sample and tidy, for anyone who can read the store; only `tidy --remove` changes it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import msgspec

from hiddenfeed.errors import ConfigError, DataError
from hiddenfeed.layout import run_document_key
from hiddenfeed.options import StoreOptions
from hiddenfeed.reader import RunReader, split_run_url
from hiddenfeed.report import list_lines, run_lines, sample_lines, tidy_lines, verification_lines
from hiddenfeed.run_list import list_runs
from hiddenfeed.shell import Parser, exit_code_of, say
from hiddenfeed.skipped import count_reasons
from hiddenfeed.store import Store, open_store
from hiddenfeed.store_flags import add_store_flags, store_options
from hiddenfeed.tidy import find_strays, remove
from hiddenfeed.verify import verify

_TOKENS_SHOWN = 20
_EPILOG = """\
COMMAND --help says more of each. Exit codes: 0 it is so, 2 a setting is wrong, 65 the run is not complete or something
in it is not as it should be, 75 the store is away.

examples:
  hiddenfeed show s3://my-bucket/states                              # the runs there
  hiddenfeed verify s3://my-bucket/states/my-run-0123456789ab
"""
_URL = "s3://my-bucket/states/my-run-0123456789ab"
#: By command: what it does, what its URL may be, and examples.
_HELP = {
    "verify": (
        "prove from the store alone that a run is complete",
        "the run: s3://bucket/prefix/<run id>, or its folder",
        f"  hiddenfeed verify {_URL}\n  hiddenfeed verify {_URL} --deep --json",
    ),
    "show": (
        "say what a run is, how far it is and where its files are, or list the runs of a store",
        "a run (s3://bucket/prefix/<run id>, or its folder), or the root of several",
        f"  hiddenfeed show s3://my-bucket/states\n  hiddenfeed show {_URL} --json",
    ),
    "sample": (
        "print one sample: its tokens, its loss mask, and the norms of its states",
        "the run: s3://bucket/prefix/<run id>, or its folder",
        f"  hiddenfeed sample {_URL} row-17\n  hiddenfeed sample {_URL} --position 0 --all",
    ),
    "tidy": (
        "list what lies among a run's batches and is not of the run, and so keeps it from being proven",
        "the run: s3://bucket/prefix/<run id>, or its folder",
        f"  hiddenfeed tidy {_URL}\n  hiddenfeed tidy {_URL} --remove",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors are one line on stderr."""
    flags = _parser().parse_args(arguments)
    return exit_code_of(lambda: flags.body(flags))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="hiddenfeed",
        description="Look at runs of hidden states in a folder or in S3.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    bodies = {"verify": _verify, "show": _show, "sample": _sample, "tidy": _tidy}
    for name, (summary, url, examples) in _HELP.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.set_defaults(body=bodies[name])
        command.add_argument("url", metavar="URL", help=url)
        _add_flags(command, name)
        add_store_flags(command)
    return parser


def _add_flags(command: argparse.ArgumentParser, name: str) -> None:
    """The flags of one command that do not say where S3 is."""
    if name == "sample":
        command.add_argument("sample_id", metavar="ID", nargs="?", help="the sample's id")
        command.add_argument(
            "--position", type=int, metavar="N", help="its position in the run, in place of its id"
        )
        command.add_argument(
            "--all", action="store_true", help=f"print all tokens, not only the first {_TOKENS_SHOWN}"
        )
        return
    command.add_argument("--json", action="store_true", help="print one JSON document in place of text")
    if name == "verify":
        command.add_argument(
            "--deep",
            action="store_true",
            help="read every file and check every tensor's checksum, and the whole file's where the store tells it",
        )
    if name == "tidy":
        command.add_argument(
            "--remove",
            action="store_true",
            help="delete what is listed; a batch whose file or note goes is extracted again by `python -m producer wait`",
        )
        command.add_argument("--deep", action="store_true", help="read every byte of the batch files, too")


def _verify(flags: argparse.Namespace) -> int:
    store, run_id = _open(flags)
    progress = _progress if sys.stderr.isatty() else None
    verification = verify(store, run_id, deep=flags.deep, progress=progress)
    _print(flags, verification, verification_lines(verification))
    return 0


def _show(flags: argparse.Namespace) -> int:
    options = store_options(flags, os.environ)
    found = _run_at(flags, options)
    if found is not None:
        info = RunReader(*found).info()
        reasons = count_reasons(*found) if info.skipped and not flags.json else []
        _print(flags, info, run_lines(info, reasons))
        return 0
    store = open_store(flags.url, options)
    store.check()
    runs = list_runs(store)
    _print(flags, runs, list_lines(flags.url, runs))
    return 0


def _sample(flags: argparse.Namespace) -> int:
    if (flags.sample_id is None) == (flags.position is None):
        raise ConfigError("give the sample's id, or its position with --position")
    reader = RunReader(*_open(flags))
    position = flags.position if flags.sample_id is None else reader.position_of(flags.sample_id)
    if not 0 <= position < len(reader):
        raise DataError(
            f"run {reader.run_id} has no sample at position {position}: {len(reader)} can be read"
        )
    for line in sample_lines(reader.read(position), position, None if flags.all else _TOKENS_SHOWN):
        say(line)
    return 0


def _tidy(flags: argparse.Namespace) -> int:
    store, run_id = _open(flags)
    progress = _progress if sys.stderr.isatty() else None
    strays = find_strays(store, run_id, deep=flags.deep, progress=progress)
    if flags.remove:
        strays = [*remove(store, strays), *(stray for stray in strays if not stray.removable)]
    _print(flags, strays, tidy_lines(strays, f"{store.url.rstrip('/')}/{run_id}", removed=flags.remove))
    return 0


def _open(flags: argparse.Namespace) -> tuple[Store, str]:
    root, run_id = split_run_url(flags.url)
    return open_store(root, store_options(flags, os.environ)), run_id


def _run_at(flags: argparse.Namespace, options: StoreOptions) -> tuple[Store, str] | None:
    """The run at the URL; None if the URL is that of a store, or of nothing."""
    try:
        root, run_id = split_run_url(flags.url)
    except ConfigError:
        return None
    store = open_store(root, options)
    return (store, run_id) if store.head(run_document_key(run_id)) else None


def _print(flags: argparse.Namespace, document: object, lines: Sequence[str]) -> None:
    if flags.json:
        print(msgspec.json.encode(document).decode())
    else:
        say(*lines)


def _progress(what: str, done: int, total: int) -> None:
    print(f"\r{what}: {done:,} of {total:,}", end="\n" if done == total else "", file=sys.stderr, flush=True)
