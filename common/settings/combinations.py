"""Settings that have the right type and still cannot work, alone or together; nothing is asked but the settings."""

from __future__ import annotations

from common.settings.catalogue import DataSettings, PlanSettings, QueueSettings, SpoolSettings
from hiddenfeed.errors import ConfigError, DataError
from hiddenfeed.layout import check_run_id, check_run_name
from hiddenfeed.words import size_text


def check_names(settings: DataSettings) -> None:
    """Raise ConfigError for a --name or --run-id that cannot be one."""
    if settings.name is not None:
        try:
            check_run_name(settings.name)
        except DataError as error:
            raise ConfigError(f"--name: {error}") from None
    if settings.run_id is not None:
        try:
            check_run_id(settings.run_id)
        except DataError as error:
            raise ConfigError(f"--run-id: {error}") from None


def check_lengths(settings: DataSettings) -> None:
    """Raise ConfigError for limits that no sample can keep."""
    for name, value in (
        ("min-length", settings.min_length),
        ("min-loss-tokens", settings.min_loss_tokens),
    ):
        if value > settings.max_length:
            raise ConfigError(f"--{name} {value} is above --max-length {settings.max_length}")


def check_lease(settings: QueueSettings) -> None:
    """Raise ConfigError for heartbeats that are too rare for the lease."""
    if settings.heartbeat_seconds * 3 > settings.lease_seconds:
        raise ConfigError(
            f"--heartbeat-seconds {settings.heartbeat_seconds} is more than a third of "
            f"--lease-seconds {settings.lease_seconds}; healthy jobs would be taken over"
        )


def check_file_size(plan: PlanSettings, spool: SpoolSettings) -> None:
    """Raise ConfigError for batch files that never fit into the spool."""
    if plan.target_file_bytes > spool.spool_cap_bytes:
        raise ConfigError(
            f"--target-file-bytes of {size_text(plan.target_file_bytes)} never fits into a spool of "
            f"--spool-cap-bytes {size_text(spool.spool_cap_bytes)}; raise that or make the files smaller"
        )
