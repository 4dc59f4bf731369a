"""Clears a site away once its driver is gone, however that ended: `python -m tests.faults.janitor FOLDER`.

Waits for the end of its standard input, which the driver holds.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from standalone.servers import stop_all
from tests.faults.fleet import processes_of


def main(folder: Path) -> None:
    """End the site's processes, take its disk away and remove its folder."""
    sys.stdin.read()
    for process in processes_of(folder):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    stop_all(folder)
    if (folder / "spool").is_mount():
        subprocess.run(["umount", str(folder / "spool")], check=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
