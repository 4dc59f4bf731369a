"""Padded tokens of one forward pass: from the memory that is there, from the threads, from the setting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from common.settings.catalogue import ExtractSettings
from gpu_worker.agreement import tolerance_for
from gpu_worker.budget import MemoryProbe, tokens_for_threads, tokens_that_fit
from gpu_worker.device_loop import DeviceLoop
from gpu_worker.structure import dissect
from gpu_worker.taps import Selection, TapModel
from gpu_worker.transfer import HostTransfer
from tests.extraction import tiny_run
from tests.tiny_models import make_model

GIB = 1 << 30


@pytest.mark.parametrize(
    ("peak", "free", "row_bytes", "tokens"),
    [
        # 27B on a large card: 100 KB of activations a token and 50 KB of states; 80 GiB are plenty.
        (2048 * 100_000, 80 * GIB, 51_200, 262_144),
        # What is left of a small card.
        (2048 * 100_000, 3 * GIB, 51_200, 8_192),
        (2048 * 100_000, 0, 51_200, 1),
        (0, GIB, 0, 1 << 29),
        # Not even the probe fitted.
        (None, GIB, 51_200, 1024),
    ],
)
def test_tokens_that_fit(peak: int | None, free: int, row_bytes: int, tokens: int) -> None:
    assert tokens_that_fit(MemoryProbe(2048, peak, free, row_bytes)) == tokens


def test_a_little_less_memory_changes_nothing() -> None:
    found = {
        tokens_that_fit(MemoryProbe(2048, 2048 * 100_000, 5 * GIB - lack * 10_000_000, 51_200))
        for lack in range(10)
    }
    assert len(found) == 1


def test_tokens_for_threads() -> None:
    assert [tokens_for_threads(threads) for threads in (1, 2, 4, 64)] == [2048, 4096, 8192, 16384]


class SmallDevice(HostTransfer):
    """The host, called a device whose memory is limited."""

    def __init__(self, free: int, peak: int | None) -> None:
        self.free, self.peak, self.calls = free, peak, 0

    def free_bytes(self) -> int:
        return self.free

    def peak_bytes(self, call: Callable[[], Any]) -> int | None:
        self.calls += 1
        assert (call() is None) == (self.peak is None)
        return self.peak


def _loop(transfer: HostTransfer) -> tuple[DeviceLoop, TapModel]:
    model = TapModel(dissect(make_model("llama")), Selection((1, 3)))
    loop = DeviceLoop(model, torch.float32, tolerance_for(["float32"], median=False), transfer=transfer)
    return loop, model


def test_one_forward_pass_measures_the_device() -> None:
    # Positions end at 256: the probe is 4 x 256 tokens.
    device = SmallDevice(free=10_000_000, peak=1024 * 2_000)
    loop, _ = _loop(device)
    # 8 MB by 2000 bytes of activations and twice 2 taps x 32 x 4 bytes of states.
    assert loop.choose_limit([5, 6, 7]) == 2048
    assert (loop.limit, device.calls) == (2048, 1)
    loop.close()


def test_probe_that_runs_out_of_memory_is_halved() -> None:
    loop, model = _loop(SmallDevice(free=10_000_000, peak=None))

    def forward(ids: Any, rows: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    model.forward = forward  # type: ignore[method-assign]
    assert loop.choose_limit([5]) == 512
    loop.close()


def test_the_setting_decides_where_it_is_given(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    for tokens, limit in ((0, tokens_for_threads(torch.get_num_threads())), (70, 70)):
        service = run.service(ExtractSettings(forward_tokens=tokens))
        service.prepare(run.run_id)
        with service.use(run.run_id) as served:
            assert served.engine.loop.limit == limit
            batch = served.tokens.batch(0)
            passes = served.engine.loop.passes(batch)
            assert (passes[0][0], passes[-1][1]) == (0, batch.samples)
            assert all(
                last == first + 1 or (last - first) * batch.lengths[first:last].max() <= limit
                for first, last in passes
            )
        service.close()
