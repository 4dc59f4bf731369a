"""One spool, several processes: the cap holds between them, and a killed one's half-written file is swept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from common.settings.catalogue import SpoolSettings
from common.spool import Spool

MIB = 1024 * 1024
CAP = 20 * MIB

#: Waits for a line, then reserves 1 MiB files until there is no room; every other one is published.
_GREEDY = """
import sys
from common.settings.catalogue import SpoolSettings
from common.spool import Spool

spool = Spool(SpoolSettings(spool_dir=sys.argv[1], spool_cap_bytes=int(sys.argv[2]), spool_free_bytes=0))
print("ready", flush=True)
sys.stdin.readline()
kept = []
while (part := spool.reserve("run-1", len(kept), f"p{sys.argv[3]}n{len(kept)}", 1 << 20)) is not None:
    kept.append(part)
    if len(kept) % 2:
        part.publish()
print(len(kept), flush=True)
sys.stdin.readline()
"""


def start(spool_dir: Path, number: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", _GREEDY, str(spool_dir), str(CAP), str(number)]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_processes_share_the_cap_and_the_dead_give_back_what_was_half_written(tmp_path: Path) -> None:
    spool = Spool(SpoolSettings(spool_dir=str(tmp_path), spool_cap_bytes=CAP, spool_free_bytes=0))
    processes = [start(tmp_path, number) for number in range(4)]
    try:
        assert [hear(process) for process in processes] == ["ready"] * 4
        for process in processes:
            say(process)
        taken = [int(hear(process)) for process in processes]
        assert sum(taken) == 20, "together they took more, or less, than the cap allows"
        usage = spool.usage()
        assert usage.bytes + usage.part_bytes == CAP
        published, half = usage.files, usage.part_bytes // MIB
        assert spool.sweep() == [], "a living writer's file was taken away"
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert len(spool.sweep()) == half
    usage = spool.usage()
    assert (usage.files, usage.part_bytes) == (published, 0)
    assert spool.has_room(half * MIB)
