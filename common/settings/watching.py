"""Settings of those who look on, and of the single-machine runner."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class MonitorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the monitor answers, and how long it waits for others."""

    monitor_host: Annotated[
        str, Meta(description="address the web page listens on", extra={"metavar": "address"})
    ] = "127.0.0.1"
    monitor_port: Annotated[
        int, Meta(ge=0, le=65535, description="port of the web page", extra={"metavar": "port"})
    ] = 8080
    refresh_seconds: Annotated[
        float, Meta(gt=0, description="how often the live view is renewed", extra={"unit": "s"})
    ] = 1.0
    monitor_patience_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="Redis or a store that does not answer the monitor for so long is said to be away",
            extra={"unit": "s"},
        ),
    ] = 4.0
    monitor_token: Annotated[
        str | None,
        Meta(
            description="whoever has it may pause runs and change live settings from the page; nobody when not set",
            extra={"secret": True, "metavar": "token"},
        ),
    ] = None
    dashboard_url: Annotated[
        str,
        Meta(
            pattern="^(https?://.*)?$",
            description="where people reach rq-dashboard, for the page's link; the page's host at the usual port when not set",
            extra={"metavar": "url", "form": "an address that begins with http:// or https://"},
        ),
    ] = ""


class HomeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where everything of a single machine is."""

    home: Annotated[
        str,
        Meta(
            description="folder for servers, spool and logs; the same home goes on with its run",
            extra={"metavar": "folder"},
        ),
    ] = "hiddenfeed-home"


class StandaloneSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything on one machine without Docker: where the run goes and how many processes work on it."""

    out: Annotated[
        str | None,
        Meta(
            description="where the run goes: s3://bucket/prefix (AWS, or the server of --s3-endpoint) or a folder; "
            "an S3 server inside the home when not set",
            extra={"metavar": "url"},
        ),
    ] = None
    uploaders: Annotated[int, Meta(ge=1, le=64, description="uploader processes")] = 2
    workers: Annotated[int, Meta(ge=1, le=64, description="GPU worker processes")] = 1
    devices: Annotated[
        str | None,
        Meta(
            description="one GPU worker on each of these: 0,1 or cuda:0,cuda:1 or all; in place of --workers",
            extra={"metavar": "devices"},
        ),
    ] = None
    redis_port: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description="port of the Redis server inside the home; 0 takes a free one",
            extra={"metavar": "port"},
        ),
    ] = 0
    s3_port: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description="port of the S3 server inside the home; 0 takes a free one",
            extra={"metavar": "port"},
        ),
    ] = 0


class DashboardSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """rq-dashboard beside the monitor."""

    dashboard_host: Annotated[
        str,
        Meta(
            description="address rq-dashboard listens on; others than loopback need a password",
            extra={"metavar": "address"},
        ),
    ] = "127.0.0.1"
    dashboard_port: Annotated[
        int, Meta(ge=0, le=65535, description="port of rq-dashboard", extra={"metavar": "port"})
    ] = 9181
    dashboard_user: Annotated[str, Meta(description="login of rq-dashboard", extra={"metavar": "name"})] = (
        "hiddenfeed"
    )
    dashboard_password: Annotated[
        str | None,
        Meta(description="password of rq-dashboard", extra={"secret": True, "metavar": "password"}),
    ] = None
