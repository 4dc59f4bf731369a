"""/metrics: parsed by Prometheus's own parser, named as usual, and known to the dashboard and the alert rules."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from monitor.prometheus import exposition
from monitor.snapshot import take_snapshot
from tests.monitor_scene import NOW, RUN, scene, worker

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = ("_seconds", "_bytes", "_ratio", "_total")
#: Counts and states, which have no unit.
UNITLESS = {
    "hiddenfeed_up", "hiddenfeed_store_up", "hiddenfeed_run_planned_batches", "hiddenfeed_run_planned_tokens",
    "hiddenfeed_run_planned_samples", "hiddenfeed_run_jobs", "hiddenfeed_run_state", "hiddenfeed_run_proved",
    "hiddenfeed_upload_jobs", "hiddenfeed_processes", "hiddenfeed_process_running_jobs", "hiddenfeed_process_slots",
    "hiddenfeed_spool_files", "hiddenfeed_run_canary_min_cosine", "hiddenfeed_run_selftest_min_cosine",
    "hiddenfeed_run_min_norm", "hiddenfeed_run_max_norm", "hiddenfeed_worker_info",
}  # fmt: skip


def _samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def _names() -> set[str]:
    return {name for name, _ in _samples(exposition(take_snapshot(scene(), NOW)))}


def test_numbers_of_the_scene() -> None:
    samples = _samples(exposition(take_snapshot(scene(), NOW)))
    run = ("run", RUN)
    assert samples["hiddenfeed_run_tokens_total", (run,)] == 100_000
    assert samples["hiddenfeed_run_jobs", (run, ("state", "queued"))] == 93
    assert samples["hiddenfeed_run_state", (run, ("state", "running"))] == 1
    assert samples["hiddenfeed_processes", (("role", "gpu_worker"), ("state", "busy"))] == 2
    assert samples["hiddenfeed_processes", (("role", "uploader"), ("state", "silent"))] == 0
    assert samples["hiddenfeed_spool_used_ratio", (("spool", "default"),)] == pytest.approx(6 / 50)
    assert samples["hiddenfeed_run_remaining_seconds", (run,)] > 0
    assert samples["hiddenfeed_run_checked_batches_total", (run,)] == 99
    assert samples["hiddenfeed_run_failed_check_samples_total", (("check", "finite"), run)] == 3
    assert samples["hiddenfeed_run_failed_check_samples_total", (("check", "canary"), run)] == 0
    assert samples["hiddenfeed_run_canary_min_cosine", (run,)] == 0.99912
    assert samples["hiddenfeed_run_selftest_max_error_ratio", (run,)] == 0.0045
    assert samples["hiddenfeed_run_max_norm", (run, ("state", "tap 18"))] == 1234.5


def test_names_are_conventional() -> None:
    names = _names()
    assert all(re.fullmatch(r"hiddenfeed_[a-z]+(_[a-z]+)*", name) for name in names)
    assert {name for name in names if not name.endswith(UNITS)} == UNITLESS


def test_what_is_unknown_is_left_out() -> None:
    away = exposition(take_snapshot(scene(redis_error="Redis is not there", runs=(), workers=()), NOW))
    assert _samples(away) == {("hiddenfeed_up", ()): 0, ("hiddenfeed_store_up", ()): 1}
    no_spool = {name for name, _ in _samples(exposition(take_snapshot(scene(spool=None), NOW)))}
    assert not any("spool" in name for name in no_spool)


def test_labels_from_redis_break_no_line() -> None:
    evil = 'a"b\\c\nhiddenfeed_up 7'
    text = exposition(take_snapshot(scene(workers=(worker(evil),)), NOW))
    assert _samples(text)["hiddenfeed_up", ()] == 1
    assert ("process", evil) in {label for _, labels in _samples(text) for label in labels}


def test_alert_rules_and_dashboard_speak_of_metrics_that_exist() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert {"HiddenfeedUploadLagGrowing", "HiddenfeedSpoolNearCap", "HiddenfeedNoProgress", "HiddenfeedFailureRate",
            "HiddenfeedWorkerLost"} <= {rule["alert"] for rule in alerts}  # fmt: skip
    board: dict[str, Any] = json.loads((DEPLOY / "grafana/hiddenfeed.json").read_text())
    said = [rule["expr"] for rule in alerts]
    said += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    said += [msgspec.json.encode(board["templating"]).decode()]
    used = {name for expression in said for name in re.findall(r"hiddenfeed_\w+", expression)}
    assert used
    assert used <= _names()


def test_each_alert_is_shown_to_fire_and_not_to_fire() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())
    shown = yaml.safe_load((DEPLOY / "prometheus/alerts_test.yml").read_text())
    asked = [each for test in shown["tests"] for each in test["alert_rule_test"]]
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert {each["alertname"] for each in asked if each["exp_alerts"]} == alerts
    assert {each["alertname"] for each in asked if not each["exp_alerts"]} == alerts


#: Grafana's units that the dashboard uses, of the many it knows.
GRAFANA_UNITS = {"none", "short", "percentunit", "s", "bytes", "Bps", "cps", "decbytes", "binBps"}
#: Panels of Grafana itself; others would have to be installed.
GRAFANA_PANELS = {"gauge", "stat", "timeseries", "bargauge", "table", "row", "alertlist", "state-timeline"}


def test_dashboard_is_what_grafana_imports() -> None:
    board: dict[str, Any] = json.loads((DEPLOY / "grafana/hiddenfeed.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] in GRAFANA_PANELS
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"].get("unit", "none") in GRAFANA_UNITS
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        for source in (panel["datasource"], *(target["datasource"] for target in panel["targets"])):
            assert source == {"type": "prometheus", "uid": "${source}"}
    variables = {each["name"] for each in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)", json.dumps(panels)))
    assert used <= variables
    assert board["id"] is None
    assert 0 < board["schemaVersion"] <= 42
