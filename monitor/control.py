"""What may be changed from the page: a run's pause and the live settings, by whoever has the token."""

from __future__ import annotations

import hmac
from typing import Literal

import msgspec
import redis

from common.logs import get_logger
from common.run_state import pause_run
from common.settings.live import clear_live, live_settings, set_live
from hiddenfeed.errors import ConfigError, HiddenfeedError

log = get_logger("monitor")


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody wants changed."""

    action: Literal["pause", "resume", "set", "clear"]
    run: str = ""
    name: str = ""
    value: str = ""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """HTTP status and a sentence."""

    status: int
    message: str


class Control:
    """Changes things in Redis for those who have the token; without a token set, for nobody."""

    def __init__(self, client: redis.Redis, token: str | None) -> None:
        self._client, self._token = client, token

    @property
    def enabled(self) -> bool:
        """Whether there is a token."""
        return bool(self._token)

    def apply(self, authorization: str, body: bytes) -> Answered:
        """Do what the JSON in `body` says if `authorization` is `Bearer <token>`; raises nothing."""
        if not self._token:
            return Answered(
                status=403, message="This monitor only shows; start it with --monitor-token to change things."
            )
        given = authorization.removeprefix("Bearer ").encode()
        if not authorization.startswith("Bearer ") or not hmac.compare_digest(given, self._token.encode()):
            log.warning("a change with a wrong token was refused")
            return Answered(status=401, message="The token is not the one.")
        try:
            message = self._apply(msgspec.json.decode(body, type=Change))
        except msgspec.MsgspecError as error:
            return Answered(status=400, message=f"This is no change: {error}.")
        except ConfigError as error:
            return Answered(status=400, message=str(error))
        except HiddenfeedError as error:
            return Answered(status=503, message=str(error))
        except redis.RedisError as error:
            return Answered(status=503, message=f"Redis refused: {error}")
        log.info("changed from the page", what=message)
        return Answered(status=200, message=message)

    def _apply(self, change: Change) -> str:
        if change.action in ("pause", "resume"):
            state = pause_run(self._client, change.run, paused=change.action == "pause").state
            return f"{change.run} is {state}."
        if change.action == "set":
            (value,) = set_live(self._client, {change.name: change.value}).values()
            return f"{change.name} is {value} for the whole fleet within a few seconds."
        clear_live(self._client, [change.name])
        return f"Each process uses its own {change.name} again within a few seconds."


def settings_offered() -> list[dict[str, str]]:
    """Name, help and unit of what can be set, for the page."""
    return [
        {"name": name, "help": setting.help, "unit": setting.type.unit or ""}
        for name, setting in sorted(live_settings().items())
    ]
