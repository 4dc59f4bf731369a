"""The long form of the fault suite: faults in random order for as long as told, and a table of what they did.

    python -m tests.faults.chaos [--minutes 30] [--seed N] [--fault NAME] [--list]

Ends with 0 if nothing was lost, duplicated or corrupted and nothing else was wrong, else with 1.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.faults.aftermath import Findings, Reference, check_spool, take_reference, until
from tests.faults.catalogue import FAULTS
from tests.faults.fault_site import Site, open_site
from tests.faults.lookout import spool_bytes
from tests.faults.trial import Fault, Report, only_run, try_fault, undisturbed

LONGEST_OUTAGE_SECONDS = 60.0
#: The uploaders look for files that nobody speaks of once a minute, and take them when they are a minute old.
TIDY_SECONDS = 150.0
_HEAD = ("fault", "runs", "struck", "went on s", "recovered s", "lost", "dupl.", "corr.", "other")


@dataclass
class Row:
    """One fault in the table."""

    reports: list[Report] = field(default_factory=list)

    def cells(self, name: str) -> tuple[str, ...]:
        """What the table shows."""
        strikes = [strike for report in self.reports for strike in report.strikes]
        counts = [
            sum(len(getattr(report.findings, kind)) for report in self.reports)
            for kind in ("lost", "duplicated", "corrupted", "troubles")
        ]
        return (
            name,
            str(len(self.reports)),
            str(len(strikes)),
            _median_and_max([strike.went_on_seconds for strike in strikes]),
            _median_and_max([strike.recovered_seconds for strike in strikes]),
            *map(str, counts),
        )


def _median_and_max(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f} / {max(known):.1f}" if known else "-"


def table(rows: dict[str, Row]) -> str:
    """The rows under a head, columns aligned."""
    lines = [_HEAD, *(row.cells(name) for name, row in rows.items())]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def in_turn(faults: Sequence[Fault], random: Random) -> Iterator[Fault]:
    """All faults in random order, and again, without end."""
    while True:
        yield from random.sample(faults, len(faults))


def disturb(site: Site, faults: Sequence[Fault], minutes: float, random: Random) -> dict[str, Row]:
    """Run after run, a fault in each, until the time is over; returns the rows of the table."""
    undisturbed(site, "reference")
    reference = take_reference(site.store, only_run(site.store))
    rows: dict[str, Row] = {}
    end = time.monotonic() + minutes * 60
    for number, fault in enumerate(in_turn(faults, random)):
        if number and time.monotonic() >= end:
            return rows
        report = _one(site, reference, fault, f"chaos-{number:04d}", random)
        rows.setdefault(fault.name, Row()).reports.append(report)
    raise AssertionError("unreachable")


def _one(site: Site, reference: Reference, fault: Fault, name: str, random: Random) -> Report:
    begun = time.monotonic()
    # A seed of its own, so that a fault can be repeated without those before it.
    seed = random.randrange(2**32)
    report = try_fault(
        site,
        reference,
        fault,
        name,
        Random(seed),
        times=fault.times[1],
        longest_outage_seconds=LONGEST_OUTAGE_SECONDS,
        spool_is_tidied=False,
    )
    struck = len(report.strikes)
    print(f"{name}  {fault.name}  struck {struck} times  {time.monotonic() - begun:.0f} s  (seed {seed})", flush=True)
    for sentence in report.findings.all:
        print(f"    {sentence}", flush=True)
    return report


def last_look(site: Site) -> Findings:
    """The spool once the uploaders have had the time to tidy it."""
    findings = Findings()
    until(lambda: spool_bytes(site.spool) == 0, TIDY_SECONDS)
    check_spool(site, findings)
    return findings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to go on (30)")
    parser.add_argument("--seed", type=int, default=None, help="the same faults at the same points again")
    parser.add_argument("--fault", action="append", choices=list(FAULTS), help="only this one; may be repeated")
    parser.add_argument("--list", action="store_true", help="name all faults and stop")
    parsed = parser.parse_args(arguments)
    if parsed.list:
        print(*FAULTS, sep="\n")
        return 0
    # What the tidying of this process says is said by the uploaders too.
    logging.getLogger("hiddenfeed").setLevel(logging.CRITICAL)
    seed = parsed.seed if parsed.seed is not None else Random().randrange(2**32)
    print(f"seed {seed}", flush=True)
    with open_site() as site:
        chosen = [FAULTS[name] for name in parsed.fault or FAULTS]
        for fault in chosen:
            if reason := fault.why_not(site):
                print(f"{fault.name} is left out: {reason}")
        possible = [fault for fault in chosen if fault.why_not(site) is None]
        rows = disturb(site, possible, parsed.minutes, Random(seed)) if possible else {}
        last = last_look(site)
    print("", table(rows), "", sep="\n")
    print(*last.all, sep="\n")
    reports = [report for row in rows.values() for report in row.reports]
    bad = last.all + [sentence for report in reports for sentence in report.findings.all]
    print(f"{len(reports)} runs, {len(bad)} things wrong" if bad else f"{len(reports)} runs, nothing wrong")
    return 1 if bad or not reports else 0


if __name__ == "__main__":
    sys.exit(main())
