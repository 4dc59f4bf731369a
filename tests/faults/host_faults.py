"""Faults of a host: its disk is full or broken, its spool is full, its clock jumps."""

from __future__ import annotations

import os
from pathlib import Path

from hiddenfeed.layout import batch_name
from tests.faults.fault_site import SPOOL_CAP_BYTES, Site
from tests.faults.lookout import spool_held
from tests.faults.trial import Fault, Trial

_HOUR = 3600


def _no_own_disk(site: Site) -> str | None:
    return None if site.own_disk else "a disk of its own cannot be mounted for the spool here"


def _fill_disk(trial: Trial) -> None:
    """Something else on the spool's disk takes all that is left of it."""
    ballast = trial.site.spool.root / ".ballast"
    with ballast.open("wb") as file:
        block = os.statvfs(trial.site.spool.root).f_bsize
        # Files come and go meanwhile: what becomes free is taken as well.
        for blocks in (1024, 64, 16, 4, 1):
            _take(file.fileno(), blocks * block)
        trial.wait(trial.outage_seconds())
    ballast.unlink()


def _take(descriptor: int, size_bytes: int) -> None:
    """Allocate as often as it works."""
    while True:
        try:
            os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, size_bytes)
        except OSError:
            return


def _fill_spool(trial: Trial) -> None:
    """Files of another run take all that the spool may hold."""
    spool = trial.site.spool
    other = spool.root / "another-run" / f"{batch_name(0)}-1.safetensors"
    with spool_held(spool) as used_bytes:
        other.parent.mkdir(exist_ok=True)
        _grow(other, SPOOL_CAP_BYTES - used_bytes)
    trial.wait(trial.outage_seconds())
    with spool_held(spool):
        other.unlink()
        other.parent.rmdir()


def _grow(path: Path, size_bytes: int) -> None:
    """Make a file of that size that takes up no room."""
    with path.open("wb") as file:
        file.truncate(size_bytes)


def _break_disk(trial: Trial) -> None:
    """Half of what one GPU worker asks of its disk fails, in the middle of a file as well."""
    trial.site.disk_file.touch()
    trial.wait(trial.brief_seconds())
    trial.site.disk_file.unlink()


def _jump(sign: int) -> Fault:
    """The clock of one GPU worker and one uploader is off, so far that S3 refuses what they sign, and then right again."""

    def inject(trial: Trial) -> None:
        part = trial.site.clock_file.with_suffix(".part")
        part.write_text(str(sign * trial.random.randint(_HOUR, 24 * _HOUR)))
        part.replace(trial.site.clock_file)
        trial.wait(trial.brief_seconds())
        trial.site.clock_file.unlink()

    return Fault(f"clock jumps {'ahead' if sign > 0 else 'back'}", inject, redoes=False)


FAULTS = (
    Fault("disk full", _fill_disk, redoes=False, why_not=_no_own_disk),
    Fault("spool full", _fill_spool, redoes=False),
    Fault("disk errors", _break_disk, redoes=False),
    _jump(1),
    _jump(-1),
)
