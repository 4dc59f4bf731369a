"""The parts of the upload benchmark do what they are compared by: files arrive, and are proven where that is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.upload_children import client, credentials, make_file, sink, with_keys
from hiddenfeed.errors import DataError
from hiddenfeed.options import MIB, StoreOptions
from hiddenfeed.store import PutOutcome, open_store


def test_the_sink_is_a_store_to_our_put(tmp_path: Path) -> None:
    order = make_file(tmp_path, 17)
    path, size = Path(order.path), 17 * MIB
    with credentials(), sink() as server:
        for threshold in (128 * MIB, 5 * MIB):
            options = StoreOptions(s3_endpoint=server.endpoint, multipart_threshold_bytes=threshold)
            store = open_store(f"s3://bucket/{threshold}", options)
            for outcome in (
                PutOutcome.STORED,
                PutOutcome.STORED if threshold > size else PutOutcome.ALREADY_THERE,
            ):
                assert store.put_file("a", path, size_bytes=size, checksum=order.checksum) is outcome
            info = store.head("a")
            assert info is not None
            assert (info.size_bytes, info.checksum) == (size, order.checksum)
        path.write_bytes(bytes(1000))
        with pytest.raises(DataError):
            store.put_file("b", path, size_bytes=1000, checksum=order.checksum)


@pytest.mark.parametrize("way", ["raw", "ours", "upload_file"])
def test_a_way_puts_what_it_is_told_to(tmp_path: Path, way: str) -> None:
    order = make_file(tmp_path, 1)
    with credentials(), sink("--delay-ms", "1") as server:
        with client(way, server.endpoint, 2) as uploading:
            cost = uploading.measure(with_keys(order, "key", 3))
        assert cost.seconds > 0
        assert cost.peak_rss_mb > 1
        root = "s3://bucket/ours" if way == "ours" else "s3://bucket"
        store = open_store(root, StoreOptions(s3_endpoint=server.endpoint))
        sizes = [found.size_bytes for found in (store.head(f"key-{number}") for number in range(3)) if found]
        assert sizes == [MIB] * 3
