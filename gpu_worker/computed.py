"""What states were computed with, for a file's metadata: it decides their last bits, and no run's identity names it."""

from __future__ import annotations

import importlib.metadata

import torch
from torch import nn

from gpu_worker.device_kind import device_kind
from gpu_worker.model import dtype_name, quantisation
from gpu_worker.structure import as_pretrained, text_config

_PACKAGES = ("torch", "transformers")


def computed_with(
    model: nn.Module, device: torch.device, dtype: torch.dtype, *, compiled: bool
) -> dict[str, str]:
    """Device, dtype, attention, quantisation and versions; equal for every batch that one engine computes.

    `dtype` is that of the forward pass. A CPU is named with its threads: sums are made in another order with others.
    """
    config = text_config(model)
    found = {
        "device": device_kind(device),
        "dtype": dtype_name(dtype),
        "attention": getattr(config, "_attn_implementation", None),
        "quantization": quantisation(as_pretrained(model).config),
        "compiled": "yes" if compiled else None,
        **{package: importlib.metadata.version(package) for package in _PACKAGES},
    }
    return {name: str(value) for name, value in found.items() if value}
