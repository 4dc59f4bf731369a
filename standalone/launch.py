"""Becomes another program after writing down who it is, so that whoever comes later finds it.

Run as `python -E -S launch.py [--bound STARTER-PID] RECORD PROGRAM [ARGUMENT…]`. The record is written by the very process
that becomes the program, so there is no moment at which the program runs unrecorded, even if its
starter is killed right after starting it. The record's lock file stays locked as long as the program
lives, so a second start beside a living one refuses with exit code 75. Standard library only: it runs
without site-packages to start quickly.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ALREADY_RUNNING = 75
ORPHANED = 76
_PR_SET_PDEATHSIG = 1


def start_time(pid: int) -> str | None:
    """When the process started, as an opaque text that no later process of this pid shares; None if it does not run.

    A process that has ended but was not waited for yet (a zombie) does not run.
    """
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            # The program's name is in parentheses and may hold spaces; fields are counted after it.
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[0] in "ZX" else f"{_boot_id()}:{fields[19]}"
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, started = shown.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


def write_record(path: Path, pid: int) -> None:
    """Write `{"pid", "started"}` of a running process, whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps({"pid": pid, "started": start_time(pid)}))
    part.replace(path)


def _boot_id() -> str:
    # Start times count from boot: without the boot's own id two boots could give the same pair.
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return ""


def _end_with(starter: int) -> bool:
    """Have the kernel send SIGTERM to this process when its starter ends; False if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return os.getppid() == starter


def main(arguments: list[str]) -> int:
    """Record this process and turn it into the program; returns only if that is not possible."""
    if arguments[0] == "--bound":
        if not _end_with(int(arguments[1])):
            return ORPHANED
        arguments = arguments[2:]
    record, program = Path(arguments[0]), arguments[1:]
    lock = os.open(record.with_name(record.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return ALREADY_RUNNING
    os.set_inheritable(lock, True)
    write_record(record, os.getpid())
    try:
        os.execv(program[0], program)  # noqa: S606
    except OSError as error:
        print(f"cannot run {program[0]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
