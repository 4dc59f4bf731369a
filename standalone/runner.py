"""One run from beginning to end on this machine: servers, roles, live progress, the report."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import redis

from common.eta import estimate
from common.pace import Pace
from common.queues import QueueCounts, extract_queue_name, queue_counts, upload_queue_name
from common.redis_client import clock_of, make_client
from common.run_state import Progress, RunRecord, get_run, read_progress
from common.settings.catalogue import (
    ExtractSettings,
    PlanSettings,
    QueueSettings,
    SpoolSettings,
    StandaloneSettings,
)
from common.settings.resolve import Resolved
from common.worker.presence import list_workers, serving
from hiddenfeed.errors import ConfigError, DataError, HiddenfeedError, PermanentError, TransientError
from hiddenfeed.inventory import completion_gaps, load_document
from hiddenfeed.store import Store
from hiddenfeed.words import count_text, duration_text
from standalone import preflight, roles
from standalone.display import Display
from standalone.finish import CHECK, Ending, finish_run
from standalone.home import Home
from standalone.progress import (
    announced_run,
    doing,
    latest_warning,
    progress_line,
    statements,
    warnings,
)
from standalone.report import shown_path, shown_python
from standalone.restart import GiveUp
from standalone.signals import Interrupted, StopRequest
from standalone.supervisor import Supervisor
from standalone.surroundings import Places, Surroundings, chosen_places, open_surroundings, remember
from standalone.timeline import Timeline

INTERRUPTED = 130
_LOOK_SECONDS = 0.5
_WARNINGS_SHOWN = 4
#: Something that is away is tried again about once a minute, and warned of again.
_RECENT_SECONDS = 90.0
#: On one machine a dead process is noticed sooner than in a fleet, where a network may delay a heartbeat.
_LOCAL_LEASE = {"lease_seconds": "15", "heartbeat_seconds": "3", "maintenance_seconds": "5"}
_PRODUCER = "producer"


class Runner:
    """One run. `run` may be called once."""

    def __init__(self, home: Home, resolved: Resolved, display: Display) -> None:
        self.home, self.resolved, self.display = home, resolved, display
        self.timeline = Timeline()
        self.run_id: str | None = None
        #: What Redis knows of the run.
        self.record: RunRecord | None = None
        self.progress: Progress | None = None
        #: Whether there was work for anybody but the producer.
        self.worked = False
        self._store: Store | None = None
        self._stop = StopRequest()
        self._supervisor = Supervisor(home)
        self._pace = Pace()
        self._told: list[str] = []
        self._settings = resolved.group(StandaloneSettings)

    def run(self) -> int:
        """Bring the run to its end; returns the exit code.

        Raises one of hiddenfeed's errors if it cannot come to an end. Whatever happens, no process
        started here is left.
        """
        preflight.check_settings(self.resolved)
        places = chosen_places(self.home, self.resolved)
        with self.home.locked(), self._stop.listening():
            self._check_disk(places)
            for name in self.home.stop_leftovers():
                self.display.say(f"ended {name}, left from before")
            self.timeline.begin("servers")
            surroundings = open_surroundings(self.home, places)
            try:
                remember(self.home, places)
                return self._run_in(surroundings)
            except Interrupted:
                return self._interrupted()
            finally:
                self.display.clear()
                self._end_roles()
                own = surroundings.redis or surroundings.s3
                if not surroundings.leave() and own:
                    self.display.say("the servers of this home stay up: others use them")

    def _run_in(self, surroundings: Surroundings) -> int:
        surroundings.write_environment_file()
        self._store = surroundings.open_store()
        environ = self._environment(surroundings)
        if preflight.needs_torch(self.resolved):
            self.timeline.begin("checking devices")
            self.display.status("checking that the devices are there")
            self._settings = preflight.named_devices(self._settings, self._stop)
            preflight.check_workers(self._worker_roles(environ), self._stop)
        self.timeline.begin("preparing")
        with make_client(surroundings.redis_settings) as client:
            self._supervisor.start(roles.producer_role(environ))
            while not self._supervisor.finished(_PRODUCER):
                self._step(surroundings)
                self._look(client, surroundings, environ)
                if self._stop.wait(_LOOK_SECONDS):
                    raise Interrupted
            self._look(client, surroundings, environ)
        self.display.clear()
        restarts = self._supervisor.restarts
        self._end_roles()
        if self.run_id is None:
            raise PermanentError(
                f"the producer ended without naming its run; see {self.home.log_path(_PRODUCER)}"
            )
        ending = Ending(self.run_id, self.worked, self.progress, restarts)
        return finish_run(ending, surroundings, environ, self.display, self.timeline, self._stop)

    def _environment(self, surroundings: Surroundings) -> dict[str, str]:
        """The environment of the roles."""
        changes = surroundings.settings() | {"detach": "no", "cache_dir": str(self._cache())}
        if surroundings.redis and all(self.resolved.sources[name] == "default" for name in _LOCAL_LEASE):
            changes |= _LOCAL_LEASE
        settings = roles.settings_environment(self.resolved, changes)
        return roles.role_environment(surroundings.environment(os.environ), settings)

    def _worker_roles(self, environ: dict[str, str]) -> list[roles.Role]:
        return roles.worker_roles(environ, self._settings, os.cpu_count() or 1)

    def _cache(self) -> Path:
        given = self.resolved.group(ExtractSettings).cache_dir
        return Path(given).expanduser().absolute() if given else self.home.cache

    def _check_disk(self, places: Places) -> None:
        spool = msgspec.structs.replace(
            self.resolved.group(SpoolSettings),
            spool=places.spool,
            spool_dir=places.spool_dir or str(self.home.spool),
        )
        preflight.check_disk(self.resolved.group(PlanSettings), spool, self._cache())

    def _step(self, surroundings: Surroundings) -> None:
        """Keep servers and roles going; raises the error that ends the run."""
        for name in surroundings.keep_alive():
            self.display.say(f"{name} ended and was started again")
        verdict = self._supervisor.step(may_finish=[_PRODUCER], patient=self.run_id is not None)
        if isinstance(verdict, GiveUp):
            # The error is one sentence; what led to it was said before.
            for warning in warnings(self._supervisor.output(verdict.role))[-_WARNINGS_SHOWN:]:
                self.display.say(f"{verdict.role}: {warning}")
            raise _error(verdict)

    def _look(self, client: redis.Redis, surroundings: Surroundings, environ: dict[str, str]) -> None:
        """See where the run stands, say it, and start the workers once there is work."""
        if self.run_id is None:
            said = self._supervisor.output(_PRODUCER)
            self.run_id = announced_run(said)
            self._relay(said)
        if self.run_id is None:
            elapsed = duration_text(self.timeline.elapsed_seconds)
            parts = [f"preparing the run ({elapsed})", doing(said), self._supervisor.trouble]
            self.display.status("  ".join(filter(None, parts)))
            return
        try:
            if not self.worked and self._supervisor.running(_PRODUCER):
                self._begin_work(self.run_id, surroundings, environ)
            self.record = get_run(client, self.run_id) or self.record
            progress = read_progress(client, self.run_id)
            extract = queue_counts(client, extract_queue_name(self.run_id))
            upload = queue_counts(client, upload_queue_name(surroundings.places.spool))
            at_work = serving(list_workers(client), extract_queue_name(self.run_id))
            clock = clock_of(client)
        except TransientError as error:
            self.display.status(str(error))
            return
        self.progress = progress
        if self.worked and self.record is not None:
            self._mark(self.record, progress, extract)
            self._pace.look(time.monotonic(), progress)
            left = estimate(self.record, progress, at_work, clock)
            trouble = self._supervisor.trouble or (self._why_late() if self._pace.late else "")
            self.display.status(
                progress_line(self.record, progress, extract, upload, self._pace, left, trouble, self._part())
            )

    def _why_late(self) -> str:
        """What a role last warned of, if that was just now."""
        since = time.time() - _RECENT_SECONDS
        found = [(latest_warning(lines, since), name) for name, lines in self._supervisor.tails().items()]
        (_, sentence), name = max(found, default=((0.0, ""), ""))
        return f"{name}: {sentence}" if sentence else ""

    def _part(self) -> str:
        """What is going on where no batch tells."""
        if self.timeline.current == "proof":
            # The log is read for this alone: it grows with the run.
            said = doing(self._supervisor.output(_PRODUCER))
            return said if said.startswith("proving") else ""
        if self.timeline.current == "loading the model":
            return f"loading the model ({duration_text(self.timeline.elapsed_seconds)})"
        return ""

    def _relay(self, said: list[str]) -> None:
        """Pass on what the producer makes of data and model, each sentence once."""
        for sentence in statements(said):
            if sentence not in self._told:
                self._told.append(sentence)
                self.display.say(f"  {sentence}")

    def _begin_work(self, run_id: str, surroundings: Surroundings, environ: dict[str, str]) -> None:
        """Start the workers if the store lacks a batch of the run; if not, no model is loaded for it."""
        assert self._store is not None
        document = load_document(self._store, run_id)
        if completion_gaps(self._store, document):
            place = surroundings.disk
            if place is not None and (warning := preflight.disk_warning(document, place)):
                self.display.say(f"warning: {warning}")
            self._start_workers(run_id, environ)

    def _start_workers(self, run_id: str, environ: dict[str, str]) -> None:
        """Start all who work on the run; the GPU workers on no other."""
        self.worked = True
        for role in self._worker_roles(environ | roles.setting_variables({"run": run_id})):
            self._supervisor.start(role)
        for role in roles.uploader_roles(environ, self._settings.uploaders):
            self._supervisor.start(role)
        self.display.say(f"run {run_id}")
        watch = f"{shown_python()} -m standalone exec --home {shown_path(self.home.path)} -- python -m monitor --watch"
        self.display.say(f"logs in {shown_path(self.home.logs)}; more to see: {watch}")

    def _mark(self, record: RunRecord, progress: Progress, extract: QueueCounts) -> None:
        """Tell the timeline where the run is."""
        if progress.batches >= record.batches:
            self.timeline.begin("proof")
        elif self.timeline.current == "extracting" or extract.started:
            self.timeline.begin("extracting")
        else:
            self.timeline.begin("loading the model")

    def _interrupted(self) -> int:
        """Say what to do next."""
        self.display.clear()
        done = "nothing is lost"
        if self.timeline.current == CHECK:
            done = "the run is complete and proved, only the check of samples was left"
        elif self.record is not None and self.progress is not None:
            done = (
                f"{self.progress.batches:,} of {count_text(self.record.batches, 'batch', 'batches')} stored"
            )
        self.display.say(f"interrupted: {done}; the same command goes on from here")
        return INTERRUPTED

    def _end_roles(self) -> None:
        """End what runs; gently, unless somebody is impatient."""
        grace = 0.0 if self._stop.impatient else float(self.resolved.group(QueueSettings).grace_seconds)
        self._supervisor.stop_all(grace)


def _error(verdict: GiveUp) -> HiddenfeedError:
    """The error that a role ended with, as ours."""
    kinds: tuple[type[HiddenfeedError], ...] = (ConfigError, DataError, TransientError)
    kind = next((kind for kind in kinds if kind.exit_code == verdict.code), PermanentError)
    return kind(verdict.sentence)
