"""One run on a site, disturbed by faults at random instants, and what came of it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import redis

from common import rq_keys
from common.queues import extract_queue_name, upload_queue_name
from common.redis_client import text
from hiddenfeed.store import Store
from tests.faults.aftermath import Findings, Reference, inspect, take_reference, until
from tests.faults.fault_site import LEASE_SECONDS, SPOOL, SPOOL_CAP_BYTES, Site
from tests.faults.lookout import Lookout
from tests.faults.told import listen

#: Until the first batches of a run are stored; a GPU worker may have to load its model first.
_BEGIN_SECONDS = 120.0
_PREPARATION_SECONDS = 5.0
#: From the last fault's end to the run's end.
END_SECONDS = 180.0


@dataclass(frozen=True)
class Fault:
    """Something that happens to a pipeline in real life."""

    name: str
    inject: Callable[[Trial], None]
    #: How often it strikes one run in the long form.
    times: int = 2
    #: Strikes while the producer starts, prepares and stores the plan, in place of amid the batches.
    early: bool = False
    #: Producers that are started at once to make the run.
    producers: int = 1
    #: Whether batches may be computed again for it. If not, only jobs that were taken over may be, which
    #: happens to a process that does not get to run for a lease.
    redoes: bool = True
    #: Whether files may stay in the spool that no job speaks of, until an uploader announces them again.
    forgets_files: bool = False
    #: Exit codes with which processes may end that nobody sent a signal to.
    own_ends: frozenset[int] = frozenset()
    #: What a site must have, as far as it is not on every machine: tells the reason why not, or None.
    why_not: Callable[[Site], str | None] = lambda site: None


@dataclass
class Strike:
    """One time that a fault struck."""

    fault: str
    #: Seconds on the monotonic clock.
    at: float
    #: When it was over: the server back, the process told to go on.
    over: float
    #: Batches that somebody was at when it struck.
    in_hand: set[int]
    #: From `over` until the next batch was in the store; None if there was none left.
    went_on_seconds: float | None = None
    #: From `over` until all batches in hand were in the store.
    recovered_seconds: float | None = None


@dataclass
class Report:
    """What came of a trial."""

    run_id: str
    strikes: list[Strike] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    #: Batches that were computed once more.
    redone: int = 0
    #: Files that were announced again.
    announced: int = 0


class Trial:
    """A run that goes on while a fault strikes; what faults work with."""

    def __init__(
        self,
        site: Site,
        reference: Reference,
        name: str,
        random: Random,
        *,
        longest_outage_seconds: float = 0.0,
    ) -> None:
        self.site, self.reference, self.random = site, reference, random
        self.run_name, self.run_id = name, reference.run_id(name)
        self._longest_outage_seconds = longest_outage_seconds
        self._producers: list[str] = []
        self._pause = threading.Event()
        self.lookout = Lookout(site.store, site.spool, self.run_id)

    @property
    def long(self) -> bool:
        """Whether faults may take their time."""
        return self._longest_outage_seconds > 0

    def add_producer(self) -> str:
        """One more producer makes the run; returns the member's name."""
        name = f"producer-{self.run_name}-{len(self._producers)}"
        self.site.enlist_producer(name, self.run_name)
        self._producers.append(name)
        return name

    @property
    def is_over(self) -> bool:
        """Whether every producer has seen the run's end."""
        return all(map(self.site.fleet.is_done, self._producers))

    def outage_seconds(self) -> float:
        """How long a server is away or a process frozen: longer than the lease, in the long form sometimes much longer."""
        return LEASE_SECONDS + 0.5 + self.random.uniform(0, 1) + self._now_and_then()

    def brief_seconds(self) -> float:
        """How long something goes wrong that does not stop everything."""
        return self.random.uniform(0.7, 1.3) + self._now_and_then()

    def _now_and_then(self) -> float:
        return self.random.choice((0, 0, 0, 1)) * self.random.uniform(0.1, 1.0) * self._longest_outage_seconds

    def wait(self, seconds: float) -> None:
        """Let the fault last."""
        self._pause.wait(seconds)

    def strike(self, role: str, number: signal.Signals) -> str:
        """Send a signal to one of the role's processes; returns its name."""
        name = self.random.choice(self.site.fleet.names(role) or [role])
        if name != role:
            self.site.fleet.strike(name, number)
        return name

    def wait_for(self, share: float) -> bool:
        """Wait until that share of all batches is stored; False if the run ends before.

        Raises TimeoutError if it does neither.
        """
        count = int(share * self.reference.batches)
        if not until(lambda: self.is_over or self.lookout.stored >= count, _BEGIN_SECONDS):
            raise TimeoutError(f"no {count} batches within {_BEGIN_SECONDS:.0f} s")
        # Between two looks, too.
        self.wait(self.random.uniform(0, 0.2))
        return not self.is_over

    def wait_for_preparation(self) -> None:
        """Wait until somewhere in the seconds in which the producer starts, prepares and stores the plan."""
        self.wait(self.random.uniform(0, _PREPARATION_SECONDS))

    def in_hand(self) -> set[int]:
        """Batches of jobs that are started now; none if Redis cannot tell."""
        queues = (extract_queue_name(self.run_id), upload_queue_name(SPOOL))
        with self.site.client as client:
            try:
                members = [
                    text(member)
                    for queue in queues
                    for member in client.zrange(rq_keys.started_key(queue), 0, -1)
                ]
            except redis.RedisError:
                return set()
        jobs = [member.partition(":")[0] for member in members]
        return {int(job.rpartition("-")[2]) for job in jobs if self.run_id in job}

    def wait_end(self) -> bool:
        """Wait until every producer has seen the end; False if that does not come."""
        return until(lambda: self.is_over, END_SECONDS)

    def close(self) -> list[str]:
        """End the producers; returns a sentence for each that did not end by itself."""
        troubles = [
            f"{name} did not come to an end" for name in self._producers if not self.site.fleet.is_done(name)
        ]
        self.lookout.close()
        return troubles + self.site.fleet.dismiss(self._producers)


