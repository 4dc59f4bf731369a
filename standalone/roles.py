"""The processes of a run: their names, commands and environments."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from common.devices import device_list
from common.settings.catalogue import HomeSettings, StandaloneSettings
from common.settings.declaration import ENVIRONMENT_PREFIX, settings_of
from common.settings.resolve import Resolved


@dataclass(frozen=True)
class Role:
    """One process of a run."""

    name: str
    command: tuple[str, ...]
    #: The whole environment of the process; holds secrets.
    environ: Mapping[str, str] = field(repr=False)


def producer_role(environ: Mapping[str, str]) -> Role:
    """Prepares and submits the run, waits for its end, proves it. Its log is read, so it is JSON."""
    return _role("producer", "producer", {**environ, **setting_variables({"log_format": "json"})}, "run")


def worker_roles(environ: Mapping[str, str], settings: StandaloneSettings, processors: int) -> list[Role]:
    """The GPU workers: one per device where devices are named. Several on a CPU share its `processors`."""
    devices = device_names(settings) or [None] * settings.workers
    roles = []
    for number, device in enumerate(devices, start=1):
        extra = {_name("device"): device} if device else {}
        if len(devices) > 1 and not environ.get(_name("threads")):
            extra[_name("threads")] = str(max(1, processors // len(devices)))
        roles.append(_role(f"gpu_worker-{number}", "gpu_worker", {**environ, **extra}))
    return roles


def device_names(settings: StandaloneSettings) -> list[str | None]:
    """The devices of --devices, none if it was not given; `all` alone is left as it is. Raises ConfigError."""
    if settings.devices is None:
        return []
    return [*device_list(settings.devices)]


def uploader_roles(environ: Mapping[str, str], count: int) -> list[Role]:
    """The uploaders."""
    return [_role(f"uploader-{number}", "uploader", environ) for number in range(1, count + 1)]


def settings_environment(resolved: Resolved, changes: Mapping[str, str]) -> dict[str, str]:
    """Settings as environment variables: those somebody gave, with `changes` (by setting name) on top."""
    given = {
        setting.name: _text(resolved.values[setting.name])
        for group in resolved.groups
        for setting in settings_of(group)
        if resolved.sources[setting.name] != "default" and resolved.values[setting.name] is not None
    }
    # What is for the runner alone means nothing to a role.
    own = {setting.name for group in (HomeSettings, StandaloneSettings) for setting in settings_of(group)}
    return setting_variables({name: value for name, value in {**given, **changes}.items() if name not in own})


def setting_variables(settings: Mapping[str, str]) -> dict[str, str]:
    """Environment variables of settings given by name."""
    return {_name(name): value for name, value in settings.items()}


def role_environment(environ: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """The environment of a role: the runner's own without its settings, and `settings`."""
    return {name: value for name, value in environ.items() if not name.startswith(ENVIRONMENT_PREFIX)} | dict(
        settings
    )


def _role(name: str, module: str, environ: Mapping[str, str], *arguments: str) -> Role:
    return Role(name, (sys.executable, "-m", module, *arguments), environ)


def _name(setting: str) -> str:
    return ENVIRONMENT_PREFIX + setting.upper()


def _text(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
