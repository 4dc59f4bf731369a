"""An end report of a run that never was, for tests of the page made of it."""

from __future__ import annotations

import msgspec

from common.run_state import Progress
from hiddenfeed.proof import ComputedWith, Proof
from producer.end_report import EndReport, make_report
from tests.monitor_scene import RUN, points, scene
from tests.synthetic_run import synthetic_run

EVIL = "<script>alert(1)</script>"


def report_of(progress: Progress | None, **changes: object) -> EndReport:
    """The report of a run with these counters; its texts would be markup if they were not escaped."""
    document = msgspec.structs.replace(
        synthetic_run().document, run_id=RUN, versions={"rq": EVIL}, settings={"taps": EVIL}
    )
    proof = Proof(
        run_id=RUN, fingerprint="0" * 12, rows=12, stored=9, skipped=2, quarantined=1, tokens=1000, batches=3,
        quarantined_batches=1, size_bytes=10**9, files=(),
        computed=(ComputedWith(how={"torch": EVIL, "dtype": "bfloat16", "device": "NVIDIA H200"}, batches=2),
                  ComputedWith(how={"dtype": "float32", "device": "a CPU, 2 threads"}, batches=1)),
    )  # fmt: skip
    report = make_report(document, proof, "s3://b/p", progress, points(backlog_step=1), {EVIL: 2}, {"no": 1})
    return msgspec.structs.replace(report, **changes)


def example_report() -> EndReport:
    """Of two workers and one uploader."""
    return report_of(scene().runs[0].progress)
