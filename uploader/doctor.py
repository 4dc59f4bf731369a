"""`python -m uploader doctor`: tries what the uploader needs of a store, in a scratch prefix, and tells the settings to use."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from common.cli import Command
from common.settings.catalogue import StoreSettings
from common.settings.resolve import Resolved
from hiddenfeed.errors import ConfigError
from hiddenfeed.options import StoreOptions
from uploader.scratch import Finding, Report
from uploader.trials import try_store

_EPILOG = """\
It writes a few small objects and one of 10 MiB below the store's root, in a folder of its own that
it removes again, and prints what the store can do and which settings fit it.

examples:
  python -m uploader doctor --store s3://bucket/runs --s3-endpoint http://127.0.0.1:8333
  python -m uploader doctor --store s3://bucket/runs --s3-profile lab

Exit codes: 0 the store is usable with the settings printed, 1 it is not, 2 a setting is wrong, 75
the store is away.
"""


def doctor_command() -> Command:
    """The command line of the doctor."""
    return Command(
        "python -m uploader doctor",
        "Find out what a store can do and which settings fit it.",
        (StoreSettings, StoreOptions),
        _run,
        epilog=_EPILOG,
    )


def _run(settings: Resolved, arguments: argparse.Namespace) -> int:
    url = settings.group(StoreSettings).store
    if not url.startswith("s3://"):
        raise ConfigError(f"the doctor looks at stores in S3, and {url} is a folder, which needs no settings")
    report = try_store(url, settings.group(StoreOptions))
    for line in table(report.findings):
        print(line)
    for line in advice(report):
        print(line)
    return 0 if report.usable else 1


def table(findings: Sequence[Finding]) -> list[str]:
    """One line per trial."""
    width = max(len(finding.what) for finding in findings)
    return [f"{finding.what:{width}}  {finding.mark:5}  {finding.detail}".rstrip() for finding in findings]


def advice(report: Report) -> list[str]:
    """What to do, for people."""
    if not report.usable:
        reasons = "; ".join(f"{each.what}: {each.detail}" for each in report.findings if each.mark == "FAILS")
        return ["", f"This store cannot be used as it is. {reasons}"]
    if not report.settings:
        return ["", "This store can be used with the settings as they are."]
    flags = " ".join(_flag(name.replace("_", "-"), value) for name, value in report.settings.items())
    variables = [f"  HIDDENFEED_{name.upper()}={value}" for name, value in report.settings.items()]
    return ["", f"This store can be used with: {flags}", "or in the environment:", *variables]


def _flag(name: str, value: str) -> str:
    return {"true": f"--{name}", "false": f"--no-{name}"}.get(value, f"--{name} {value}")
