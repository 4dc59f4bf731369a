"""What kind of device this is, in the words of its maker: devices of one kind share what is learnt of their speed."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch

from hiddenfeed.words import count_text

#: A name is cut to this many characters.
_LONGEST = 60
_PROCESSORS = Path("/proc/cpuinfo")


@cache
def device_kind(device: torch.device) -> str:
    """`NVIDIA H200` of `cuda:1`; of a CPU its name and the threads that compute, as they decide its speed."""
    if device.type == "cuda":
        return _cut(torch.cuda.get_device_name(device))
    if device.type == "cpu":
        return _cut(f"{processor_name()}, {count_text(torch.get_num_threads(), 'thread')}")
    return device.type


def processor_name(path: Path = _PROCESSORS) -> str:
    """`AMD EPYC 9R14`; where Linux does not say, the architecture."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name" and value.strip():
            # What is said of the clock and of trade marks tells no two of them apart.
            return " ".join(value.split("@")[0].replace("(R)", "").replace("(TM)", "").split())
    return platform.machine() or "cpu"


def _cut(name: str) -> str:
    return "".join(character for character in name if character.isprintable())[:_LONGEST].strip()
