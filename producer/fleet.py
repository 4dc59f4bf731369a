"""`set` and `priority`: changing what a running fleet does, without a restart."""

from __future__ import annotations

import argparse

from common.redis_client import connect, make_client
from common.run_state import set_run_priority
from common.settings.catalogue import RedisSettings
from common.settings.declaration import Setting
from common.settings.live import clear_live, live_settings, read_live, set_live
from common.settings.resolve import Resolved, parse_value, shown_value
from hiddenfeed.errors import ConfigError
from hiddenfeed.layout import check_run_id
from producer.bootstrap import open_console

SET_HELP = """\
Every process of the fleet takes the new value within three seconds, whatever it was started with.
Without NAME=VALUE, lists what can be changed and what is set now. NAME= lets every process use its
own value again.

examples:
  python -m producer set                                                # what can be set, and what is
  python -m producer set upload_parallelism=500 spool_cap_bytes=200GB
  python -m producer set upload_parallelism=                            # each process its own again
"""


def split_assignments(texts: list[str]) -> tuple[dict[str, str], list[str]]:
    """`name=value` texts as (values to set, names to clear); raises ConfigError for any other text."""
    values: dict[str, str] = {}
    cleared: list[str] = []
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise ConfigError(f"{text!r} is not NAME=VALUE")
        if value.strip():
            values[name] = value.strip()
        else:
            cleared.append(name)
    return values, cleared


def set_settings(settings: Resolved, arguments: argparse.Namespace) -> int:
    """Set and clear live settings, then list them."""
    console = open_console(settings)
    values, cleared = split_assignments(arguments.assignments)
    client = connect(settings.group(RedisSettings))
    set_live(client, values)
    clear_live(client, cleared)
    now = read_live(client)
    for name, setting in live_settings().items():
        value = _shown(setting, now[name]) if name in now else "each process its own"
        console.result(f"{name:27} {value:24} {setting.help}")
    return 0


def _shown(setting: Setting, raw: str) -> str:
    """A live value for people, also one that every process ignores."""
    try:
        return shown_value(setting, parse_value(setting, raw, setting.name))
    except ConfigError:
        return f"{raw[:20]!r} (ignored)"


def priority(settings: Resolved, arguments: argparse.Namespace) -> int:
    """Workers that look for a run take the one of the highest priority, then the oldest."""
    console = open_console(settings)
    try:
        wanted = int(arguments.priority)
    except ValueError:
        raise ConfigError(f"priority {arguments.priority!r} is not a whole number") from None
    client = make_client(settings.group(RedisSettings))
    record = set_run_priority(client, check_run_id(arguments.target), wanted)
    console.result(
        f"run {record.run_id} has priority {record.priority}; runs start with 0, higher goes first"
    )
    return 0
