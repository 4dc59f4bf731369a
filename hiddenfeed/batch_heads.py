"""Batch files without their states: header, offsets, tokens and masks, the most recently used kept in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from hiddenfeed.batch_file import BatchHeader, read_header, read_tensors
from hiddenfeed.store.base import ObjectInfo, Store


@dataclass(frozen=True)
class BatchHead:
    """One batch file without its states."""

    key: str
    header: BatchHeader
    #: offsets, sample_index, input_ids, loss_mask.
    tensors: dict[str, npt.NDArray[Any]]

    @property
    def size_bytes(self) -> int:
        """Bytes the arrays take."""
        return sum(array.nbytes for array in self.tensors.values())


class BatchHeads:
    """Reads heads and keeps up to `kept_bytes` of them. Safe to use from several threads."""

    def __init__(self, store: Store, kept_bytes: int) -> None:
        self._store, self._kept_bytes = store, kept_bytes
        self._heads: OrderedDict[int, BatchHead] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, batch_id: int, info: ObjectInfo, check: Callable[[BatchHeader], None]) -> BatchHead:
        """The head of a batch, in two ranged reads unless it is kept; `check` raises for a foreign one."""
        with self._lock:
            if batch_id in self._heads:
                self._heads.move_to_end(batch_id)
                return self._heads[batch_id]
        header, _ = read_header(self._store, info)
        check(header)
        tensors = read_tensors(self._store, info.key, header.layout, "offsets", "loss_mask")
        return self._keep(batch_id, BatchHead(info.key, header, tensors))

    def _keep(self, batch_id: int, head: BatchHead) -> BatchHead:
        with self._lock:
            if batch_id not in self._heads:
                self._heads[batch_id] = head
                self._bytes += head.size_bytes
            while self._bytes > self._kept_bytes and len(self._heads) > 1:
                self._bytes -= self._heads.popitem(last=False)[1].size_bytes
        return head
