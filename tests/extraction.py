"""What tests of the GPU worker share: a planned run of a tiny model in a folder, and a service for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn
from transformers import AutoConfig

from benchmarks.planned_run import RunSpec, put_run
from common.messages import ExtractBatch, UploadFile
from common.queues import extract_queue_name
from common.settings.catalogue import ExtractSettings, SpoolSettings
from common.spool import Spool
from common.weights import weights_identity
from common.worker import JobContext
from gpu_worker.agreement import Agreement, compare
from gpu_worker.extract import Extractor
from gpu_worker.service import RunService
from gpu_worker.structure import dissect
from gpu_worker.tokens import TokenCache
from hiddenfeed.batch_file import BatchHeader, decode_header, tensor_arrays
from hiddenfeed.dtypes import to_float32
from hiddenfeed.reader import RunReader
from hiddenfeed.run import RunDocument
from hiddenfeed.store.directory import DirectoryStore
from tests.tiny_models import VOCABULARY, save_model

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

    def store_files(self, uploads: Sequence[UploadFile]) -> None:
        """Put files of the spool where an uploader would put them."""
        for upload in uploads:
            path = self.spool().resolve(upload.path)
            self.store.put_file(upload.key, path, size_bytes=upload.size_bytes, checksum=upload.checksum)


def tiny_run(
    folder: Path,
    *,
    architecture: str = "llama",
    save: Callable[[Path], object] | None = None,
    taps: tuple[int, ...] = (0, 2, 3),
    final_state: str = "none",
    dtype: str = "float32",
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]] = LENGTHS,
    micro_batch_tokens: int = 90,
    vocabulary: int = VOCABULARY,
    seed: int = 0,
) -> TinyRun:
    """Make model, plan and store below `folder`; `save` writes another checkpoint than `architecture`'s."""
    model = folder / "model"
    if save is None:
        save_model(model, architecture, getattr(torch, dtype))
    else:
        save(model)
    config = AutoConfig.from_pretrained(model).get_text_config()
    store = DirectoryStore(folder / "store")
    store.check(create=True)
    spec = RunSpec(
        model=str(model),
        model_identity=weights_identity(model),
        hidden_size=config.hidden_size,
        num_blocks=config.num_hidden_layers,
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


def context_of(run_id: str) -> JobContext:
    """What a job of the run's queue is given."""
    return JobContext(job_id="job", worker_name="tester", queue=extract_queue_name(run_id))


def extract(extractor: Extractor, message: ExtractBatch) -> UploadFile:
    """Run one job as the worker would; returns what it announced."""
    context = context_of(message.run_id)
    report = extractor.extract_batch(msgspec.to_builtins(message), context)
    (request,) = context.follow_ups
    assert isinstance(request.payload, UploadFile)
    assert request.payload.report == report
    return request.payload


def agreement_with(reader: RunReader, model: nn.Module, *, median: bool = False) -> Agreement:
    """All stored states of a run against transformers' own of the whole `model`, each sample alone.

    The state after the last block is one that transformers gives after the final norm only: ours is normed first.
    """
    whole: Any = model
    identity = reader.document.identity
    norm, last = dissect(model).norm, len(dissect(model).blocks)
    assert norm is not None

    def normed(state: torch.Tensor) -> torch.Tensor:
        normed_state: torch.Tensor = norm(state.to(whole.dtype))
        return normed_state.float()

    ours, reference = [], []
    for sample in reader:
        ids = torch.from_numpy(sample.input_ids.astype(np.int64))[None]
        with torch.inference_mode():
            hidden = whole(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
            stored = [torch.from_numpy(sample.tap(tap)) for tap in identity.taps]
            if identity.taps[-1] == last:
                stored[-1] = normed(stored[-1])
            expected = [hidden[tap][0].float() for tap in identity.taps]
            assert sample.raw_final is None or sample.final_norm == identity.final_state
            if identity.final_state != "none":
                final = torch.from_numpy(sample.final_float32())
                stored.append(normed(final) if identity.final_state == "pre" else final)
                expected.append(hidden[last][0].float())
        ours.append(torch.stack(stored, dim=1).numpy())
        reference.append(torch.stack(expected, dim=1).numpy())
    return compare(np.concatenate(ours), np.concatenate(reference), median=median)


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
