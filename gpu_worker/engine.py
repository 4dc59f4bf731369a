"""The resident model: loaded once, proven by the self-test, kept until a run needs another one."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from common.hub import local_folder
from common.logs import get_logger
from common.settings.catalogue import ExtractSettings
from common.weights import weights_identity
from gpu_worker.agreement import Agreement, tolerance_for
from gpu_worker.compiled import compile_blocks
from gpu_worker.computed import computed_with
from gpu_worker.device_loop import DeviceLoop
from gpu_worker.kernels import refuse_slow_kernels
from gpu_worker.model import ModelSource, dtype_name, load_pretrained, torch_dtype
from gpu_worker.selftest import SelfTest, probe_among
from gpu_worker.structure import dissect
from gpu_worker.taps import Selection, TapModel
from gpu_worker.tokens import TokenBatch
from hiddenfeed.errors import ConfigError
from hiddenfeed.run import RunDocument
from hiddenfeed.words import count_text

log = get_logger("model")

_FOLDER_IDENTITY = "weights:"


@dataclass(frozen=True)
class EngineKey:
    """Runs of equal keys are served by one engine without loading anything."""

    source: ModelSource
    selection: Selection
    #: Stored dtype.
    dtype: str
    #: As in the run's identity.
    identity: str
    #: As in the settings.
    compile: bool = False
    allow_slow_kernels: bool = False


@dataclass(frozen=True)
class Engine:
    """A truncated model with its device loop."""

    key: EngineKey
    model: TapModel
    loop: DeviceLoop
    #: float64 [K'], median norms of the self-test.
    baseline: npt.NDArray[np.float64]
    #: How well the self-test's states agreed; None without one.
    agreement: Agreement | None = None
    #: As `computed_with` says; empty for a device that computes nothing.
    computed: Mapping[str, str] = field(default_factory=dict)

    def close(self) -> None:
        """End its threads; no batch may be running."""
        self.loop.close()
        self.model.release()


def free_memory() -> None:
    """Give back what models that nobody holds any more took."""
    gc.collect()
    # Not in every version of torch.
    memory = getattr(torch.accelerator, "memory", None)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
        # Page-locked buffers of the last model: of other sizes, they would be kept beside the next one's.
        if (empty := getattr(memory, "empty_host_cache", None)) is not None:
            empty()


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
    return EngineKey(
        source,
        Selection(identity.taps, identity.final_state),
        identity.dtype,
        identity.model,
        compile=settings.compile,
        allow_slow_kernels=settings.allow_slow_kernels,
    )


def make_engine(
    key: EngineKey, document: RunDocument, batches: Iterable[TokenBatch], *, forward_tokens: int = 0
) -> Engine:
    """Load, truncate and test, with samples of the first of `batches` that has some; `forward_tokens` as in the settings.

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
            f"model {key.source} has {count_text(found[0], 'block')} of width {found[1]}, and run {document.run_id} was planned for "
            f"{document.num_blocks} of width {document.hidden_size}"
        )
    dtype = torch_dtype(key.dtype)
    tolerance = tolerance_for([key.dtype, dtype_name(model.compute_dtype)], median=model.is_mixture)
    if not key.allow_slow_kernels:
        refuse_slow_kernels(str(key.source), parts.blocks, parts.device.type)
    # The head and the vision tower go with the wrapper.
    del whole
    chosen = probe_among(batches, model.vocabulary, model.max_positions)
    test = SelfTest(model.parts, key.selection, chosen, str(key.source))
    model.truncate()
    if key.compile:
        compile_blocks(parts.blocks)
    tested = test.run(model, dtype, tolerance)
    loop = DeviceLoop(model, dtype, tolerance, limit=forward_tokens or None)
    if not forward_tokens:
        loop.choose_limit(chosen.input_ids.tolist())
    log.info(
        "model loaded",
        model=str(key.source),
        device=str(model.device),
        dtype=dtype_name(model.compute_dtype),
        blocks=f"{parts.num_blocks} of {model.num_blocks}",
        taps=",".join(map(str, key.selection.taps)),
        forward_tokens=loop.limit,
        selftest_cosine=f"{min(tested.agreement.cosines):.6f}",
        selftest_error=f"{max(tested.agreement.errors):.2g}",
        seconds=f"{time.monotonic() - begin:.1f}",
    )
    computed = computed_with(parts.decoder, parts.device, model.compute_dtype, compiled=key.compile)
    return Engine(key, model, loop, tested.norms, tested.agreement, computed)


def check_weights(key: EngineKey) -> None:
    """Raise ConfigError unless a folder's weights are those that the run was planned for, wherever it is."""
    folder: Path | None = local_folder(key.source.name)
    if folder is None or not key.identity.startswith(_FOLDER_IDENTITY):
        return
    if weights_identity(folder) != key.identity:
        raise ConfigError(
            f"the model in {folder} is not the one that the run was planned for: its weights or its config.json are others"
        )
