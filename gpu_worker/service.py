"""The run in service: its document, its tokens and the engine for its model.

It is changed in the worker's main thread, between two pops and only while no job is in hand; the
threads of jobs use it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from common.logs import get_logger
from common.settings.catalogue import ExtractSettings
from common.worker import GiveBack
from gpu_worker.engine import Engine, engine_key, free_memory, make_engine
from gpu_worker.tokens import TokenBatch, TokenCache, TokenFile
from hiddenfeed.errors import ConfigError, DataError
from hiddenfeed.inventory import load_document
from hiddenfeed.run import RunDocument
from hiddenfeed.store.base import Store

log = get_logger("runs")

#: Samples for the self-test are looked for in so many batches at most.
_PROBED_BATCHES = 16


@dataclass(frozen=True)
class ServedRun:
    """Everything that a batch of a run needs."""

    document: RunDocument
    tokens: TokenFile
    engine: Engine


class RunService:
    """Holds one run and one engine at most."""

    def __init__(
        self, store: Store, cache: TokenCache, settings: ExtractSettings, device: torch.device
    ) -> None:
        self._store, self._cache, self._settings, self._device = store, cache, settings, device
        self._lock = threading.Lock()
        self._users = 0
        self._served: ServedRun | None = None
        self._engine: Engine | None = None

    @property
    def served(self) -> ServedRun | None:
        """The run in service."""
        return self._served

    def prepare(self, run_id: str) -> bool:
        """Put `run_id` into service, its model loaded; False while jobs of another run are in hand.

        Raises DataError or ConfigError if the run, its tokens or its model cannot be used, and
        TransientError when the store or the hub is away; then no run is in service.
        """
        with self._lock:
            if self._served is not None and self._served.document.run_id == run_id:
                return True
            if self._users:
                return False
            self._withdraw()
        served = self._load(run_id)
        with self._lock:
            self._served = served
        return True

    @contextmanager
    def use(self, run_id: str) -> Iterator[ServedRun]:
        """The run, kept until the block ends; raises GiveBack if it is not in service."""
        with self._lock:
            served = self._served
            if served is None or served.document.run_id != run_id:
                raise GiveBack(f"run {run_id} is not in service here any more")
            self._users += 1
        try:
            yield served
        finally:
            with self._lock:
                self._users -= 1

    def close(self) -> None:
        """Let go of run and model; no job may be in hand."""
        with self._lock:
            self._withdraw()
            if self._engine is not None:
                self._engine.close()
            self._engine = None

    def _withdraw(self) -> None:
        if self._served is not None:
            self._served.tokens.close()
        self._served = None

    def _load(self, run_id: str) -> ServedRun:
        document = load_document(self._store, run_id)
        if not document.plan.batches:
            raise ConfigError(f"run {run_id} has no batches")
        tokens = self._cache.open(self._store, document)
        try:
            engine = self._engine_for(document, tokens)
        except BaseException:
            tokens.close()
            raise
        log.info("run in service", run=run_id, keeps=document.taps_meaning, batches=document.plan.batches)
        return ServedRun(document, tokens, engine)

    def _engine_for(self, document: RunDocument, tokens: TokenFile) -> Engine:
        key = engine_key(document, self._settings, self._device)
        if self._engine is None or self._engine.key != key:
            self._drop_engine()
            self._engine = make_engine(
                key, document, _some_batches(tokens), forward_tokens=self._settings.forward_tokens
            )
        return self._engine

    def _drop_engine(self) -> None:
        """Free the model's memory before the next one is loaded: two may not fit."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
            free_memory()


def _some_batches(tokens: TokenFile) -> Iterator[TokenBatch]:
    """The first batch and others, far apart; those that cannot be read fail by themselves, later."""
    for batch_id in sorted({round(place) for place in np.linspace(0, tokens.batches - 1, _PROBED_BATCHES)}):
        try:
            yield tokens.batch(batch_id)
        except DataError as error:
            log.warning("not taken for the self-test", batch=batch_id, reason=str(error))
