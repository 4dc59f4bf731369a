"""The long form of the fault suite: faults in random order for as long as told, and a table of what they did.

    python -m tests.faults.chaos [--minutes 30] [--seed N] [--fault NAME] [--list]

Each run is struck by one kind of fault, a few times at random instants, and some runs by several.
Ends with 0 if nothing was lost, duplicated or corrupted and nothing else was wrong, else with 1.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random

from tests.faults.aftermath import Reference
from tests.faults.catalogue import FAULTS
from tests.faults.fault_site import Site, open_site
from tests.faults.trial import Fault, Report, make_reference, try_faults

LONGEST_OUTAGE_SECONDS = 60.0
MIXED = "three of them, mixed"
_HEAD = (
    "fault",
    "runs",
    "struck",
    "went on s",
    "recovered s",
    "redone",
    "forgotten",
    "lost",
    "dupl.",
    "corr.",
    "other",
)


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
            str(sum(report.redone for report in self.reports)),
            str(sum(report.announced for report in self.reports)),
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


def in_turn(faults: Sequence[Fault], random: Random) -> Iterator[tuple[str, list[Fault]]]:
    """Without end: every fault alone, in random order, and then a run with three of them."""
    while True:
        for fault in random.sample(faults, len(faults)):
            yield fault.name, [fault] * fault.times
        if len(faults) > 1:
            yield MIXED, random.sample(faults, min(3, len(faults)))


class Chaos:
    """Run after run on one site, which is replaced after a run that did not end well."""

    def __init__(self, names: Sequence[str], random: Random) -> None:
        self._names, self._random = names, random
        self._opened = ExitStack()
        self._site: Site | None = None
        self._reference: Reference | None = None
        self.rows: dict[str, Row] = {}
        #: Sentences that belong to no run.
        self.troubles: list[str] = []

    def go_on(self, minutes: float) -> None:
        """Disturb one run at least, and more until the time is over; then close the site."""
        end = time.monotonic() + minutes * 60
        try:
            site = self._new_site()
            faults = [FAULTS[name] for name in self._names if self._is_possible(FAULTS[name], site)]
            if not faults:
                return
            for number, (label, chosen) in enumerate(in_turn(faults, self._random)):
                if number and time.monotonic() >= end:
                    break
                self._disturb(f"chaos-{number:04d}", label, chosen)
        finally:
            self._close_site()

    def _disturb(self, name: str, label: str, faults: list[Fault]) -> None:
        site = self._site or self._new_site()
        assert self._reference is not None
        begun = time.monotonic()
        report = try_faults(
            site,
            self._reference,
            faults,
            name,
            self._random,
            longest_outage_seconds=LONGEST_OUTAGE_SECONDS,
        )
        self.rows.setdefault(label, Row()).reports.append(report)
        struck = (
            ", ".join(strike.fault for strike in report.strikes) if label == MIXED else len(report.strikes)
        )
        print(f"{name}  {label}: {struck}  ({time.monotonic() - begun:.0f} s)", flush=True)
        if report.findings.all:
            print(*(f"    {sentence}" for sentence in report.findings.all), sep="\n")
            print(f"    logs are in {site.keep_logs()}", flush=True)
            self._close_site()

    def _new_site(self) -> Site:
        self._site = self._opened.enter_context(open_site())
        self._reference = make_reference(self._site)
        return self._site

    def _close_site(self) -> None:
        self._site = None
        try:
            self._opened.close()
        except AssertionError as error:
            self.troubles.append(f"when the site was closed: {error}")

    @staticmethod
    def _is_possible(fault: Fault, site: Site) -> bool:
        reason = fault.why_not(site)
        if reason:
            print(f"left out: {fault.name}: {reason}")
        return reason is None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.chaos", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to go on (30)")
    parser.add_argument("--seed", type=int, default=None, help="the same faults in the same order again")
    parser.add_argument(
        "--fault", action="append", choices=list(FAULTS), help="only this one; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="name all faults and stop")
    parsed = parser.parse_args(arguments)
    if parsed.list:
        print(*FAULTS, sep="\n")
        return 0
    # What this process would say of outages, the roles say in their logs.
    logging.getLogger("hiddenfeed").setLevel(logging.CRITICAL)
    seed = parsed.seed if parsed.seed is not None else Random().randrange(2**32)
    print(f"seed {seed}", flush=True)
    chaos = Chaos(parsed.fault or list(FAULTS), Random(seed))
    chaos.go_on(parsed.minutes)
    print("", table(chaos.rows), "", sep="\n")
    print(*chaos.troubles, sep="\n")
    reports = [report for row in chaos.rows.values() for report in row.reports]
    wrong = len(chaos.troubles) + sum(len(report.findings.all) for report in reports)
    print(f"{len(reports)} runs, {wrong or 'nothing'} wrong")
    return 1 if wrong or not reports else 0


if __name__ == "__main__":
    sys.exit(main())
