"""Who uses a home's servers, and who ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hiddenfeed.errors import ConfigError
from standalone.users import Users

_HOLD = """
import sys
from pathlib import Path
from standalone.users import Users
Users(Path(sys.argv[1])).join(lambda alone: print(alone, flush=True), lambda: print("stopped", flush=True))
sys.stdin.read()
"""


class _Servers:
    """Counts what would be done to servers."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def start(self, alone: bool) -> str:
        self.told.append(alone)
        return "ready"

    def stop(self) -> None:
        self.told.append("stopped")


def test_the_last_one_ends_the_servers_whoever_started_them(tmp_path: Path) -> None:
    servers, first, second = _Servers(), Users(tmp_path), Users(tmp_path)
    assert first.join(servers.start, servers.stop) == "ready"
    assert second.join(servers.start, servers.stop) == "ready"
    assert first.leave(servers.stop) is False
    assert servers.told == [True, False]
    assert second.leave(servers.stop) is True
    assert second.leave(servers.stop) is False  # once is enough
    assert servers.told == [True, False, "stopped"]


def test_who_cannot_start_has_left_again(tmp_path: Path) -> None:
    servers, users = _Servers(), Users(tmp_path)

    def fail(alone: bool) -> None:
        raise ConfigError("no such bucket")

    with pytest.raises(ConfigError, match="no such bucket"):
        Users(tmp_path).join(fail, servers.stop)
    assert servers.told == ["stopped"]
    # Beside another one nothing is ended.
    users.join(servers.start, servers.stop)
    with pytest.raises(ConfigError):
        Users(tmp_path).join(fail, servers.stop)
    assert servers.told == ["stopped", True]
    users.leave(servers.stop)


def test_nobody_may_be_in_when_everything_is_ended(tmp_path: Path) -> None:
    users, servers = Users(tmp_path), _Servers()
    users.join(servers.start, servers.stop)
    with pytest.raises(ConfigError, match="are in use by another"), Users(tmp_path).nobody():
        pass
    users.leave(servers.stop)
    with Users(tmp_path).nobody():
        pass


def test_a_killed_process_uses_nothing_any_more(tmp_path: Path) -> None:
    users, servers = Users(tmp_path), _Servers()
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        users.join(servers.start, servers.stop)
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
    assert users.leave(servers.stop) is True
    assert servers.told == [False, "stopped"]
