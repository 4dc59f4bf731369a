"""A certificate for a server of a test, and its own authority: a client that is given it trusts that server alone."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


@dataclass(frozen=True)
class Certificate:
    """Two PEM files."""

    path: Path
    key: Path


def make_certificate(folder: Path, names: str = "IP:127.0.0.1,DNS:localhost") -> Certificate:
    """A certificate for `names`, valid for two days; the folder is created."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificate(folder / "certificate.pem", folder / "key.pem")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    )
    extension = ["-addext", f"subjectAltName={names}"]
    files = ["-keyout", str(made.key), "-out", str(made.path)]
    subprocess.run([*command.split(), *extension, *files], check=True, capture_output=True)
    return made
