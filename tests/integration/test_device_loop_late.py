"""The loop over a device that answers late, as a GPU does: nothing is read before it has landed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

import benchmarks.device_loop
from benchmarks.device_loop import Scale, Variant
from gpu_worker import device_loop
from gpu_worker.extract import Extractor
from gpu_worker.host_ring import ChunkTensors, RowShape
from gpu_worker.transfer import HostTransfer, Landing
from tests.extraction import TinyRun, extract, tiny_run


class LateTransfer(HostTransfer):
    """States stay on the device until the writer waits for them; until then the host's buffer holds rubbish."""

    def __init__(self) -> None:
        self.in_flight: set[int] = set()
        self.landings = 0
        self.waited_by: set[str] = set()
        self.entered: set[str] = set()

    def enter(self) -> None:
        self.entered.add(threading.current_thread().name)

    def targets(self, host: ChunkTensors, shape: RowShape) -> tuple[torch.Tensor, torch.Tensor | None]:
        final = None if host.final is None else torch.empty_like(host.final)
        return torch.empty_like(host.hidden_states), final

    def land(self, made: ChunkTensors, host: ChunkTensors) -> Landing:
        # A thread that has not said which device it means would open a context on the first one.
        assert threading.current_thread().name in self.entered
        place = host.hidden_states.data_ptr()
        assert place not in self.in_flight, "a buffer was used again before its states had landed"
        self.in_flight.add(place)
        self.landings += 1
        for tensor in host.all():
            tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
        return _Late(self, made, host)


class _Late:
    def __init__(self, transfer: LateTransfer, made: ChunkTensors, host: ChunkTensors) -> None:
        self._transfer, self._made, self._host = transfer, made, host

    def wait(self) -> None:
        for source, target in zip(self._made.all(), self._host.all(), strict=True):
            target.copy_(source)
        self._transfer.in_flight.discard(self._host.hidden_states.data_ptr())
        self._transfer.waited_by.add(threading.current_thread().name)


def _extract_all(run: TinyRun) -> dict[int, bytes]:
    """Every batch of the run, several at a time as the worker does it; batch -> bytes of its file."""
    spool, files = run.spool(), {}
    with run.extractor(spool) as (extractor, _):
        waiting = list(run.manifests)

        def work(extractor: Extractor) -> None:
            while waiting:
                message = waiting.pop()
                files[message.batch_id] = spool.resolve(extract(extractor, message).path).read_bytes()

        threads = [threading.Thread(target=work, args=(extractor,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return files


def test_late_states_are_the_same_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(tmp_path, dtype="bfloat16", final_state="post")
    at_once = _extract_all(run)
    late = LateTransfer()
    monkeypatch.setattr(device_loop, "transfer_for", lambda device: late)
    assert _extract_all(run) == at_once
    assert late.landings > len(run.manifests)
    assert not late.in_flight
    # Nobody but the writer waits for the device.
    assert all(name.startswith("writer") for name in late.waited_by)
    assert late.waited_by <= late.entered


def test_device_loop_benchmark_measures_every_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = Scale(files=4, file_tokens=256, micro_batch_tokens=128)
    monkeypatch.setattr(benchmarks.device_loop, "QUICK", scale)
    monkeypatch.setattr(benchmarks.device_loop, "TOKENS_PER_SECOND", 100_000)
    variants = {
        "busy_fraction": Variant(),
        "busy_fraction_other": Variant(
            disk_bytes_per_second=5e9, uploader=True, writer_thread=False, batches_in_flight=1
        ),
    }
    monkeypatch.setattr(benchmarks.device_loop, "VARIANTS", variants)
    found = benchmarks.device_loop.run(quick=True)
    assert 0 < found["busy_fraction"] <= 1
    assert 0 < found["busy_fraction_other"] <= 1
    assert found["ring_bytes"] >= device_loop.SLOTS * 128 * 5 * 5120 * 2
    assert found["files"] >= 2
    assert len(benchmarks.device_loop.describe(found)) == 4
