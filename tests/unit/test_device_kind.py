"""What kind of device it is: a name by which workers share what they learn, short and printable."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from common.batch_cost import device_class
from gpu_worker.device_kind import device_kind, processor_name


def test_a_processor_is_named_without_its_clock(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(
        "processor : 0\nmodel name\t: Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz\nmodel name\t: other\n"
    )
    assert processor_name(info) == "Intel Xeon CPU E5-2680 v4"
    info.write_text("CPU implementer : 0x41\n")
    assert processor_name(info) == processor_name(tmp_path / "none")


def test_cpu_says_its_threads_and_cuda_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads, said in ((1, ", 1 thread"), (12, ", 12 threads")):
        device_kind.cache_clear()
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        cpu = device_kind(torch.device("cpu"))
        assert cpu.endswith(said)
        assert len(cpu) <= 60
    device_kind.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA\n H200" + "x" * 100)
    assert device_kind(torch.device("cuda", 1)) == ("NVIDIA H200" + "x" * 100)[:60]
    device_kind.cache_clear()


def test_devices_share_by_kind_and_where_none_was_said_by_type() -> None:
    assert device_class("cuda:1", "NVIDIA H200") == "NVIDIA H200"
    assert device_class("cuda:1") == device_class("cuda:0") == "cuda"
