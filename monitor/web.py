"""The page and what stands behind it: live events, history, JSON, metrics, health, and changes for whoever has the token."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from string import Template

import anyio
import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from common.history import Rates
from hiddenfeed.errors import DataError, HiddenfeedError
from hiddenfeed.layout import check_run_id
from monitor.control import Control, settings_offered
from monitor.looks import begin
from monitor.plain import render_plain
from monitor.prometheus import CONTENT_TYPE_LATEST, exposition
from monitor.trim import trimmed
from monitor.views import Snapshot

#: A snapshot serves all who ask within this time, so that many open pages cost Redis no more than one.
_KEPT_SECONDS = 0.5
#: And in a large fleet for so long per process, which keeps the share of Redis's time below one in a hundred.
_KEPT_SECONDS_PER_PROCESS = 0.002
#: A probe waits so long for a look that is being taken, and believes the one before if that is no older than this.
_HEALTH_SECONDS, _BELIEVED_SECONDS = 1.0, 60.0
#: How often a stream looks whether the server is to end.
_LOOK_SECONDS = 0.25
#: Pages that are told at a time, and the most that a change may say.
_MOST_PAGES, _MOST_BYTES = 100, 4096
#: Who is one page too many is to come back after this.
_COME_BACK_SECONDS = 10
_FOLDER = Path(__file__).parent / "page"
_PAGE = Template((_FOLDER / "index.html").read_text(encoding="utf-8"))
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True)
class Dashboard:
    """Where rq-dashboard is."""

    url: str
    port: int


def make_app(
    current: Current,
    refresh_seconds: float,
    *,
    history: Callable[[str], list[Rates]] | None = None,
    control: Control | None = None,
    dashboard: Dashboard | None = None,
) -> Starlette:
    """The application; `history` gives what happened to a run over time and may raise HiddenfeedError.

    `app.state.end_streams` lets all event streams end, so that a server can end without waiting for them.
    """
    pages = _Pages(current, refresh_seconds)
    site = _Site(current, refresh_seconds, history, control, dashboard)
    app = Starlette(
        routes=[
            Route("/", site.page),
            Route("/events", pages.respond),
            Route("/snapshot.json", site.snapshot),
            Route("/history.json", site.past),
            Route("/healthz", site.health),
            Route("/metrics", site.metrics),
            Route("/controls.json", site.controls),
            Route("/control", site.change, methods=["POST"]),
            Mount("/assets", _Assets(directory=_FOLDER)),
        ]
    )
    app.state.end_streams = pages.end
    return app


@dataclass(frozen=True)
class _Site:
    """What is answered once and for all."""

    current: Current
    refresh_seconds: float
    history: Callable[[str], list[Rates]] | None
    control: Control | None
    dashboard: Dashboard | None

    def page(self, _: Request) -> Response:
        return HTMLResponse(render_page(trimmed(self.current.get()), self.refresh_seconds), headers=_HEADERS)

    def snapshot(self, _: Request) -> Response:
        return _json(self.current.get())

    def health(self, _: Request) -> Response:
        known = self.current.known(_HEALTH_SECONDS)
        error = known.redis_error if known else "the last look at Redis and the store has not ended yet"
        answer = {"status": "unavailable", "reason": error} if error else {"status": "ok"}
        return JSONResponse(answer, status_code=503 if error else 200, headers=_HEADERS)

    def metrics(self, _: Request) -> Response:
        return Response(exposition(self.current.get()), media_type=CONTENT_TYPE_LATEST, headers=_HEADERS)

    def past(self, request: Request) -> Response:
        try:
            run_id = check_run_id(request.query_params.get("run", ""))
        except DataError as error:
            return _message(400, str(error))
        try:
            return _json(self.history(run_id) if self.history else [])
        except HiddenfeedError as error:
            return _message(503, str(error))

    def controls(self, _: Request) -> Response:
        offered = {
            "enabled": self.control is not None and self.control.enabled,
            "settings": settings_offered(),
            "dashboard_url": self.dashboard.url if self.dashboard else "",
            "dashboard_port": self.dashboard.port if self.dashboard else 0,
        }
        return JSONResponse(offered, headers=_HEADERS)

    async def change(self, request: Request) -> Response:
        body = b""
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > _MOST_BYTES:
                    return _message(413, "This is too long.")
        except ClientDisconnect:
            return _message(400, "This has no end.")  # which nobody reads any more
        if self.control is None:
            return _message(403, "This monitor only shows.")
        given = request.headers.get("Authorization", "")
        answered = await anyio.to_thread.run_sync(self.control.apply, given, body)
        return _message(answered.status, answered.message)


def render_page(snapshot: Snapshot, refresh_seconds: float) -> str:
    """The page as it is first served: readable as it is, and taken over by its script."""
    # No faster than once a second: a page that is being read should not jump.
    return _PAGE.substitute(plain=render_plain(snapshot), refresh=max(1, round(refresh_seconds)))


class Current:
    """The latest snapshot, taken anew when it is too old. For several threads."""

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        """`read` takes a snapshot and may block, raising nothing."""
        self._read, self._lock = read, threading.Lock()
        self._snapshot: Snapshot | None = None
        self._taken = 0.0
        self._asked = threading.Lock()
        self._look: Future[Snapshot] | None = None

    def get(self) -> Snapshot:
        """A snapshot that is at most half a second old, or a little more in a large fleet."""
        with self._lock:
            if self._snapshot is None or time.monotonic() - self._taken > kept_seconds(self._snapshot):
                self._snapshot, self._taken = self._read(), time.monotonic()
            return self._snapshot

    def known(self, seconds: float) -> Snapshot | None:
        """As `get`, if that takes no more than `seconds`; else the one before, None if it says nothing of now."""
        with self._asked:
            if self._look is None or self._look.done():
                self._look = begin(self.get)
            look = self._look
        try:
            return look.result(seconds)
        except TimeoutError:
            return self._snapshot if time.monotonic() - self._taken < _BELIEVED_SECONDS else None


def kept_seconds(snapshot: Snapshot) -> float:
    """How long a snapshot serves."""
    return max(_KEPT_SECONDS, _KEPT_SECONDS_PER_PROCESS * len(snapshot.processes))


class _Pages:
    """Those who are told of every new snapshot."""

    def __init__(self, current: Current, refresh_seconds: float) -> None:
        self._current, self._refresh_seconds = current, refresh_seconds
        self._open = 0
        self._ended = threading.Event()

    def end(self) -> None:
        """Let every stream end soon; safe to call from a signal handler."""
        self._ended.set()

    async def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._ended.is_set() and (left := deadline - time.monotonic()) > 0:
            await anyio.sleep(min(_LOOK_SECONDS, left))

    async def respond(self, _: Request) -> Response:
        """A stream of server-sent events, one per snapshot."""
        if self._open >= _MOST_PAGES:
            too_many = _message(503, f"{_MOST_PAGES} pages are open, and no more are served; close some.")
            too_many.headers["Retry-After"] = str(_COME_BACK_SECONDS)
            return too_many
        return StreamingResponse(self._events(), media_type="text/event-stream", headers=_HEADERS)

    async def _events(self) -> AsyncIterator[bytes]:
        if self._open >= _MOST_PAGES:
            # All of a burst are let in before the first of them gets so far.
            yield f"retry: {1000 * _COME_BACK_SECONDS}\n\n".encode()
            return
        self._open += 1
        try:
            while not self._ended.is_set():
                snapshot = await anyio.to_thread.run_sync(self._current.get)
                yield b"event: snapshot\ndata: " + msgspec.json.encode(trimmed(snapshot)) + b"\n\n"
                await self._pause(max(self._refresh_seconds, kept_seconds(snapshot)))
        finally:
            self._open -= 1


class _Assets(StaticFiles):
    """The page's files, with the page's headers; a browser asks each time whether they are still the same."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers.update({**_HEADERS, "Cache-Control": "no-cache"})
        return response


def _message(status: int, text: str) -> Response:
    return JSONResponse({"message": text}, status_code=status, headers=_HEADERS)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json", headers=_HEADERS)
