"""What the compose file must keep, checked without an engine."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def test_all_parts_are_there() -> None:
    assert set(SERVICES) == {
        "redis", "s3", "demo_model", "producer", "gpu_worker", "uploader", "monitor", "rq-dashboard",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["gpu_worker", "uploader"])
def test_scaled_services_have_no_fixed_name_and_no_port(name: str) -> None:
    assert not {"container_name", "ports", "hostname"} & set(SERVICES[name])


def test_nothing_listens_beyond_loopback_on_the_host() -> None:
    for service in SERVICES.values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")


def test_images_of_others_are_pinned() -> None:
    for name in ("redis", "s3"):
        assert re.fullmatch(r"\$\{\w+:-[\w./-]+:\d[\w.-]*\}", SERVICES[name]["image"])


def test_servers_and_workers_have_health_checks_and_are_waited_for() -> None:
    for name in ("redis", "s3", "gpu_worker", "uploader", "monitor"):
        assert "healthcheck" in SERVICES[name], name
    for name in ("producer", "gpu_worker", "uploader"):
        assert SERVICES[name]["depends_on"]["redis"] == {"condition": "service_healthy"}
        assert SERVICES[name]["depends_on"]["s3"] == {"condition": "service_healthy"}


def test_every_service_gets_its_job_from_the_one_env_file() -> None:
    assert {service["env_file"] for service in SERVICES.values()} == {"${JOB_ENV:-deploy/compose/demo.env}"}


def test_commands_name_modules_that_exist() -> None:
    for service in SERVICES.values():
        command = service.get("command", [])
        if command[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(command[2]), command


@pytest.mark.parametrize("image", ["slim", "gpu"])
def test_images_run_as_nobody_in_particular(image: str) -> None:
    lines = (REPOSITORY / f"deploy/docker/{image}.Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001:10001"]
    copied = {line.split()[1] for line in lines if re.match(r"COPY [a-z_]+ [a-z_]+$", line)}
    assert {"hiddenfeed", "common"} <= copied
    assert ("gpu_worker" in copied) == (image == "gpu")
