"""The supervisor over real processes: restarts, passed-on signals, exit codes, and its own sudden end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpu_worker import fleet
from gpu_worker.fleet import Worker
from gpu_worker.supervisor import Supervisor
from tests.worker_rig import wait_until

_ROOT = Path(__file__).parents[2]
#: Writes its pid and waits for SIGTERM, at which it ends with the code it was given.
_PATIENT = """
import os, signal, sys
def leave(number, frame):
    sys.exit(int(sys.argv[2]))
signal.signal(signal.SIGTERM, leave)
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()}\\n")
while True:
    signal.pause()
"""


def _workers(folder: Path, *codes: int) -> list[Worker]:
    return [Worker(str(number), (str(folder / str(number)), str(code))) for number, code in enumerate(codes)]


def _supervisor(workers: Sequence[Worker], code: str = _PATIENT) -> Supervisor:
    return Supervisor(workers, command=(sys.executable, "-S", "-E", "-c", textwrap.dedent(code)))


def _pids(folder: Path, name: str) -> list[int]:
    path = folder / name
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def _meanwhile(act: Callable[[], None]) -> threading.Thread:
    """`act` beside the supervisor, which needs the main thread for its signals."""
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_killed_worker_is_started_again_and_all_end_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "_FIRST_PAUSE_SECONDS", 0.01)

    def act() -> None:
        wait_until(lambda: bool(_pids(tmp_path, "0")) and bool(_pids(tmp_path, "1")))
        os.kill(_pids(tmp_path, "0")[0], signal.SIGKILL)
        wait_until(lambda: len(_pids(tmp_path, "0")) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = _meanwhile(act)
    assert _supervisor(_workers(tmp_path, 0, 0)).run() == 0
    thread.join()
    assert len(_pids(tmp_path, "1")) == 1
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_worker_that_did_not_end_well_gives_the_exit_code(tmp_path: Path) -> None:
    def act() -> None:
        wait_until(lambda: all(_pids(tmp_path, name) for name in "01"))
        os.kill(os.getpid(), signal.SIGINT)

    thread = _meanwhile(act)
    assert _supervisor(_workers(tmp_path, 0, 75)).run() == 75
    thread.join()


def test_wrong_setting_ends_them_all(tmp_path: Path) -> None:
    code = f"""
    import sys
    if sys.argv[2] == "2":
        sys.exit(2)
    {textwrap.indent(_PATIENT, "    ").strip()}
    """
    assert _supervisor(_workers(tmp_path, 0, 2), code).run() == 2


def test_workers_that_are_done_end_it() -> None:
    assert _supervisor([Worker("a", ()), Worker("b", ())], "").run() == 0


def test_killed_supervisor_takes_its_workers_along(tmp_path: Path) -> None:
    program = f"""
    from tests.integration.test_fleet_processes import _supervisor, _workers
    from pathlib import Path
    _supervisor(_workers(Path({str(tmp_path)!r}), 0)).run()
    """
    supervisor = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], cwd=_ROOT)
    try:
        wait_until(lambda: bool(_pids(tmp_path, "0")), 60)
    finally:
        supervisor.kill()
        supervisor.wait()
    (pid,) = _pids(tmp_path, "0")
    wait_until(lambda: _ended(pid))


def _ended(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
