"""The list of devices that `--devices` means, wherever it is given."""

from __future__ import annotations

import re

from hiddenfeed.errors import ConfigError

#: All CUDA devices that there are; stands alone.
ALL = "all"
_DEVICE = re.compile(r"cpu|cuda(?::(\d{1,3}))?")


def device_list(text: str) -> list[str]:
    """`0,cuda:1` as `["cuda:0", "cuda:1"]`, `all` as it is; raises ConfigError for what names no device, or one twice."""
    if text.strip() == ALL:
        return [ALL]
    devices = []
    for word in (each.strip() for each in text.split(",")):
        match = _DEVICE.fullmatch(f"cuda:{word}" if word.isdecimal() else word)
        if match is None:
            raise ConfigError(
                f"--devices {text!r}: {word!r} is not a number, cuda:N or cpu, nor is it all of them"
            )
        # `cuda` alone is the first one, and `00` is 0.
        devices.append("cpu" if match[0] == "cpu" else f"cuda:{int(match[1] or 0)}")
    repeated = next((device for device in devices if devices.count(device) > 1), None)
    if repeated:
        raise ConfigError(
            f"--devices {text!r} name {repeated} more than once; --processes N of `python -m gpu_worker` starts several on each"
        )
    return devices
