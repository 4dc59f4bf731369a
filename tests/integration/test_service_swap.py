"""The run in service: prepared between jobs, swapped when the run changes, refused when something is wrong."""

from __future__ import annotations

import shutil
import weakref
from pathlib import Path

import msgspec
import pytest
import redis
import torch
from torch import nn

from common.hub import local_folder
from common.queues import drop_queue, enqueue, extract_queue_name, extract_request
from common.run_state import RunRecord, register_run
from common.settings.catalogue import ExtractSettings, QueueSettings
from common.worker import GiveBack
from gpu_worker import engine
from gpu_worker.model import ModelSource, load_pretrained
from gpu_worker.runs import RETRY_SECONDS, RunChooser
from gpu_worker.service import RunService
from gpu_worker.tokens import TokenCache
from hiddenfeed.errors import ConfigError, DataError
from hiddenfeed.layout import run_document_key
from hiddenfeed.run import fingerprint
from producer.__main__ import main as producer
from tests.extraction import TinyRun, tiny_run
from tests.tiny_models import save_model


def test_same_model_and_taps_are_not_loaded_again(tmp_path: Path) -> None:
    first = tiny_run(tmp_path / "one")
    second = tiny_run(tmp_path / "one", seed=5)
    assert first.run_id != second.run_id
    service = first.service()
    assert service.prepare(first.run_id)
    with service.use(first.run_id) as served:
        engine = served.engine
    assert service.prepare(second.run_id)
    with service.use(second.run_id) as served:
        assert served.engine is engine
        assert served.document.run_id == second.run_id
    service.close()


def test_what_is_kept_is_said_at_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = tiny_run(tmp_path, taps=(1, 4))
    service = run.service()
    with caplog.at_level("INFO", logger="hiddenfeed"):
        service.prepare(run.run_id)
    service.close()
    (said,) = [record for record in caplog.records if record.getMessage() == "run in service"]
    assert vars(said)["hiddenfeed_fields"]["keeps"] == run.document.taps_meaning
    assert run.document.taps_meaning.startswith(
        "states after 1, 4 of 4 blocks, in this order; 4 = after the last"
    )


