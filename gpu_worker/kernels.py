"""Fast kernels of linear attention and state-space layers: packages of their own, without which a layer crawls.

transformers falls back to plain torch when they are missing, which is right but several times slower;
on a GPU that is refused unless it is asked for.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterable

from torch import nn

from hiddenfeed.errors import ConfigError

_CONV, _FLA, _MAMBA = "causal-conv1d", "flash-linear-attention", "mamba-ssm"
#: Package -> the module it installs.
_MODULES = {_CONV: "causal_conv1d", _FLA: "fla", _MAMBA: "mamba_ssm"}
#: What layers of transformers call over a whole sample -> the package whose kernel is behind it if it is there.
_CALLS = {
    "causal_conv1d_fn": _CONV,
    "chunk_gated_delta_rule": _FLA,
    "torch_chunk_gated_delta_rule": _FLA,
    "chunk_kda": _FLA,
    "chunk_kimi_delta_attention": _FLA,
    "mamba2_chunk_scan": _MAMBA,
    "mamba2_split_conv1d_scan_combined": _MAMBA,
    "mamba_chunk_scan_combined": _MAMBA,
    "mamba_split_conv1d_scan_combined": _MAMBA,
    "mamba_inner_fn": _MAMBA,
    "mamba_selective_scan": _MAMBA,
    "selective_scan_fn": _MAMBA,
}


def wanted_packages(blocks: Iterable[nn.Module]) -> list[str]:
    """Packages whose kernels these blocks call, by name."""
    kinds = {type(module) for block in blocks for module in block.modules()}
    names = {name for kind in kinds for name in _called_names(kind)}
    return sorted({package for name, package in _CALLS.items() if name in names})


def is_installed(package: str) -> bool:
    """Whether the package's module can be imported; it is not."""
    return importlib.util.find_spec(_MODULES[package]) is not None


def refuse_slow_kernels(
    model: str,
    blocks: Iterable[nn.Module],
    device_type: str,
    *,
    installed: Callable[[str], bool] = is_installed,
) -> None:
    """Raise ConfigError if the blocks would run their fallback on a GPU; a CPU has nothing faster."""
    missing = (
        [] if device_type == "cpu" else [name for name in wanted_packages(blocks) if not installed(name)]
    )
    if missing:
        raise ConfigError(
            f"model {model} has layers whose fast kernels are missing: pip install {' '.join(missing)}, "
            "or accept that they run several times slower with --allow-slow-kernels"
        )


def _called_names(kind: type[nn.Module]) -> set[str]:
    """Global names that the methods of a class mention."""
    methods = [inspect.unwrap(member) for member in vars(kind).values() if inspect.isfunction(member)]
    return {name for method in methods for name in method.__code__.co_names}
