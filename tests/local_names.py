"""Names below `localhost` mean this machine, as on many they do already."""

from __future__ import annotations

import socket
from typing import Any

import pytest


def resolve_local_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `bucket.localhost` be 127.0.0.1 for the rest of a test."""
    real = socket.getaddrinfo

    def resolve(host: Any, *more: Any, **named: Any) -> Any:
        is_local = isinstance(host, str) and (host == "localhost" or host.endswith(".localhost"))
        return real("127.0.0.1" if is_local else host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
