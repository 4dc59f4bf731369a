"""The resident model: loaded once, proven by the self-test, kept until a run needs another one."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from common.hub import local_folder
from common.logs import get_logger
from common.settings.catalogue import ExtractSettings
from common.weights import weights_identity
from gpu_worker.agreement import Tolerance, tolerance_for
from gpu_worker.device_loop import DeviceLoop
from gpu_worker.model import ModelSource, dtype_name, load_pretrained, torch_dtype
from gpu_worker.selftest import SelfTest, probe
from gpu_worker.structure import dissect
from gpu_worker.taps import Selection, TapModel
from gpu_worker.tokens import TokenBatch
from hiddenfeed.errors import ConfigError
from hiddenfeed.run import RunDocument

log = get_logger("model")

_FOLDER_IDENTITY = "weights:"
#: What the code of a model raises when it is run in a way that it does not support.
_MODEL_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError)


@dataclass(frozen=True)
class EngineKey:
    """Runs of equal keys are served by one engine without loading anything."""

    source: ModelSource
    selection: Selection
    #: Stored dtype.
    dtype: str
    #: As in the run's identity.
    identity: str


@dataclass(frozen=True)
class Engine:
    """A truncated model with its device loop."""

    key: EngineKey
    model: TapModel
    loop: DeviceLoop
    #: float64 [K'], median norms of the self-test.
    baseline: npt.NDArray[np.float64]

    def close(self) -> None:
        """End its threads; no batch may be running."""
        self.loop.close()
        self.model.release()


def free_memory() -> None:
    """Give back what models that nobody holds any more took."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def engine_key(document: RunDocument, settings: ExtractSettings, device: torch.device) -> EngineKey:
    """What must be loaded for a run."""
    identity = document.identity
    name = settings.model_path or document.model
    source = ModelSource(
        name=name,
        revision=None if local_folder(name) else identity.model_revision,
        device=device,
        compute_dtype=settings.compute_dtype,
        attention=settings.attention,
        trust_remote_code=settings.trust_remote_code,
    )
    return EngineKey(source, Selection(identity.taps, identity.final_state), identity.dtype, identity.model)


def make_engine(key: EngineKey, document: RunDocument, samples: TokenBatch) -> Engine:
    """Load, truncate and test; `samples` are the run's own.

    Raises ConfigError for a model that is not there or not the run's, and for a failed self-test;
    TransientError when the hub is away.
    """
    begin = time.monotonic()
    check_weights(key)
    whole = load_pretrained(key.source)
    parts = dissect(whole)
    model = TapModel(parts, key.selection)
    found = (model.num_blocks, model.hidden_size)
    if found != (document.num_blocks, document.hidden_size):
        raise ConfigError(
            f"model {key.source} has {found[0]} blocks of width {found[1]}, and run {document.run_id} was planned for "
            f"{document.num_blocks} of width {document.hidden_size}"
        )
    dtype = torch_dtype(key.dtype)
    tolerance = tolerance_for([key.dtype, dtype_name(model.compute_dtype)], median=model.is_mixture)
    # The head and the vision tower go with the wrapper.
    del whole
    baseline = _truncate_and_test(model, key, tolerance, samples)
    log.info(
        "model loaded",
        model=str(key.source),
        device=str(model.device),
        dtype=dtype_name(model.compute_dtype),
        blocks=f"{parts.num_blocks} of {model.num_blocks}",
        taps=",".join(map(str, key.selection.taps)),
        seconds=f"{time.monotonic() - begin:.1f}",
    )
    return Engine(key, model, DeviceLoop(model, dtype, tolerance), baseline)


def _truncate_and_test(
    model: TapModel, key: EngineKey, tolerance: Tolerance, samples: TokenBatch
) -> npt.NDArray[np.float64]:
    """The baseline of the self-test; raises ConfigError if it fails, or if the model does not run at all."""
    chosen = probe(samples, model.vocabulary, model.max_positions)
    try:
        test = SelfTest(model.parts, key.selection, chosen)
        model.truncate()
        return test.run(model, torch_dtype(key.dtype), tolerance)
    except _MODEL_ERRORS as error:
        text = " ".join(str(error).split())[:300] or type(error).__name__
        raise ConfigError(f"model {key.source} cannot be run as hiddenfeed does: {text}") from error


def check_weights(key: EngineKey) -> None:
    """Raise ConfigError unless a folder's weights are those that the run was planned for, wherever it is."""
    folder: Path | None = local_folder(key.source.name)
    if folder is None or not key.identity.startswith(_FOLDER_IDENTITY):
        return
    if weights_identity(folder) != key.identity:
        raise ConfigError(f"the weights in {folder} are not those that the run was planned for")
