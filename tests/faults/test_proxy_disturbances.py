"""What the fault proxy does to a put into a real S3 server, and what the store makes of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from hiddenfeed.checksum import checksum_of
from hiddenfeed.errors import TransientError
from hiddenfeed.options import StoreOptions
from hiddenfeed.store import PutOutcome, Store, open_store
from tests.conftest import S3Access
from tests.faults.fault_proxy import Disturbance, FaultProxy
from tests.worker_rig import wait_until

KEY = "run-1/batches/000000.safetensors"
DATA = os.urandom(300_000)


@pytest.fixture
def direct(s3: S3Access) -> Store:
    """The store as it is."""
    return open_store(s3.url, s3.options)


@pytest.fixture
def proxy(s3: S3Access, direct: Store) -> Iterator[FaultProxy]:
    root = f"/{s3.bucket}/{s3.prefix}/"
    proxy = FaultProxy(s3.endpoint, lambda path: direct.delete(path.removeprefix(root)))
    yield proxy
    proxy.close()


@pytest.fixture
def store(s3: S3Access, proxy: FaultProxy) -> Store:
    """The store behind the proxy, one attempt a call."""
    options = StoreOptions(
        s3_endpoint=proxy.endpoint,
        s3_max_attempts=1,
        s3_connect_timeout_seconds=20,
        s3_read_timeout_seconds=20,
    )
    return open_store(s3.url, options)


def put(store: Store, tmp_path: Path) -> PutOutcome:
    path = tmp_path / "file.bin"
    path.write_bytes(DATA)
    return store.put_file(KEY, path, size_bytes=len(DATA), checksum=checksum_of(DATA))


def test_an_undisturbed_put_goes_through_unchanged(store: Store, direct: Store, tmp_path: Path) -> None:
    assert put(store, tmp_path) is PutOutcome.STORED
    assert put(store, tmp_path) is PutOutcome.ALREADY_THERE
    assert direct.read(KEY) == store.read(KEY) == DATA
    assert [info.key for info in store.list("")] == [KEY]
    store.delete(KEY)
    assert direct.head(KEY) is None


@pytest.mark.parametrize(
    "disturbance",
    [Disturbance.UNAVAILABLE, Disturbance.CUT_BODY, Disturbance.FLIP_BYTE, Disturbance.VANISH],
)
def test_a_disturbed_put_leaves_nothing_and_can_be_made_again(
    store: Store, direct: Store, proxy: FaultProxy, tmp_path: Path, disturbance: Disturbance
) -> None:
    with proxy.disturbing(disturbance, Random(0)), pytest.raises(TransientError):
        put(store, tmp_path)
    assert proxy.met == {disturbance: 1}
    assert direct.head(KEY) is None
    assert put(store, tmp_path) is PutOutcome.STORED
    assert direct.read(KEY) == DATA


def test_a_put_whose_reply_is_lost_is_found_to_have_worked(
    store: Store, direct: Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    with proxy.disturbing(Disturbance.LOSE_REPLY, Random(0)), pytest.raises(TransientError):
        put(store, tmp_path)
    assert direct.read(KEY) == DATA
    assert put(store, tmp_path) is PutOutcome.ALREADY_THERE


def test_a_put_may_be_confirmed_and_its_object_gone_all_the_same(
    store: Store, direct: Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    with proxy.disturbing(Disturbance.VANISH_LATER, Random(0), methods=("PUT", "HEAD")):
        assert put(store, tmp_path) is PutOutcome.STORED
        assert direct.head(KEY) is None
        # Once for each path.
        assert put(store, tmp_path) is PutOutcome.STORED
    assert proxy.met == {Disturbance.VANISH_LATER: 1}
    assert direct.read(KEY) == DATA


def test_a_hanging_put_hangs_until_the_disturbance_is_over(
    store: Store, direct: Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    errors: list[TransientError] = []

    def attempt() -> None:
        try:
            put(store, tmp_path)
        except TransientError as error:
            errors.append(error)

    thread = threading.Thread(target=attempt)
    with proxy.disturbing(Disturbance.HANG, Random(0)):
        thread.start()
        wait_until(lambda: proxy.met[Disturbance.HANG] == 1)
        assert errors == []
    thread.join()
    assert len(errors) == 1
    assert direct.head(KEY) is None


def test_a_reply_that_is_cut_is_not_taken_for_the_object(
    store: Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    put(store, tmp_path)
    with (
        proxy.disturbing(Disturbance.CUT_REPLY, Random(0), methods=("GET",)),
        pytest.raises(TransientError),
    ):
        store.read(KEY, 0, 1000)
    assert store.read(KEY) == DATA


def test_only_what_is_meant_is_disturbed(store: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    with proxy.disturbing(Disturbance.UNAVAILABLE, Random(0), within="/elsewhere/"):
        put(store, tmp_path)
    with proxy.disturbing(Disturbance.UNAVAILABLE, Random(0), methods=("GET",)):
        assert store.head(KEY) is not None
    with proxy.disturbing(Disturbance.UNAVAILABLE, Random(0), methods=("HEAD",), share=0.5):
        outcomes = set()
        for _ in range(20):
            try:
                outcomes.add(store.head(KEY) is not None)
            except TransientError:
                outcomes.add(False)
    assert outcomes == {True, False}
