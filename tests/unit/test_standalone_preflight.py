"""What is refused before anything is prepared."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from common.settings.catalogue import (
    DataSettings,
    ExtractSettings,
    PlanSettings,
    QueueSettings,
    SpoolSettings,
    StandaloneSettings,
)
from common.settings.resolve import Resolved, resolve
from hiddenfeed.errors import ConfigError, TransientError
from standalone import preflight
from standalone.errand import Answer, run_all
from standalone.roles import Role, device_names
from standalone.signals import Interrupted, StopRequest
from tests.synthetic_run import synthetic_run

GROUPS = (
    DataSettings,
    PlanSettings,
    QueueSettings,
    SpoolSettings,
    ExtractSettings,
    StandaloneSettings,
)


def _resolved(tmp_path: Path, **changes: str) -> Resolved:
    data = tmp_path / "chats.jsonl"
    data.write_text("{}\n")
    return resolve(GROUPS, {"data": str(data), "model": "m", **changes}, {})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"lease_seconds": "6"}, "--heartbeat-seconds 10 is more than a third of --lease-seconds 6"),
        ({"run_id": "../x"}, "--run-id: run id '../x' is not allowed"),
        ({"name": "a b"}, "--name: run name 'a b' is not allowed"),
        ({"name": "a" * 61}, "at most 60"),
        ({"min_length": "9", "max_length": "8"}, "--min-length 9 is above --max-length 8"),
        ({"spool_cap_bytes": "1MiB"}, "--target-file-bytes of 512.0 MiB never fits into a spool"),
        ({"devices": "cuda:0,,cuda:1"}, "'' is not a number, cuda:N or cpu"),
        ({"devices": "1,cuda:01"}, "name cuda:1 more than once"),
        ({"devices": "0,all"}, "'all' is not a number, cuda:N or cpu"),
        ({"run": "r"}, "--run is for GPU workers alone"),
        ({"chat_template": "/nowhere.jinja"}, "there is no file /nowhere.jinja"),
        ({"model_path": "/nowhere"}, "there is no folder /nowhere"),
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        preflight.check_settings(_resolved(tmp_path, **changes))
    assert sentence in str(caught.value)


def test_settings_that_can_work(tmp_path: Path) -> None:
    preflight.check_settings(_resolved(tmp_path, devices="cuda:0, cuda:1", name="a-b", run_id="a-b-0"))


def test_data_is_looked_for_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "full.jsonl").write_text("{}\n")
    for there in ("full.jsonl", "*.jsonl", ""):
        preflight.check_input(str(tmp_path / there))
    for elsewhere in ("s3://bucket/key", "hf://datasets/a/b", "org/name"):
        preflight.check_input(elsewhere)
    for data, sentence in (("*.json", "there is no file"), ("empty.*", "is empty")):
        with pytest.raises(ConfigError, match=sentence):
            preflight.check_input(str(tmp_path / data))
    with pytest.raises(ConfigError, match="here the rows must be in a file"):
        preflight.check_input("-")


def test_a_disk_that_would_let_no_file_in(tmp_path: Path) -> None:
    spool = SpoolSettings(spool_dir=str(tmp_path / "spool"), spool_free_bytes=2**62)
    with pytest.raises(ConfigError, match=r"has .* free, and a batch file of 512.0 MiB beside"):
        preflight.check_disk(PlanSettings(), spool, tmp_path / "cache")
    roomy = msgspec.structs.replace(spool, spool_free_bytes=0)
    preflight.check_disk(PlanSettings(target_file_bytes=1), roomy, tmp_path / "cache")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--cache-dir .* cannot be written"):
        preflight.check_disk(PlanSettings(target_file_bytes=1), roomy, tmp_path / "file" / "cache")


@pytest.mark.parametrize(
    ("changes", "asked"),
    [({}, False), ({"threads": "2"}, False), ({"device": "cuda"}, True), ({"devices": "cpu"}, True)],
)
def test_torch_is_asked_only_for_what_it_alone_knows(
    tmp_path: Path, changes: dict[str, str], asked: bool
) -> None:
    assert preflight.needs_torch(_resolved(tmp_path, **changes)) is asked


@pytest.mark.parametrize(
    ("given", "names"),
    [(None, []), ("0, 1", ["cuda:0", "cuda:1"]), ("cpu,cuda", ["cpu", "cuda:0"]), ("all", ["all"])],
)
def test_devices_have_names(given: str | None, names: list[str]) -> None:
    assert device_names(StandaloneSettings(devices=given)) == names


def test_all_devices_are_those_that_torch_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "run_all", lambda commands, stop: [Answer(0, "2\n", "")])
    spelled = preflight.named_devices(StandaloneSettings(devices="all"), StopRequest())
    assert device_names(spelled) == ["cuda:0", "cuda:1"]
    one = StandaloneSettings(devices="cuda:3")
    assert preflight.named_devices(one, StopRequest()) is one
    monkeypatch.setattr(preflight, "run_all", lambda commands, stop: [Answer(0, "0\n", "")])
    with pytest.raises(ConfigError, match="torch sees no CUDA device"):
        preflight.named_devices(StandaloneSettings(devices="all"), StopRequest())


def test_a_run_that_does_not_fit_on_the_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = synthetic_run().document
    assert preflight.disk_warning(document, tmp_path) == ""
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=100))
    assert re.match(
        rf"the run's files need .* KiB, and the disk of {tmp_path} has 100 B free",
        preflight.disk_warning(document, tmp_path),
    )


def _role(script: str) -> Role:
    return Role("gpu_worker-1", (sys.executable, "-c", script), {})


def test_a_workers_own_sentence_is_the_error() -> None:
    said = "import sys; print('noise\\nerror: no such device', file=sys.stderr); sys.exit(%d)"
    with pytest.raises(ConfigError, match=r"^no such device$"):
        preflight.check_workers([_role("pass"), _role(said % 2)], StopRequest())
    with pytest.raises(TransientError, match=r"^no such device$"):
        preflight.check_workers([_role(said % 75)], StopRequest())


def test_an_errand_is_shown_as_it_goes_and_given_up_at_once() -> None:
    stop, seen, begun = StopRequest(), [], threading.Event()
    script = (
        "import sys, threading; print('on my way', file=sys.stderr, flush=True); threading.Event().wait()"
    )

    def look(said: list[str]) -> None:
        seen.append(said[0])
        if "on my way" in said[0]:
            begun.set()
            stop.ask()

    with pytest.raises(Interrupted):
        run_all([([sys.executable, "-c", script], {})], stop, look)
    assert begun.is_set()
    (answer,) = run_all([([sys.executable, "-c", "print(7)"], {})], StopRequest())
    assert (answer.code, answer.output, answer.sentences) == (0, "7\n", [])
