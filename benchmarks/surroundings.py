"""What a worker meets around its device: a slow disk, an uploader that reads beside it, no writer's thread; and what it took."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from benchmarks.emulated_device import wait_until
from common.part_file import PartFile
from common.settings.catalogue import SpoolSettings
from common.spool import Spool

ArgumentsT = ParamSpec("ArgumentsT")
ResultT = TypeVar("ResultT")


class AtOnce(Executor):
    """No thread: who asks for something does it."""

    def submit(
        self,
        call: Callable[ArgumentsT, ResultT],
        /,
        *arguments: ArgumentsT.args,
        **keywords: ArgumentsT.kwargs,
    ) -> Future[ResultT]:
        future: Future[ResultT] = Future()
        try:
            future.set_result(call(*arguments, **keywords))
        except Exception as error:  # noqa: BLE001 - it is raised by whoever asks for the result
            future.set_exception(error)
        return future


class SlowSpool(Spool):
    """A spool on a disk of one speed, without a cache: a write returns when the disk has it."""

    def __init__(self, settings: SpoolSettings, bytes_per_second: float) -> None:
        super().__init__(settings)
        self._rate, self._free_at, self._turn = bytes_per_second, 0.0, threading.Lock()

    def reserve(self, *arguments: Any, **keywords: Any) -> PartFile | None:
        """A file whose writes take their time."""
        part = super().reserve(*arguments, **keywords)
        if part is not None:
            at_once = part.write_at

            def write_at(data: bytes | bytearray | memoryview, offset: int) -> None:
                with self._turn:
                    begin = max(time.perf_counter(), self._free_at)
                    end = self._free_at = begin + memoryview(data).nbytes / self._rate
                at_once(data, offset)
                wait_until(end)

            part.write_at = write_at  # type: ignore[method-assign]
        return part


class Reader:
    """A process that reads files whole, sums their bytes and removes them, as an uploader does."""

    _PROGRAM = """
import sys
from pathlib import Path
from hiddenfeed.checksum import file_checksum
for line in sys.stdin:
    path = Path(line.rstrip("\\n"))
    file_checksum(path)
    path.unlink()
"""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", self._PROGRAM], stdin=subprocess.PIPE, text=True, bufsize=1
        )

    def take(self, path: Path) -> None:
        """Have it read `path`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{path}\n")

    def close(self) -> None:
        """Wait until it has read all."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Used:
    """Processor time and memory of this process, from its making on; Linux alone can forget an earlier peak of memory."""

    def __init__(self) -> None:
        clear = Path("/proc/self/clear_refs")
        if clear.exists():
            clear.write_text("5")
        self._begin, self._cpu = time.perf_counter(), os.times()

    def figures(self) -> dict[str, Any]:
        """`cpu_cores` and `cpu_cores_in_kernel`, on average until now, and `host_memory_bytes`, the most; 0 where it cannot be told."""
        wall, now = time.perf_counter() - self._begin, os.times()
        kernel = (now.system - self._cpu.system) / wall
        return {
            "cpu_cores": (now.user - self._cpu.user) / wall + kernel,
            "cpu_cores_in_kernel": kernel,
            "host_memory_bytes": _peak_bytes(),
        }


def _peak_bytes() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
