"""Faults of a host: its disk is full or broken, its clock jumps."""

from __future__ import annotations

import os

from tests.faults.fault_site import Site
from tests.faults.trial import Fault, Trial

_HOUR = 3600


def _no_own_disk(site: Site) -> str | None:
    return None if site.own_disk else "a disk of its own cannot be mounted for the spool here"


def _fill_disk(trial: Trial) -> None:
    """Something else on the spool's disk takes all that is left of it."""
    ballast = trial.site.spool.root / ".ballast"
    space = os.statvfs(trial.site.spool.root)
    with ballast.open("wb") as file:
        # Files come and go meanwhile: what becomes free is taken as well.
        for blocks in (space.f_bavail, 64, 16, 4, 1):
            _take(file.fileno(), blocks * space.f_bsize)
        trial.wait(trial.outage_seconds())
    ballast.unlink()


def _take(descriptor: int, size_bytes: int) -> None:
    """Allocate as often as it works."""
    while size_bytes:
        try:
            os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, size_bytes)
        except OSError:
            return


def _break_disk(trial: Trial) -> None:
    """Half of what one GPU worker asks of its disk fails, in the middle of a file as well."""
    trial.site.disk_file.touch()
    trial.wait(trial.outage_seconds())
    trial.site.disk_file.unlink()


def _jump(sign: int) -> Fault:
    def inject(trial: Trial) -> None:
        """The clock of one GPU worker and one uploader is off, so far that S3 refuses what they sign, and then right again."""
        seconds = sign * trial.random.randint(_HOUR, 24 * _HOUR)
        part = trial.site.clock_file.with_suffix(".part")
        part.write_text(str(seconds))
        part.replace(trial.site.clock_file)
        trial.wait(trial.outage_seconds())
        trial.site.clock_file.unlink()

    return Fault(f"clock jumps {'ahead' if sign > 0 else 'back'}", inject)


FAULTS = (
    Fault("disk full", _fill_disk, why_not=_no_own_disk),
    Fault("disk errors", _break_disk),
    _jump(1),
    _jump(-1),
)
