"""Free TCP ports on loopback."""

from __future__ import annotations

import random
import socket

from hiddenfeed.errors import ConfigError, TransientError

LOOPBACK = "127.0.0.1"
#: Below the ports that systems hand out to outgoing connections, so that none is taken between choosing and binding.
_LOWEST, _HIGHEST = 12000, 22000
#: SeaweedFS's gRPC ports lie this far above its HTTP ports.
GRPC_OFFSET = 10000


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether nothing listens on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connections are still dying is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_ports(count: int, *, with_grpc: bool = False) -> list[int]:
    """`count` different free ports, chosen at random; with their gRPC ports free as well if asked."""
    chosen: list[int] = []
    for port in random.sample(range(_LOWEST, _HIGHEST), 500):
        if is_free(port) and (not with_grpc or is_free(port + GRPC_OFFSET)):
            chosen.append(port)
        if len(chosen) == count:
            return chosen
    raise TransientError(f"no {count} free ports found on {LOOPBACK}")


def demand_free(port: int, purpose: str) -> int:
    """Return `port` if it is free; else raise ConfigError naming port and purpose."""
    if not is_free(port):
        raise ConfigError(f"port {port} for {purpose} is taken by another program; give another port")
    return port
