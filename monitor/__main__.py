"""`python -m monitor`: one look, a live view in the terminal, or a web page."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Callable
from threading import Event, Thread
from typing import TYPE_CHECKING

import msgspec

from common.cli import Command
from common.logs import setup_logging
from common.settings.catalogue import (
    LogSettings,
    MonitorSettings,
    QueueSettings,
    RedisSettings,
    SpoolSettings,
    StoreSettings,
)
from common.settings.declaration import ENVIRONMENT_PREFIX
from common.settings.resolve import Resolved
from hiddenfeed.errors import ConfigError
from hiddenfeed.options import StoreOptions
from monitor.bootstrap import Wired, page_of, wire
from monitor.looks import snapshots
from monitor.terminal import render
from monitor.views import Snapshot

if TYPE_CHECKING:
    import uvicorn

GROUPS = (
    RedisSettings,
    StoreSettings,
    StoreOptions,
    SpoolSettings,
    QueueSettings,
    MonitorSettings,
    LogSettings,
)
#: What `TERM` says of terminals that nothing can be drawn on.
_DUMB = ("dumb", "unknown")
#: On something that is no terminal the live view is one block of lines this often at most.
_PLAIN_SECONDS = 10.0
#: How often it is looked whether the server is asked to end.
_LOOK_SECONDS = 0.25


def main(arguments: list[str]) -> int:
    """Run the command; returns the exit code."""
    command = Command(
        "python -m monitor",
        "Show runs, workers, uploads and the spool. Reads only.",
        GROUPS,
        _run,
        "Without --watch or --serve it looks once. Exit codes of that: 75 Redis or the store is away, look again later; "
        "2 one of them refuses us or holds something that is not ours, a person must look. What can be read is shown.",
    )
    faces = command.parser.add_mutually_exclusive_group()
    faces.add_argument(
        "--once", action="store_true", help="look once and print it; what happens without any of these"
    )
    faces.add_argument("--watch", action="store_true", help="look again and again")
    faces.add_argument(
        "--serve", action="store_true", help="serve the live page, /snapshot.json, /metrics and /healthz"
    )
    command.parser.add_argument("--json", action="store_true", help="print JSON, one object per look")
    # There is something to see without a store: what Redis knows.
    if not os.environ.get(f"{ENVIRONMENT_PREFIX}STORE"):
        command.parser.set_defaults(store="")
    return command.run(arguments)


def _run(settings: Resolved, parsed: argparse.Namespace) -> int:
    wired = wire(settings)
    read = wired.read
    monitor = settings.group(MonitorSettings)
    show = _json if parsed.json else render
    if parsed.serve:
        setup_logging(settings.group(LogSettings), "monitor")
        return _serve(wired, monitor)
    if parsed.watch:
        # Nothing can be drawn over on a terminal that calls itself dumb.
        drawn = sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in _DUMB
        live = drawn and not parsed.json
        return _watch(read, show, monitor.refresh_seconds, live=live)
    snapshot = read()
    print(show(snapshot), flush=True)
    for error in filter(None, (snapshot.redis_error, snapshot.store_error, *snapshot.unreadable)):
        print(f"error: {error}", file=sys.stderr)
    return snapshot.exit_code


def _json(snapshot: Snapshot) -> str:
    return msgspec.json.encode(snapshot).decode()


def _watch(
    read: Callable[[], Snapshot], show: Callable[[Snapshot], str], refresh_seconds: float, *, live: bool
) -> int:
    """Look until interrupted: a live view, or lines for whoever reads something that is no terminal."""
    stop = _stop_signals()
    if live:
        from monitor.live import watch

        watch(read, refresh_seconds, stop)
        return 0
    pause = refresh_seconds if show is _json else max(refresh_seconds, _PLAIN_SECONDS)
    for snapshot in snapshots(read, pause, stop):
        print(show(snapshot), flush=True)
    return 0


def _serve(wired: Wired, monitor: MonitorSettings) -> int:
    """Serve the page until interrupted; raises ConfigError if the address is taken or not ours."""
    import uvicorn

    app, recorder = page_of(wired, monitor)
    listener = _listen(monitor.monitor_host, monitor.monitor_port)
    host, port = listener.getsockname()[:2]
    print(f"monitor: http://{host}:{port}/", flush=True)
    configuration = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=3)
    # uvicorn ends on a signal and then raises it again, for whoever listened before: that is us, content.
    _stop_signals()
    server = uvicorn.Server(configuration)
    with recorder:
        Thread(target=_end_streams, args=(server, app.state.end_streams), daemon=True).start()
        server.run(sockets=[listener])
    return 0


def _end_streams(server: uvicorn.Server, end: Callable[[], None]) -> None:
    """Wait until the server is asked to end, and then let the streams end that it would wait for."""
    pause = Event()
    while not server.should_exit:
        pause.wait(_LOOK_SECONDS)
    end()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"the monitor cannot listen on {host} port {port}: {(error.strerror or str(error)).lower()}; give another --monitor-port"
        ) from None
    return listener


def _stop_signals() -> Event:
    """An event that SIGINT and SIGTERM set."""
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
