"""Nothing in the loop waits for the device: no operation whose result the host must know before it goes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_worker.host_ring import RowShape, Slot
from gpu_worker.structure import dissect
from gpu_worker.taps import Selection, StateRows, TapModel
from gpu_worker.transfer import HostTransfer, check_tensors
from gpu_worker.unpacked import never_packed
from tests.tiny_models import CONFIGS, HIDDEN, MIXTURES, VOCABULARY, make_model

#: Operations that give the host a number, or tensors whose shape is in the data: on CUDA they wait for all before them.
WAITING = {
    "_local_scalar_dense",
    "is_nonzero",
    "equal",
    "nonzero",
    "masked_select",
    "unique_dim",
    "_unique2",
    "item",
}


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


# Experts are routed to by looking: on CUDA by other code than here.
@pytest.mark.parametrize("architecture", [name for name in CONFIGS if name not in MIXTURES])
def test_nothing_is_asked_back_from_the_device(architecture: str) -> None:
    never_packed()
    model = TapModel(dissect(make_model(architecture)), Selection((1, 3), "none"))
    shape = RowShape(2, HIDDEN, torch.float32, final=False)
    ids = torch.randint(3, VOCABULARY, (3, 20))
    real = torch.arange(50)
    host = Slot(pinned=False).tensors(shape, len(real))
    transfer, watch = HostTransfer(), _Watch()
    with watch:
        rows = StateRows(*transfer.targets(host, shape), transfer.upload(real))
        model.forward(transfer.upload(ids), rows)
        transfer.land(check_tensors(rows, ids), host)
    assert "index_select" in watch.seen
    assert not WAITING & set(watch.seen)
