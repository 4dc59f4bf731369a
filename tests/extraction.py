"""What tests of the GPU worker share: a planned run of a tiny model in a folder, and a service for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.planned_run import RunSpec, put_run
from common.messages import ExtractBatch
from common.settings.catalogue import ExtractSettings, SpoolSettings
from common.spool import Spool
from common.weights import weights_identity
from gpu_worker.extract import Extractor
from gpu_worker.service import RunService
from gpu_worker.tokens import TokenCache
from hiddenfeed.batch_file import BatchHeader, decode_header, tensor_arrays
from hiddenfeed.dtypes import to_float32
from hiddenfeed.run import RunDocument
from hiddenfeed.store.directory import DirectoryStore
from tests.tiny_models import BLOCKS, HIDDEN, VOCABULARY, save_model

LENGTHS = np.array([40, 33, 31, 30, 22, 21, 20, 12, 11, 9, 6, 5, 3, 3, 2, 1] * 3)


@dataclass(frozen=True)
class TinyRun:
    """A run in `folder/store` with its model in `folder/model`."""

    folder: Path
    store: DirectoryStore
    document: RunDocument
    manifests: list[ExtractBatch]

    @property
    def run_id(self) -> str:
        return self.document.run_id

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def service(self, settings: ExtractSettings | None = None, device: str = "cpu") -> RunService:
        """A service that has nothing in service yet."""
        cache = TokenCache(self.folder / "cache")
        return RunService(self.store, cache, settings or ExtractSettings(), torch.device(device))

    def spool(self, cap_bytes: int = 1 << 30) -> Spool:
        settings = SpoolSettings(
            spool="tiny", spool_dir=str(self.folder / "spool"), spool_cap_bytes=cap_bytes, spool_free_bytes=0
        )
        return Spool(settings)

    @contextmanager
    def extractor(
        self, spool: Spool | None = None, device: str = "cpu"
    ) -> Iterator[tuple[Extractor, RunService]]:
        """A handler with the run in service."""
        service = self.service(device=device)
        service.prepare(self.run_id)
        try:
            yield Extractor(service, spool or self.spool()), service
        finally:
            service.close()


def tiny_run(
    folder: Path,
    *,
    architecture: str = "llama",
    taps: tuple[int, ...] = (0, 2, 3),
    final_state: str = "none",
    dtype: str = "float32",
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]] = LENGTHS,
    micro_batch_tokens: int = 90,
    vocabulary: int = VOCABULARY,
    seed: int = 0,
) -> TinyRun:
    """Make model, plan and store below `folder`."""
    torch_dtype: torch.dtype = getattr(torch, dtype)
    model = save_model(folder / "model", architecture, torch_dtype)
    store = DirectoryStore(folder / "store")
    store.check(create=True)
    spec = RunSpec(
        model=str(model),
        model_identity=weights_identity(model),
        hidden_size=HIDDEN,
        num_blocks=BLOCKS,
        vocabulary=vocabulary,
        taps=taps,
        final_state=final_state,
        dtype=dtype,
        micro_batch_tokens=micro_batch_tokens,
        batch_tokens=200,
        seed=seed,
    )
    document, manifests = put_run(store, spec, lengths)
    return TinyRun(folder, store, document, manifests)


@dataclass(frozen=True)
class ReadFile:
    """A batch file, read whole."""

    header: BatchHeader
    data: bytes
    #: float32 [T, K, H]
    states: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    #: float32 [T, H]
    final: np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None
    tensors: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]


def read_file(path: Path) -> ReadFile:
    data = path.read_bytes()
    header = decode_header(data, path.name)
    tensors = tensor_arrays(data, header.layout)
    dtype = header.facts.dtype
    final = tensors.get("final_hidden_states")
    return ReadFile(
        header,
        data,
        to_float32(tensors["hidden_states"], dtype),
        None if final is None else to_float32(final, dtype),
        tensors,
    )
