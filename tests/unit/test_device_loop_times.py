"""What the device's time went on, by its own clock: forward passes, the canary's among them, and waiting between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gpu_worker.device_loop import LoopReport
from gpu_worker.micro_batch import canary_sample, canary_tokens
from gpu_worker.transfer import HostTransfer
from tests.extraction import extract, tiny_run


class TokenClock(HostTransfer):
    """A device that takes a second for a padded token, and one before each pass."""

    now = 0.0

    def mark(self) -> float:
        return self.now


def test_seconds_of_passes_of_the_canary_and_between(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, micro_batch_tokens=40)
    message = max(run.manifests, key=lambda manifest: manifest.samples)
    reports: list[LoopReport] = []
    clock = TokenClock()
    with run.extractor() as (extractor, service), service.use(run.run_id) as served:
        loop: Any = served.engine.loop
        loop._transfer = clock
        forward, run_batch, acquire = served.engine.model.forward, loop.extract, loop._ring.acquire

        def timed(ids: torch.Tensor, rows: Any) -> None:
            forward(ids, rows)
            clock.now += ids.numel()

        def waited() -> Any:
            clock.now += 1
            return acquire()

        def reported(*arguments: Any) -> LoopReport:
            reports.append(run_batch(*arguments))
            return reports[-1]

        served.engine.model.forward = timed  # type: ignore[method-assign]
        loop._ring.acquire, loop.extract = waited, reported
        extract(extractor, message)
        batch = served.tokens.batch(message.batch_id)
        passes = loop.passes(batch)
    (report,) = reports
    canary = min(int(batch.lengths[canary_sample(batch)]), canary_tokens(batch))
    padded = sum((last - first) * int(batch.lengths[first:last].max()) for first, last in passes) + canary
    assert len(passes) > 1
    assert 0 < canary < padded / 2
    assert report == LoopReport(padded, canary, len(passes), padded, 0)
