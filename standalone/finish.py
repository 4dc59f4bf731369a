"""The end of a run: the proof as it stands in the store, a sample computed again, the report."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from common.run_state import Progress
from hiddenfeed.errors import DataError, PermanentError
from hiddenfeed.proof import Proof, load_proof
from standalone import report
from standalone.display import Display
from standalone.surroundings import Surroundings
from standalone.timeline import Timeline

#: Samples computed again, alone, by the whole model.
_SAMPLES = 2


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
) -> int:
    """Check a sample if anything was computed, and say how the run ended; returns the exit code.

    Raises PermanentError if the store holds no proof, DataError if the sample does not agree.
    """
    store = surroundings.open_store()
    proof = load_proof(store, ending.run_id)
    if proof is None:
        raise PermanentError(f"run {ending.run_id} ended, but {surroundings.store_url} holds no proof of it")
    checked: list[str] = []
    if ending.worked and proof.stored:
        timeline.begin("check")
        display.status("computing samples again, each alone, to compare")
        checked = check_sample(ending.run_id, environ)
    timeline.end()
    display.clear()
    for line in _report(ending, proof, surroundings, checked, timeline):
        display.say(line)
    return 0


def check_sample(run_id: str, environ: Mapping[str, str]) -> list[str]:
    """What `python -m gpu_worker check` says of the run; raises DataError if the states do not agree."""
    command = [sys.executable, "-m", "gpu_worker", "check", "--run", run_id, "--samples", str(_SAMPLES)]
    done = subprocess.run(
        command, env=dict(environ), capture_output=True, text=True, check=False, start_new_session=True
    )
    # The last line is for programs.
    said = [line.rstrip() for line in done.stdout.splitlines() if line.strip() and not line.startswith("{")]
    if done.returncode != 0:
        errors = [
            line.removeprefix("error: ") for line in done.stderr.splitlines() if line.startswith("error: ")
        ]
        reason = "; ".join(errors or [line.strip() for line in said if "DIFFERS" in line])
        reason = reason or f"the check ended with exit code {done.returncode}"
        raise DataError(f"run {run_id} is complete, but samples computed again were not confirmed: {reason}")
    return said


def _report(
    ending: Ending,
    proof: Proof,
    surroundings: Surroundings,
    checked: list[str],
    timeline: Timeline,
) -> list[str]:
    head = "is complete" if ending.worked else "is complete: nothing is left to do"
    lines = [f"run {proof.run_id} {head}", *report.proof_lines(proof)]
    if ending.worked:
        if ending.progress:
            lines += report.rate_lines(ending.progress)
        if ending.restarts:
            lines.append(
                report.row("restarts", f"{ending.restarts} of a process that had ended; see its log")
            )
        lines += [report.row("checked" if number == 0 else "", text) for number, text in enumerate(checked)]
        lines.append(report.time_line(timeline.parts()))
    url = f"{surroundings.store_url.rstrip('/')}/{proof.run_id}"
    home = surroundings.home.path if surroundings.s3 else None
    return lines + report.place_lines(url, home)
