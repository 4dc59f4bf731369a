"""Every setting of every role, declared once: type, default, unit, limits, help, live or not.

A group is a frozen struct, declared in the modules imported here. Flags (`--upload-parallelism`), environment names
(`HIDDENFEED_UPLOAD_PARALLELISM`), `--show-config` and docs/settings.md are made from it.
Store access is declared in `hiddenfeed.options`, because the library needs it too.
"""

from __future__ import annotations

import msgspec

from common.settings.producing import DataSettings, ForecastSettings, PlanSettings, SubmitSettings
from common.settings.shared import LogSettings, QueueSettings, RedisSettings, SpoolSettings, StoreSettings
from common.settings.watching import DashboardSettings, HomeSettings, MonitorSettings, StandaloneSettings
from common.settings.working import ExtractSettings, UploadSettings
from hiddenfeed.options import StoreOptions

__all__ = [
    "ALL_GROUPS",
    "DashboardSettings",
    "DataSettings",
    "ExtractSettings",
    "ForecastSettings",
    "HomeSettings",
    "LogSettings",
    "MonitorSettings",
    "PlanSettings",
    "QueueSettings",
    "RedisSettings",
    "SpoolSettings",
    "StandaloneSettings",
    "StoreSettings",
    "SubmitSettings",
    "UploadSettings",
]

ALL_GROUPS: tuple[type[msgspec.Struct], ...] = (
    RedisSettings,
    StoreSettings,
    StoreOptions,
    DataSettings,
    PlanSettings,
    ForecastSettings,
    SubmitSettings,
    QueueSettings,
    SpoolSettings,
    ExtractSettings,
    UploadSettings,
    MonitorSettings,
    HomeSettings,
    StandaloneSettings,
    DashboardSettings,
    LogSettings,
)
