"""Loading a checkpoint, whatever its architecture: whole, in evaluation mode, on its device.

Truncation and selection of taps are `gpu_worker.taps`'s; here a model is only found and loaded,
and what can be wrong with it is said in one sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from common.hub import hub_or_cache, local_folder, model_error, quiet_libraries
from common.logs import get_logger
from gpu_worker.structure import dissect
from gpu_worker.unpacked import never_packed
from hiddenfeed.errors import ConfigError, HiddenfeedError
from hiddenfeed.words import count_text

log = get_logger("model")

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

#: Tokens of the pass that a quantised checkpoint is run with when it is loaded.
_FIRST_TOKENS = 8
#: What transformers and its parts raise for a checkpoint that they cannot make sense of.
_LOAD_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    ImportError,
    KeyError,
    RuntimeError,
    SafetensorError,
)


@dataclass(frozen=True)
class ModelSource:
    """Which checkpoint, and how to load it. Equal sources give equal models."""

    #: Hub id or folder.
    name: str
    revision: str | None
    device: torch.device
    #: `auto` (the checkpoint's own), `bfloat16`, `float16` or `float32`.
    compute_dtype: str = "auto"
    #: `auto` or the name of an attention implementation of transformers.
    attention: str = "auto"
    trust_remote_code: bool = False

    def __str__(self) -> str:
        return f"{self.name} at {self.revision}" if self.revision else self.name


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype called `bfloat16`, `float16` or `float32`."""
    return _DTYPES[name]


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16` for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def resolve_device(text: str) -> torch.device:
    """The device that the setting names; raises ConfigError if this machine has not got it."""
    if text == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(text)
    except RuntimeError:
        raise ConfigError(f"device {text!r} is not one of auto, cpu, cuda, cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {text!r} is not one of auto, cpu, cuda, cuda:N")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise ConfigError(f"device {text!r} is not there: torch sees {count} CUDA devices")
        return torch.device("cuda", device.index or 0)
    return device


def load_pretrained(source: ModelSource) -> nn.Module:
    """The whole model of `source`, in evaluation mode, on its device.

    Raises ConfigError for a model that is not there, not readable, not a decoder or not complete, and
    TransientError when the hub cannot be reached. Weights that the checkpoint lacks are refused:
    transformers would fill them with random numbers.
    """
    quiet_libraries()
    never_packed()
    try:
        with hub_or_cache("model", source.name, log.warning):
            model, info = _load(source, str(local_folder(source.name) or source.name))
    except torch.OutOfMemoryError:
        raise ConfigError(f"model {source} does not fit into the memory of {source.device}") from None
    except _LOAD_ERRORS as error:
        raise _load_error(source, error) from error
    _refuse_missing_weights(source, model, info)
    return model.eval().requires_grad_(False)


def _load_error(source: ModelSource, error: Exception) -> HiddenfeedError:
    text = " ".join(str(error).split())
    if not source.trust_remote_code and "trust_remote_code" in text:
        return ConfigError(
            f"model {source} brings code of its own; read it, and allow it with --trust-remote-code"
        )
    if isinstance(error, _QuantisedError):
        return ConfigError(
            f"model {source} is quantised ({error.method}) and cannot be loaded here: {text[:300]}"
        )
    return model_error(source.name, source.revision, "the checkpoint", error)


class _QuantisedError(RuntimeError):
    """What was raised while a quantised checkpoint was loaded: a package or a device that it needs is missing."""

    def __init__(self, method: str, cause: Exception) -> None:
        super().__init__(str(cause))
        self.method = method


def quantisation(config: Any) -> str | None:
    """How the checkpoint is quantised (`fp8`, `compressed-tensors`, `awq`, …); None if it is not."""
    for part in (config, config.get_text_config(decoder=True)):
        found = getattr(part, "quantization_config", None)
        if found:
            given = found if isinstance(found, dict) else found.to_dict()
            return str(getattr(given.get("quant_method"), "value", given.get("quant_method")))
    return None


def _load(source: ModelSource, place: str) -> tuple[nn.Module, dict[str, Any]]:
    # Takes seconds to import: only a process that loads a model pays for it.
    from transformers import AutoConfig

    common: dict[str, Any] = {"revision": source.revision, "trust_remote_code": source.trust_remote_code}
    config = AutoConfig.from_pretrained(place, **common)
    arguments = dict(common, config=config, output_loading_info=True)
    arguments["dtype"] = "auto" if source.compute_dtype == "auto" else torch_dtype(source.compute_dtype)
    if source.attention != "auto":
        arguments["attn_implementation"] = source.attention
    method = quantisation(config)
    # Left to itself, what loads a quantised checkpoint takes a GPU that it sees.
    if source.device.type == "cuda" or method is not None:
        arguments["device_map"] = {"": str(source.device)}
    try:
        model, info = _auto_class(config).from_pretrained(place, **arguments)
        if method is not None:
            _run_once(model)
    except (ImportError, RuntimeError, ValueError) as error:
        if method is None or isinstance(error, torch.OutOfMemoryError):
            raise
        raise _QuantisedError(method, error) from error
    return model, info


def _run_once(model: nn.Module) -> None:
    """One forward pass of the whole model: what some quantised checkpoints leave to the first one (to unpack their weights,
    from a hook of the outermost module) would never be done, as we run the decoder in it.
    """
    device = next(model.parameters()).device
    with torch.no_grad():
        model(input_ids=torch.zeros(1, _FIRST_TOKENS, dtype=torch.int64, device=device), use_cache=False)


def _auto_class(config: Any) -> Any:
    """The loader for this configuration: text-only where there is a choice, so that no vision tower is loaded."""
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText

    remote = getattr(config, "auto_map", None) or {}
    for loader in (AutoModelForCausalLM, AutoModelForImageTextToText):
        if type(config) in loader._model_mapping or loader.__name__ in remote:
            return loader
    return AutoModel


def _refuse_missing_weights(source: ModelSource, model: nn.Module, info: dict[str, Any]) -> None:
    """Refuse random weights in the decoder; a head or a vision tower may lack what it likes."""
    decoder = dissect(model).decoder
    prefix = next(name for name, module in model.named_modules() if module is decoder)
    wrong = sorted(key for key in info["missing_keys"] if key.startswith(f"{prefix}." if prefix else ""))
    wrong += sorted(str(key[0]) for key in info["mismatched_keys"])
    if wrong:
        raise ConfigError(
            f"model {source}: the checkpoint lacks {count_text(len(wrong), 'weight')} of the decoder, first {wrong[0]}"
        )
