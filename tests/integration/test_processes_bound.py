"""Processes that are recorded, recognised and ended; the supervisor over real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from standalone import process
from standalone.home import Home
from standalone.process import wait_until
from standalone.restart import GiveUp
from standalone.roles import Role
from standalone.supervisor import Supervisor

ROOT = Path(__file__).parent.parent.parent


def _role(name: str, code: str) -> Role:
    return Role(name, (sys.executable, "-c", textwrap.dedent(code)), dict(os.environ))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    with home.locked():
        yield home


@pytest.fixture
def supervisor(home: Home) -> Iterator[Supervisor]:
    supervisor = Supervisor(home)
    yield supervisor
    supervisor.stop_all(0)


def _record(home: Home, name: str) -> process.ProcessRecord:
    assert wait_until(lambda: process.read_record(home.record_path(name)) is not None, 20)
    record = process.read_record(home.record_path(name))
    assert record
    return record


def test_a_killed_role_is_started_again(home: Home, supervisor: Supervisor) -> None:
    supervisor.start(_role("sleeper", "import time; time.sleep(600)"))
    first = _record(home, "sleeper")
    os.kill(first.pid, signal.SIGKILL)
    assert wait_until(lambda: supervisor.step() is None and supervisor.restarts == 1, 20)
    assert _record(home, "sleeper") != first
    assert "killed by signal 9" in supervisor.trouble


def test_an_error_sentence_of_a_role_ends_everything(supervisor: Supervisor) -> None:
    supervisor.start(
        _role("chatty", "import sys; print('error: the bucket is gone', file=sys.stderr); sys.exit(2)")
    )
    verdicts: list[GiveUp] = []

    def given_up() -> bool:
        verdict = supervisor.step()
        if verdict:
            verdicts.append(verdict)
        return verdict is not None

    assert wait_until(given_up, 20)
    assert verdicts == [GiveUp("the bucket is gone", 2, "chatty")]


def test_a_role_may_finish_if_it_is_meant_to(supervisor: Supervisor) -> None:
    supervisor.start(_role("short", "print('done')"))
    assert wait_until(lambda: supervisor.finished("short"), 20)
    assert supervisor.step(may_finish=["short"]) is None
    assert supervisor.restarts == 0
    assert supervisor.output("short") == ["done"]


def test_stop_asks_all_at_once_and_kills_those_that_stay(home: Home, supervisor: Supervisor) -> None:
    supervisor.start(_role("gentle", "import time; time.sleep(600)"))
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    supervisor.start(_role("stubborn", stubborn))
    assert wait_until(lambda: supervisor.output("stubborn") == ["deaf"], 20)
    records = [_record(home, name) for name in ("gentle", "stubborn")]
    supervisor.stop_all(0.5)
    assert not any(record.alive() for record in records)


RUNNER = """
    import sys, time
    from pathlib import Path
    from standalone.home import Home
    from standalone.roles import Role
    from standalone.supervisor import Supervisor
    home = Home(Path(sys.argv[1]))
    with home.locked():
        Supervisor(home).start(Role("orphan", (sys.executable, "-c", "import time; time.sleep(600)"), {}))
        print("started", flush=True)
        time.sleep(600)
"""


def _killed_runner(home: Path) -> None:
    """A runner that started a role and was killed without a chance to end it."""
    code = textwrap.dedent(RUNNER)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(home)], stdout=subprocess.PIPE, cwd=ROOT
    ) as runner:
        assert runner.stdout is not None
        assert runner.stdout.readline() == b"started\n"
        assert wait_until(lambda: process.read_record(home / "roles" / "orphan") is not None, 20)
        runner.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its starter died")
def test_roles_end_with_a_killed_runner(tmp_path: Path) -> None:
    _killed_runner(tmp_path)
    assert wait_until(lambda: process.read_record(tmp_path / "roles" / "orphan") is None, 20)


def test_leftovers_of_a_killed_runner_are_ended(home: Home) -> None:
    # A role that does not hear that its starter died: as on systems that do not tell it.
    started = process.start(
        home.record_path("left"),
        [sys.executable, "-c", "import time; time.sleep(600)"],
        log=home.log_path("left"),
    )
    record = _record(home, "left")
    assert home.stop_leftovers() == ["left"]
    assert not record.alive()
    started.wait()
    assert home.stop_leftovers() == []


def test_a_stranger_with_the_recorded_pid_is_left_alone(home: Home) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as stranger:
        assert wait_until(lambda: process.record_of(stranger.pid) is not None, 20)
        home.record_path("role").write_text(f'{{"pid": {stranger.pid}, "started": "another time"}}')
        assert home.stop_leftovers() == []
        assert stranger.poll() is None
        stranger.kill()


def test_a_process_is_recorded_before_it_runs(tmp_path: Path) -> None:
    record_path = tmp_path / "record"
    code = "import json, os, sys; sys.exit(json.load(open(sys.argv[1]))['pid'] != os.getpid())"
    child = process.start(record_path, [sys.executable, "-c", code, str(record_path)], log=tmp_path / "log")
    assert child.wait() == 0