def test_a_run_without_batches_is_refused(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    plan = msgspec.structs.replace(run.document.plan, batches=0)
    run.store.write(
        run_document_key(run.run_id), msgspec.json.encode(msgspec.structs.replace(run.document, plan=plan))
    )
    with pytest.raises(ConfigError, match=f"run {run.run_id} has no batches"):
        run.service().prepare(run.run_id)


def test_head_and_vision_tower_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(tmp_path, architecture="gemma3_multimodal", taps=(1, 2))
    loaded: list[weakref.ref[nn.Module]] = []
    parts: list[weakref.ref[nn.Module]] = []

    def load(source: ModelSource) -> nn.Module:
        whole = load_pretrained(source)
        loaded.append(weakref.ref(whole))
        parts.extend(
            weakref.ref(module)
            for name, module in whole.named_modules()
            if "vision" in name or "lm_head" in name or ".layers.2" in name or ".layers.3" in name
        )
        return whole

    monkeypatch.setattr(engine, "load_pretrained", load)
    service = run.service()
    service.prepare(run.run_id)
    # Without the garbage collector's help: what is measured as free memory is free.
    assert loaded[0]() is None
    assert len(parts) > 10
    assert not [reference() for reference in parts if reference() is not None]
    with service.use(run.run_id) as served:
        names = [name for name, _ in served.engine.model.parts.decoder.named_parameters()]
        assert any(name.startswith("layers.1.") for name in names)
        assert not any(name.startswith("layers.2.") for name in names)
    service.close()


def test_other_taps_are_another_model(tmp_path: Path) -> None:
    first = tiny_run(tmp_path / "one", taps=(1,))
    second = tiny_run(tmp_path / "one", taps=(1, 3))
    service = first.service()
    service.prepare(first.run_id)
    service.prepare(second.run_id)
    with service.use(second.run_id) as served:
        assert served.engine.model.parts.num_blocks == 3
    service.close()


def test_model_is_not_changed_under_a_job(tmp_path: Path) -> None:
    first = tiny_run(tmp_path / "one")
    second = tiny_run(tmp_path / "one", taps=(4,))
    service = first.service()
    service.prepare(first.run_id)
    with service.use(first.run_id):
        assert not service.prepare(second.run_id)
        assert service.served is not None
        assert service.served.document.run_id == first.run_id
    assert service.prepare(second.run_id)
    with pytest.raises(GiveBack), service.use(first.run_id):
        pass
    service.close()


def test_weights_that_changed_since_planning_are_refused(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    shutil.rmtree(run.model)
    save_model(run.model, "llama", torch.float32, seed=1)
    with pytest.raises(ConfigError, match="is not the one that the run was planned for"):
        run.service().prepare(run.run_id)


def test_same_weights_in_another_folder_do(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    elsewhere = run.model.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is not there"):
        run.service().prepare(run.run_id)
    service = run.service(ExtractSettings(model_path=str(elsewhere)))
    assert service.prepare(run.run_id)
    service.close()


def test_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    # Of a model on the hub the hash is not known, its shape is.
    identity = msgspec.structs.replace(run.document.identity, model="somebody/model")
    document = msgspec.structs.replace(
        run.document, identity=identity, fingerprint=fingerprint(identity), num_blocks=6
    )
    run.store.write(run_document_key(run.run_id), msgspec.json.encode(document))
    with pytest.raises(
        ConfigError, match=r"has 4 blocks of width 32, and run .* was planned for 6 of width 32"
    ):
        run.service().prepare(run.run_id)


def test_run_that_is_not_there(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    with pytest.raises(DataError, match="there is no run gone-0"):
        run.service().prepare("gone-0")


# --- the chooser ---


def _submit(client: redis.Redis, run: TinyRun, submitted_at: float) -> None:
    plan = run.document.plan
    record = RunRecord(
        run_id=run.run_id,
        model=run.document.model,
        samples=plan.samples,
        tokens=plan.tokens,
        batches=plan.batches,
        submitted_at=submitted_at,
    )
    register_run(client, record)
    enqueue(client, [extract_request(message) for message in run.manifests], QueueSettings())


class Clock:
    """Time that goes when it is told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_chooser_prepares_the_oldest_run_and_follows_what_people_say(
    tmp_path: Path, redis_client: redis.Redis, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    newer, older = tiny_run(tmp_path / "one"), tiny_run(tmp_path / "one", seed=3)
    service = newer.service()
    chooser = RunChooser(redis_client, service)
    assert chooser.choose_queue(None) is None
    _submit(redis_client, newer, 2.0)
    _submit(redis_client, older, 1.0)
    assert chooser.choose_queue(None) == extract_queue_name(older.run_id)
    assert service.served is not None
    assert service.served.document.run_id == older.run_id
    current: str | None = extract_queue_name(older.run_id)
    assert chooser.choose_queue(current) == current
    for command, run, then in (
        ("pause", older, newer),
        # It has work, and the other is not more important.
        ("resume", older, newer),
        ("priority", older, older),
        ("cancel", older, newer),
        ("cancel", newer, None),
    ):
        number = ["3"] if command == "priority" else []
        assert producer([command, "--redis-url", redis_url, run.run_id, *number]) == 0
        current = chooser.choose_queue(current)
        assert current == (extract_queue_name(then.run_id) if then else None), command
    assert capsys.readouterr().out.count("is cancelled: what is stored stays") == 2
    service.close()


def test_run_that_cannot_be_served_is_passed_over_for_a_while(
    tmp_path: Path, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    broken, good = tiny_run(tmp_path / "one"), tiny_run(tmp_path / "two", seed=3)
    _submit(redis_client, broken, 1.0)
    away = broken.model.rename(tmp_path / "away")
    clock = Clock()
    service = broken.service()
    chooser = RunChooser(redis_client, service, clock=clock)
    assert chooser.choose_queue(None) is None
    assert chooser.choose_queue(None) is None
    assert [record.getMessage() for record in caplog.records].count("cannot serve a run") == 1
    # Whoever looks at the monitor sees it with the worker, for as long as it is so.
    assert chooser.why_idle().startswith(f"cannot serve {broken.run_id}: ")
    assert len(chooser.why_idle()) <= 300
    clock.now += RETRY_SECONDS + 1
    assert chooser.why_idle() == ""
    clock.now -= RETRY_SECONDS + 1

    _submit(redis_client, good, 2.0)
    both = _both_stores(tmp_path, broken, good)
    chooser = RunChooser(redis_client, both, clock=clock)
    assert chooser.choose_queue(None) is None
    assert chooser.choose_queue(None) == extract_queue_name(good.run_id)

    away.rename(broken.model)
    clock.now += RETRY_SECONDS - 1
    assert chooser.choose_queue(None) == extract_queue_name(good.run_id)
    clock.now += 2
    drop_queue(redis_client, extract_queue_name(good.run_id))
    assert chooser.choose_queue(None) == extract_queue_name(broken.run_id)
    both.close()


def _both_stores(tmp_path: Path, *runs: TinyRun) -> RunService:
    """A service over one store that holds all of the runs."""
    for run in runs[1:]:
        shutil.copytree(run.store.root / run.run_id, runs[0].store.root / run.run_id)
    return RunService(runs[0].store, TokenCache(tmp_path / "cache"), ExtractSettings(), torch.device("cpu"))


def test_pinned_run_that_cannot_be_served_ends_the_worker(tmp_path: Path, redis_client: redis.Redis) -> None:
    run = tiny_run(tmp_path)
    _submit(redis_client, run, 1.0)
    shutil.rmtree(run.model)
    chooser = RunChooser(redis_client, run.service(), pinned=run.run_id)
    with pytest.raises(ConfigError, match="is not there"):
        chooser.choose_queue(None)


def test_local_folder_is_what_decides_revisions(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    assert local_folder(run.document.model) == run.model.resolve()
