"""`python -m uploader doctor`: tries what the uploader needs of a store, in a scratch prefix, and tells the settings to use."""

from __future__ import annotations

import argparse

from common.cli import Command
from common.settings.catalogue import StoreSettings
from common.settings.resolve import Resolved
from hiddenfeed.errors import ConfigError
from hiddenfeed.options import StoreOptions
from hiddenfeed.shell import say
from hiddenfeed.store.s3_client import make_client, make_session
from uploader.scratch import Finding, Report
from uploader.trials import try_store

#: Of the longest trial's name.
_WIDTH = 42
#: boto3's names of where credentials come from.
_METHODS = {
    "env": "the environment",
    "shared-credentials-file": "the credentials file",
    "config-file": "the config file",
    "custom-process": "the profile's credential_process",
    "assume-role": "an assumed role",
    "assume-role-with-web-identity": "a role of a web identity",
    "container-role": "the container's role",
    "iam-role": "the machine's role",
    "sso": "single sign-on",
}

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
    url, options = settings.group(StoreSettings).store, settings.group(StoreOptions)
    if not url.startswith("s3://"):
        raise ConfigError(f"the doctor looks at stores in S3, and {url} is a folder, which needs no settings")
    for line in heading(url, options):
        say(line)
    report = try_store(url, options, lambda finding: say(row(finding)))
    for line in advice(report):
        say(line)
    return 0 if report.usable else 1


def heading(url: str, options: StoreOptions) -> list[str]:
    """What is looked at, and with whose keys; raises ConfigError for options that cannot work."""
    _, endpoint = make_client(options)
    credentials = make_session(options).get_credentials()
    found = "nowhere" if credentials is None else _METHODS.get(credentials.method, credentials.method)
    return [f"{url} at {endpoint}; credentials from {found}", ""]


def row(finding: Finding) -> str:
    """One line for one trial."""
    return f"{finding.what:{_WIDTH}}  {finding.mark:5}  {finding.detail}".rstrip()


def advice(report: Report) -> list[str]:
    """What to do, for people."""
    if not report.usable:
        reasons = "; ".join(f"{each.what}: {each.detail}" for each in report.findings if each.mark == "FAILS")
        return ["", f"This store cannot be used as it is. {reasons}"]
    lacks = [each for each in report.findings if each.mark == "lacks"]
    legend = ["", "What it lacks the uploader does without, as said beside it."] if lacks else []
    if not report.settings:
        return [*legend, "", "This store can be used with the settings as they are."]
    flags = " ".join(_flag(name.replace("_", "-"), value) for name, value in report.settings.items())
    variables = [f"  HIDDENFEED_{name.upper()}={value}" for name, value in report.settings.items()]
    return [
        *legend,
        "",
        "This store can be used if every role that writes or reads it is given",
        f"  {flags}",
        "or, in the environment,",
        *variables,
    ]


def _flag(name: str, value: str) -> str:
    return {"true": f"--{name}", "false": f"--no-{name}"}.get(value, f"--{name} {value}")
