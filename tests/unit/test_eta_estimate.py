"""The time left: what the fit finds, what a fleet is worth, and how sure it is."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from benchmarks.eta import SCENARIOS, errors_of, oracle_errors
from benchmarks.eta_fleet import plan_work, record_of, simulate
from common.batch_cost import CostSums, cost_terms, fit
from common.eta import Estimate, estimate
from common.progress_records import RecentWork
from common.run_state import Progress, RunRecord, WorkerProgress
from common.worker.presence import serving
from tests import monitor_scene

NOW = 1000.0


def _sums(batches: list[tuple[int, int, float]], device: str = "cpu") -> CostSums:
    """Of (tokens, squares, seconds)."""
    total: dict[str, float] = {}
    for batch in batches:
        for name, amount in cost_terms(*batch).items():
            total[name] = total.get(name, 0) + amount
    return msgspec.convert({"device": device, **total}, CostSums, strict=False)


def _record(batches: int = 100) -> RunRecord:
    return RunRecord(
        run_id="r", model="m", samples=100, tokens=1000 * batches, batches=batches, squares=10**6 * batches,
        submitted_at=0,
    )  # fmt: skip


def _worker(name: str, batches: int, seconds: float = 2.0, device: str = "cpu") -> WorkerProgress:
    """A worker whose batches of 1,000 tokens take `seconds`, one right after the other."""
    return WorkerProgress(
        worker=name, device=device, batches=batches, samples=batches, tokens=1000 * batches,
        squares=10**6 * batches, forward_seconds=seconds * batches, active_seconds=seconds * (batches - 1),
        first_at=NOW - seconds * (batches - 1), last_at=NOW,
    )  # fmt: skip


def _progress(*workers: WorkerProgress) -> Progress:
    batches = sum(worker.batches for worker in workers)
    costs: dict[str, list[tuple[int, int, float]]] = {}
    for worker in workers:
        each = (1000, 10**6, worker.forward_seconds / worker.batches)
        costs.setdefault(worker.device_class, []).extend([each] * worker.batches)
    return Progress(
        run_id="r", batches=batches, samples=batches, tokens=1000 * batches, squares=10**6 * batches,
        first_at=NOW - 1, last_at=NOW, workers=workers,
        costs=tuple(_sums(done, device) for device, done in costs.items()),
    )  # fmt: skip


def _seconds(progress: Progress, *living: str, at: float = NOW, record: RunRecord | None = None) -> float:
    found = estimate(record or _record(), progress, living, at)
    assert found is not None
    assert found.low_seconds <= found.seconds <= found.high_seconds
    return found.seconds


def test_fit_finds_the_cost_of_tokens_and_of_pairs() -> None:
    batches = [(tokens, squares, 2e-3 * tokens + 3e-6 * squares)
               for tokens, squares in ((1000, 400_000), (1200, 200_000), (800, 900_000), (1100, 300_000)) * 20]  # fmt: skip
    cost = fit(_sums(batches))
    assert cost is not None
    assert cost.seconds(1000, 0) == pytest.approx(2.0, rel=0.02)
    assert cost.seconds(0, 10**6) == pytest.approx(3.0, rel=0.05)
    assert cost.spread < 0.05


def test_batches_that_are_all_alike_are_costed_by_the_token() -> None:
    cost = fit(_sums([(1000, 500_000, 4.0)] * 5))
    assert cost is not None
    assert cost.seconds(1000, 500_000) == pytest.approx(4.0)


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_not_taken_for_the_cost_of_attention(seed: int) -> None:
    random = np.random.default_rng(seed)
    batches = [
        (
            int(4000 * random.normal(1, 0.02)),
            int(10**6 * random.normal(1, 0.1)),
            float(random.lognormal(0, 0.4)),
        )
        for _ in range(30)
    ]
    cost = fit(_sums(batches))
    assert cost is not None
    # Batches with a quarter more pairs of tokens do not cost much more, or less, than those that were seen.
    usual = sum(seconds for _, _, seconds in batches) / 30
    assert cost.seconds(4000, 1.25 * 10**6) == pytest.approx(usual, rel=0.1)


@pytest.mark.parametrize("squares", [0, 10**6])
def test_costs_are_never_negative(squares: int) -> None:
    cost = fit(_sums([(1000, squares, 5.0), (2000, 4 * squares, 1.0), (3000, 9 * squares, 0.5)]))
    assert cost is not None
    assert min(cost.a, cost.b) >= 0
    assert fit(CostSums(device="cpu")) is None


def test_one_worker_goes_on_as_it_did() -> None:
    # 80 batches of 2 s are left.
    assert _seconds(_progress(_worker("a", 20)), "a") == pytest.approx(160, rel=0.01)
    assert _seconds(_progress(_worker("a", 20)), "a", at=NOW + 1) == pytest.approx(159, rel=0.01)
    # Silence is no progress: the clock stops where the next batch was due.
    assert _seconds(_progress(_worker("a", 20)), "a", at=NOW + 100) == pytest.approx(158, rel=0.01)


def test_a_worker_that_dies_takes_its_speed_with_it_and_a_new_one_is_taken_for_usual() -> None:
    progress = _progress(_worker("a", 20), _worker("b", 20))
    assert _seconds(progress, "a", "b") == pytest.approx(60, rel=0.01)
    assert _seconds(progress, "a") == pytest.approx(120, rel=0.01)
    assert _seconds(progress, "a", "b", "new") == pytest.approx(40, rel=0.01)
    # All are gone, another came.
    assert _seconds(progress, "new") == pytest.approx(120, rel=0.01)


def test_devices_of_different_speed_are_not_averaged() -> None:
    progress = _progress(_worker("a", 30, 2.0, "cuda:0"), _worker("b", 10, 6.0, "other:0"))
    assert _seconds(progress, "a", "b") == pytest.approx(60 / (1 / 2 + 1 / 6), rel=0.02)
    assert _seconds(progress, "b") == pytest.approx(360, rel=0.03)


def test_two_models_of_gpu_are_two_kinds() -> None:
    fast = msgspec.structs.replace(_worker("a", 30, 2.0, "cuda:0"), kind="NVIDIA H200")
    slow = msgspec.structs.replace(_worker("b", 10, 6.0, "cuda:0"), kind="NVIDIA A100")
    progress = _progress(fast, slow)
    assert {cost.device for cost in progress.costs} == {"NVIDIA H200", "NVIDIA A100"}
    assert _seconds(progress, "a", "b") == pytest.approx(60 / (1 / 2 + 1 / 6), rel=0.02)


def test_what_is_done_once_at_the_start_does_not_count_and_what_was_of_late_does() -> None:
    # The first batch took a minute, for what is done once; ten came every 2 s, sixty every 3 s.
    worker = _worker("a", 71, 3.0)
    recent = RecentWork()
    for seconds in (2.0,) * 10 + (3.0,) * 60:
        recent = recent.after(seconds, 1000, 10**6, seconds)
    worker = msgspec.structs.replace(
        worker, forward_seconds=60 + 20 + 180, recent=" ".join(map(str, msgspec.structs.astuple(recent)))
    )
    progress = msgspec.structs.replace(
        _progress(worker),
        costs=(_sums([(1000, 10**6, 3.0)] * 60 + [(1000, 10**6, 2.0)] * 10),),
        first_costs=(_sums([(3000, 9 * 10**6, 60.0)]),),
    )
    assert _seconds(progress, "a") == pytest.approx(29 * 3, rel=0.05)


def test_a_first_batch_is_better_than_nothing() -> None:
    progress = msgspec.structs.replace(
        _progress(_worker("a", 1)), costs=(), first_costs=(_sums([(1000, 10**6, 2.0)]),)
    )
    assert _seconds(progress, "a") == pytest.approx(198, rel=0.01)


def test_what_holds_the_devices_up_counts() -> None:
    # Each batch takes 2 s of the device, and one arrives every 10 s: uploads are slow.
    slow = msgspec.structs.replace(_worker("a", 20), active_seconds=190.0)
    assert _seconds(_progress(slow), "a") == pytest.approx(800, rel=0.05)


def test_files_that_waited_and_arrive_at_once_make_no_device_faster() -> None:
    # Each batch takes 2 s of the device; an uploader that was away has brought all of the last sixty within a second.
    caught_up = msgspec.structs.replace(_worker("a", 61), active_seconds=1.0)
    record = _record(161)
    assert _seconds(_progress(caught_up), "a", record=record) == pytest.approx(200, rel=0.05)


def test_a_producer_that_did_not_say_what_attention_costs_does_not_shorten_the_run() -> None:
    progress = _progress(_worker("a", 20))
    dear = [
        CostSums(device="cpu", batches=20, x=20, z=20, y=40, xx=20, xz=20, zz=20.4, xy=40, zy=40.6, yy=81)
    ]
    progress = msgspec.structs.replace(progress, costs=tuple(dear))
    known = _seconds(progress, "a")
    assert _seconds(progress, "a", record=msgspec.structs.replace(_record(), squares=0)) == pytest.approx(
        known
    )


def test_nobody_there_nothing_known_and_nothing_left() -> None:
    assert estimate(_record(), _progress(_worker("a", 5)), (), NOW) is None
    assert estimate(_record(), Progress(run_id="r"), ("a",), NOW) is None
    assert _seconds(_progress(_worker("a", 100)), "a") == 0


def test_the_range_narrows() -> None:
    def width(done: int) -> float:
        found = estimate(_record(), _progress(_worker("a", done)), ("a",), NOW)
        assert found is not None
        return (found.high_seconds - found.low_seconds) / found.seconds

    assert width(2) > width(10) > width(40)


@pytest.mark.parametrize("name", ["two kinds of device", "one of two dies", "slow uploads"])
def test_simulated_fleets_are_foretold(name: str) -> None:
    (fleet,) = [scenario for scenario in SCENARIOS if scenario.name == name]
    work = plan_work(fleet, seed=1)
    errors = errors_of(record_of(work), list(simulate(fleet, work, seed=1)), fleet.asked)
    assert errors.get("error_at_5pct", 0) < 0.10
    assert errors["error_at_20pct"] < 0.05


def test_who_knows_what_batches_cost_is_off_by_what_the_machine_does() -> None:
    (fleet,) = [scenario for scenario in SCENARIOS if scenario.name == "one worker"]
    work = plan_work(fleet, seed=1)
    looks = list(simulate(fleet, work, seed=1))
    steady = oracle_errors(record_of(work), looks)
    assert max(steady.values()) < 0.02
    # The same on a machine that takes twice as long from a tenth of the run on.
    turn = looks[len(looks) // 10].at
    slower = [replace(look, at=look.at + max(0.0, look.at - turn)) for look in looks]
    assert oracle_errors(record_of(work), slower)["oracle_error_at_5pct"] == pytest.approx(0.5, abs=0.05)


def test_only_gpu_workers_that_serve_the_run_count_for_it() -> None:
    fleet = [
        monitor_scene.worker("gpu_worker-h-1"),
        monitor_scene.worker("gpu_worker-h-2", queue="extract-other"),
        monitor_scene.worker("gpu_worker-h-3", queue=None),
        monitor_scene.worker("uploader-h-4", "uploader", queue=monitor_scene.QUEUE),
    ]
    assert serving(fleet, monitor_scene.QUEUE) == ["gpu_worker-h-1"]


def test_it_is_said_with_its_range() -> None:
    found = Estimate(seconds=7500.0, low_seconds=7080.0, high_seconds=7920.0)
    assert str(found) == "about 2 h 05 min left (1 h 58 min to 2 h 12 min)"