def undisturbed(site: Site, name: str) -> None:
    """Make a run with nothing in its way; raises TimeoutError if it does not come to its end."""
    site.enlist_producer(name, name)
    if not until(lambda: site.fleet.is_done(name), _BEGIN_SECONDS):
        raise TimeoutError(f"run {name} did not end within {_BEGIN_SECONDS:.0f} s")
    site.fleet.dismiss([name])


def try_faults(
    site: Site,
    reference: Reference,
    faults: Sequence[Fault],
    name: str,
    random: Random,
    *,
    longest_outage_seconds: float = 0.0,
) -> Report:
    """Make a run of that name, let the faults strike it one after the other, and look at what is left."""
    ends_before = len(site.fleet.ends)
    trial = Trial(site, reference, name, random, longest_outage_seconds=longest_outage_seconds)
    report, troubles = Report(trial.run_id), list[str]()
    try:
        for _ in range(max(fault.producers for fault in faults)):
            trial.add_producer()
        for number, fault in enumerate(faults):
            # Somewhere in its part of the run, and none so late that hardly any work is left.
            if fault.early:
                trial.wait_for_preparation()
            elif not trial.wait_for(0.8 * (number + random.random()) / len(faults)):
                break
            report.strikes.append(_let_strike(fault, trial))
        trial.wait_end()
    except TimeoutError as error:
        troubles.append(str(error))
    finally:
        troubles += trial.close()
    for strike in report.strikes:
        _measure(strike, trial.lookout)
    report.findings = inspect(site, reference, trial.run_id)
    report.findings.troubles[:0] = troubles + _bad_ends(site, faults, ends_before)
    told = listen(site.fleet, trial.run_id)
    report.redone, report.announced = told.redone, told.announced
    if told.announced and not any(fault.forgets_files for fault in faults):
        report.findings.troubles.append(f"{told.announced} files were forgotten, which was not called for")
    if told.redone > told.taken_over and not any(fault.redoes for fault in faults):
        report.findings.troubles.append(
            f"{told.redone} batches were computed again, which was not called for"
        )
    if trial.lookout.spool_peak_bytes > SPOOL_CAP_BYTES:
        report.findings.troubles.append(
            f"the spool held {trial.lookout.spool_peak_bytes} bytes where {SPOOL_CAP_BYTES} are allowed"
        )
    return report


def _let_strike(fault: Fault, trial: Trial) -> Strike:
    strike = Strike(fault.name, time.monotonic(), 0.0, trial.in_hand())
    fault.inject(trial)
    strike.over = time.monotonic()
    return strike


def _measure(strike: Strike, lookout: Lookout) -> None:
    later = [seen for seen in lookout.first_seen.values() if seen > strike.over]
    strike.went_on_seconds = min(later) - strike.over if later else None
    seen = lookout.seen_at(strike.in_hand)
    strike.recovered_seconds = max(0.0, max(seen) - strike.over) if seen else None


def _bad_ends(site: Site, faults: Sequence[Fault], since: int) -> list[str]:
    """Processes that ended though nobody told them to: none needs a restart for a fault outside of it."""
    expected = {code for fault in faults for code in fault.own_ends}
    return [
        str(end)
        for end in site.fleet.ends[since:]
        if not end.is_as_asked() and (end.struck or end.code not in expected)
    ]


def make_reference(site: Site) -> Reference:
    """Make the first run of a new site, undisturbed, and take it as the reference."""
    undisturbed(site, "reference")
    return take_reference(site.store, only_run(site.store))


def only_run(store: Store) -> str:
    """The id of the one run in the store."""
    (run_id,) = {info.key.partition("/")[0] for info in store.list("")}
    return run_id
