"""The end of a run: the proof as it stands in the store, a sample computed again, the report."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.run_state import Progress
from hiddenfeed.errors import DataError, PermanentError
from hiddenfeed.proof import Proof, load_proof
from hiddenfeed.skipped import SkipReason, count_reasons
from hiddenfeed.words import count_text, duration_text
from standalone import report
from standalone.display import Display
from standalone.errand import run_all
from standalone.signals import StopRequest
from standalone.surroundings import Surroundings
from standalone.timeline import Timeline

#: Samples computed again, alone, by the whole model.
_SAMPLES = 2
#: The part of the timeline, and the name of the log.
CHECK = "check"


@dataclass(frozen=True)
class Ending:
    """A run whose producer has ended well."""

    run_id: str
    #: Whether anything was computed this time.
    worked: bool
    #: Counters of the run; None if Redis does not know it.
    progress: Progress | None
    restarts: int


def finish_run(
    ending: Ending,
    surroundings: Surroundings,
    environ: Mapping[str, str],
    display: Display,
    timeline: Timeline,
    stop: StopRequest,
) -> int:
    """Check a sample if anything was computed, and say how the run ended; returns the exit code.

    Raises PermanentError if the store holds no proof, DataError if the sample does not agree, and
    Interrupted as soon as `stop` asks for it.
    """
    store = surroundings.open_store()
    proof = load_proof(store, ending.run_id)
    if proof is None:
        raise PermanentError(f"run {ending.run_id} ended, but {surroundings.store_url} holds no proof of it")
    checked: list[str] = []
    if ending.worked and proof.stored:
        timeline.begin(CHECK)
        checked = _check_sample(ending.run_id, surroundings.home.log_path(CHECK), environ, display, stop)
    timeline.end()
    display.clear()
    reasons = count_reasons(store, ending.run_id) if proof.skipped else []
    for line in _report(ending, proof, reasons, surroundings, checked, timeline):
        display.say(line)
    return 0


def _check_sample(
    run_id: str, log: Path, environ: Mapping[str, str], display: Display, stop: StopRequest
) -> list[str]:
    """What `python -m gpu_worker check` says of the run; raises DataError if the states do not agree."""
    command = [sys.executable, "-m", "gpu_worker", "check", "--run", run_id, "--samples", str(_SAMPLES)]
    started = time.monotonic()

    def show(said: list[str]) -> None:
        lines = [line for line in said[0].splitlines() if line.startswith("check: ")]
        doing = lines[-1].removeprefix("check: ") if lines else "starting"
        elapsed = duration_text(time.monotonic() - started)
        display.status(f"computing samples again, each alone, to compare: {doing} ({elapsed})")

    (answer,) = run_all([(command, environ)], stop, show)
    log.write_text(answer.errors + answer.output)
    # The last line is for programs.
    said = [line.rstrip() for line in answer.output.splitlines() if line.strip() and not line.startswith("{")]
    if answer.code != 0:
        reason = "; ".join(answer.sentences or [line.strip() for line in said if "DIFFERS" in line])
        reason = reason or f"the check ended with exit code {answer.code}, see {log}"
        raise DataError(f"run {run_id} is complete, but samples computed again were not confirmed: {reason}")
    return said


def _report(
    ending: Ending,
    proof: Proof,
    reasons: Sequence[SkipReason],
    surroundings: Surroundings,
    checked: list[str],
    timeline: Timeline,
) -> list[str]:
    head = "is complete" if ending.worked else "is complete: nothing is left to do"
    lines = [f"run {proof.run_id} {head}", *report.proof_lines(proof, reasons)]
    if ending.worked:
        if ending.progress:
            lines += report.rate_lines(ending.progress)
        if ending.restarts:
            lines.append(
                report.row(
                    "restarts", f"{count_text(ending.restarts, 'time')} a process had ended; see its log"
                )
            )
        lines += [report.row("checked" if number == 0 else "", text) for number, text in enumerate(checked)]
        lines.append(report.time_line(timeline.parts()))
    url = f"{surroundings.store_url.rstrip('/')}/{proof.run_id}"
    home = surroundings.home.path if surroundings.s3 else None
    return lines + report.place_lines(url, home, surroundings.places.options)
