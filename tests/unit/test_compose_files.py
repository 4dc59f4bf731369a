"""What the compose file must keep, checked without an engine."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.settings.catalogue import ALL_GROUPS
from common.settings.declaration import settings_of

REPOSITORY = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
EXAMPLE = (REPOSITORY / ".env.example").read_text()
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


@pytest.mark.parametrize(("name", "variable"), [("redis", "BUNDLED_REDIS"), ("s3", "BUNDLED_S3")])
def test_a_bundled_server_can_be_left_out_and_is_there_by_itself(name: str, variable: str) -> None:
    assert SERVICES[name]["deploy"] == {"replicas": f"${{{variable}:-1}}"}
    assert f"{variable}=1" in EXAMPLE.splitlines()


def test_every_variable_of_compose_is_in_the_example() -> None:
    files = [REPOSITORY / "docker-compose.yml", *(REPOSITORY / "deploy/compose").glob("*.yml")]
    used = {name for file in files for name in re.findall(r"\$\{(\w+)", file.read_text())}
    assert used <= set(re.findall(r"^#?(\w+)=", EXAMPLE, re.MULTILINE))


def test_settings_of_the_example_and_the_demo_are_settings() -> None:
    known = {setting.environment for group in ALL_GROUPS for setting in settings_of(group)}
    # A process refuses HIDDENFEED_ names that are no settings, so Compose's own variables are called otherwise.
    for text in (EXAMPLE, (REPOSITORY / "deploy/compose/demo.env").read_text()):
        assert set(re.findall(r"^#?(HIDDENFEED_\w+)=", text, re.MULTILINE)) <= known


def test_the_examples_data_folder_is_in_every_checkout() -> None:
    (folder,) = re.findall(r"^DATA_DIR=\./(\w+)$", EXAMPLE, re.MULTILINE)
    assert (REPOSITORY / folder / ".gitignore").is_file()


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
