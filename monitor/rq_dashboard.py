"""rq-dashboard in a process that cannot unpickle, delete, or be reached without a password from outside.

python -m monitor.rq_dashboard

The stock program unpickles what it finds in Redis, fails on our jobs, and listens on all addresses
without a password. Here rq's pickle serializer is replaced before it is imported.
"""

from __future__ import annotations

import argparse
import hmac
import html
import ipaddress
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis
from rq import serializers

from common.cli import Command
from common.logs import get_logger, setup_logging
from common.queues import queue_names, requeue_failed
from common.redis_client import address_of, connect
from common.rq_keys import JobField, job_key
from common.serializer import JsonSerializer
from common.settings.catalogue import DashboardSettings, LogSettings, RedisSettings
from common.settings.resolve import Resolved
from hiddenfeed.errors import ConfigError

if TYPE_CHECKING:
    from flask import Flask
    from flask.typing import ResponseReturnValue

#: What may be asked for with POST; everything else only looks.
_WRITES = ("rq_dashboard.requeue_job_view", "rq_dashboard.requeue_all")

log = get_logger("dashboard")


def main(settings: Resolved, _: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C; raises ConfigError for an unsafe address or a port that is taken."""
    dashboard = settings.group(DashboardSettings)
    check_exposure(dashboard)
    logs = settings.group(LogSettings)
    setup_logging(logs, "dashboard")
    # Its access log, a line every few seconds for every open page, is for those who look for a fault.
    logging.getLogger("werkzeug").setLevel(logging.DEBUG if logs.log_level == "debug" else logging.WARNING)
    client = connect(settings.group(RedisSettings))
    from werkzeug.serving import make_server

    try:
        server = make_server(
            dashboard.dashboard_host, dashboard.dashboard_port, make_app(client, dashboard), threaded=True
        )
    except (OSError, SystemExit) as error:
        raise ConfigError(
            f"--dashboard-port: cannot listen on {dashboard.dashboard_host}:{dashboard.dashboard_port}: "
            f"{error if isinstance(error, OSError) else 'the address is taken or not of this machine'}"
        ) from None
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    log.info("rq-dashboard listens", url=f"http://{dashboard.dashboard_host}:{server.server_port}/")
    server.serve_forever()
    return 0


def check_exposure(settings: DashboardSettings) -> None:
    """Raise ConfigError if the dashboard would listen beyond this machine without a password."""
    if settings.dashboard_password:
        return
    if not _is_loopback(settings.dashboard_host):
        raise ConfigError(
            f"--dashboard-host {settings.dashboard_host} can be reached from other machines; "
            "give --dashboard-password (or HIDDENFEED_DASHBOARD_PASSWORD) as well"
        )


def make_app(client: redis.Redis, settings: DashboardSettings) -> Flask:
    """The dashboard as a Flask application over `client`; changes rq in this process for good."""
    web = _import_without_pickle(client)
    from flask import Flask

    app = Flask("rq_dashboard")
    app.config.from_mapping(
        RQ_DASHBOARD_REDIS_URL=(f"redis://{address_of(client)}",),
        RQ_DASHBOARD_POLL_INTERVAL=2500,
        RQ_DASHBOARD_DISABLE_DELETE=True,
        # The description tells the story; the call would only repeat it in JSON.
        RQ_DASHBOARD_SHOW_FULL_ARGS=False,
        DEPRECATED_OPTIONS=[],
    )
    app.redis_conn = client  # type: ignore[attr-defined]  # where its views look
    app.register_blueprint(web.blueprint)
    app.before_request(_guard(settings))
    app.after_request(_add_headers)
    app.register_error_handler(Exception, _explain)
    app.view_functions["rq_dashboard.requeue_job_view"] = lambda job_id: _requeue_one(client, job_id)
    app.view_functions["rq_dashboard.requeue_all"] = lambda queue_name: _requeue_all(client, queue_name)
    return app


def _import_without_pickle(client: redis.Redis) -> Any:
    """rq_dashboard's views, with nothing in the process that could unpickle what they find."""
    for name in ("DefaultSerializer", "PickleSerializer", "JSONSerializer"):
        setattr(serializers, name, JsonSerializer)
    serializers.SERIALIZER_ALIASES.clear()
    serializers.SERIALIZER_ALIASES["json"] = JsonSerializer
    from rq_dashboard import web

    web.config.serializer = JsonSerializer
    # It would open a connection of its own for every request, without our CA bundle.
    web.from_url = lambda *_, **__: (None, client)
    return web


def _guard(settings: DashboardSettings) -> Callable[[], ResponseReturnValue | None]:
    """What runs before every request: login, then no change but requeueing, by POST, from our own pages."""
    from flask import request

    def guard() -> ResponseReturnValue | None:
        if settings.dashboard_password and not _logged_in(settings, settings.dashboard_password):
            return "Please log in.", 401, {"WWW-Authenticate": 'Basic realm="rq-dashboard", charset="UTF-8"'}
        if request.method in ("GET", "HEAD", "OPTIONS"):
            if request.endpoint in _WRITES:
                return {"status": "ERROR", "error": "requeueing needs a POST"}, 405, {"Allow": "POST"}
            return None
        if request.endpoint not in _WRITES:
            return {"status": "DISABLED"}, 403
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            return {"status": "ERROR", "error": "the request comes from another site"}, 403
        return None

    return guard


def _logged_in(settings: DashboardSettings, password: str) -> bool:
    """Compares both parts in constant time, so that a wrong login tells nothing."""
    from flask import request

    given = request.authorization
    user, secret = (given.username or "", given.password or "") if given is not None else ("", "")
    right_user = hmac.compare_digest(user.encode(), settings.dashboard_user.encode())
    right_secret = hmac.compare_digest(secret.encode(), password.encode())
    return right_user and right_secret


def _add_headers(response: Any) -> Any:
    """A page of ours in a frame of another site could be clicked unseen; and its scripts put texts into pages as they are."""
    if response.is_json:
        response.set_data(json.dumps(_escaped(response.get_json())))
    response.headers["X-Frame-Options"] = "DENY"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def _escaped(value: Any) -> Any:
    """The same with every text as HTML: an error or a name that quotes some must not run in the page."""
    if isinstance(value, str):
        return html.escape(value)
    if isinstance(value, dict):
        return {html.escape(str(key)): _escaped(each) for key, each in value.items()}
    return [_escaped(each) for each in value] if isinstance(value, list) else value


def _explain(error: Exception) -> ResponseReturnValue:
    """One sentence in place of a traceback: a job that is gone, data that is not JSON, Redis away."""
    from werkzeug.exceptions import HTTPException

    if isinstance(error, HTTPException):
        return error.get_response()
    log.warning("a page could not be shown", error=f"{type(error).__name__}: {error}"[:300])
    return {"status": "ERROR", "error": f"{type(error).__name__}: {error}"[:300]}, 503


def _requeue_one(client: redis.Redis, job_id: str) -> ResponseReturnValue:
    """Send one failed job back to its queue."""
    origin = client.hget(job_key(job_id), JobField.ORIGIN)
    queue = origin.decode("utf-8", "replace") if isinstance(origin, bytes) else ""
    count = requeue_failed(client, queue, [job_id]) if queue in queue_names(client) else 0
    return {"status": "OK" if count else "ERROR", "count": count}


def _requeue_all(client: redis.Redis, queue_name: str) -> ResponseReturnValue:
    """Send all failed jobs of a queue back to it."""
    count = requeue_failed(client, queue_name) if queue_name in queue_names(client) else 0
    return {"status": "OK", "count": count}


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


COMMAND = Command(
    "python -m monitor.rq_dashboard",
    "rq-dashboard for our queues: shows everything, deletes nothing, never unpickles",
    (RedisSettings, DashboardSettings, LogSettings),
    main,
)

if __name__ == "__main__":
    sys.exit(COMMAND.run(sys.argv[1:]))
