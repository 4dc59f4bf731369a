"""Faults of S3: killed, refusing, resetting, silent, receiving other bytes, losing what it took."""

from __future__ import annotations

from collections.abc import Collection

from common.worker.presence import list_workers
from hiddenfeed.layout import batches_prefix
from tests.faults.aftermath import until
from tests.faults.fault_proxy import Disturbance
from tests.faults.fault_site import GPU_WORKERS
from tests.faults.trial import Fault, Trial

_WAITING_SECONDS = 60.0
_DELETED = 3


def _away(trial: Trial) -> None:
    trial.site.kill_s3()
    trial.wait(trial.outage_seconds())
    trial.site.start_s3()


def _disturbed(
    name: str,
    disturbance: Disturbance,
    *,
    methods: Collection[str] = ("PUT",),
    within: str = "/batches/",
    share: float = 0.7,
    seconds: float = 0.0,
    redoes: bool = False,
    early: bool = False,
) -> Fault:
    """A share of the requests meets the disturbance for a while, so that some get through between."""

    def inject(trial: Trial) -> None:
        before = trial.site.proxy.met[disturbance]
        with trial.site.proxy.disturbing(
            disturbance, trial.random, methods=methods, within=within, share=share
        ):
            trial.wait(seconds + trial.brief_seconds())
            # Whoever is late to ask meets it too.
            until(lambda: trial.site.proxy.met[disturbance] > before or trial.is_over, _WAITING_SECONDS)

    # A command whose store is not there at its start ends with 75, for its supervisor to try again.
    own_ends = frozenset({75} if early else ())
    return Fault(name, inject, times=1 if early else 2, redoes=redoes, early=early, own_ends=own_ends)


def _cut_replies(trial: Trial) -> None:
    """Objects are read when a run ends, to prove it: now and then half of one arrives."""
    with trial.site.proxy.disturbing(
        Disturbance.CUT_REPLY, trial.random, methods=("GET",), within=trial.run_id, share=0.03
    ):
        until(lambda: trial.is_over, _WAITING_SECONDS)


def _refuse_until_all_wait(trial: Trial) -> None:
    """S3 takes no file until the GPU workers wait for it: the backlog of uploads is at its limit."""
    with trial.site.proxy.disturbing(Disturbance.UNAVAILABLE, trial.random), trial.site.client as client:

        def all_wait() -> bool:
            workers = [worker for worker in list_workers(client) if worker.role == "gpu_worker"]
            return len(workers) >= len(GPU_WORKERS) and all(worker.waiting for worker in workers)

        until(lambda: all_wait() or trial.is_over, _WAITING_SECONDS)


def _delete(trial: Trial) -> None:
    """Somebody deletes batch files that the store had and the uploader has forgotten."""
    store = trial.site.store
    keys = [info.key for info in store.list(batches_prefix(trial.run_id))]
    for key in trial.random.sample(keys, min(_DELETED, len(keys))):
        store.delete(key)


FAULTS = (
    Fault("S3 away", _away, redoes=False),
    _disturbed(
        "S3 answers 503", Disturbance.UNAVAILABLE, methods=("PUT", "GET", "HEAD"), within="", share=0.9
    ),
    _disturbed(
        "S3 answers 503, early",
        Disturbance.UNAVAILABLE,
        methods=("PUT", "GET", "HEAD"),
        within="",
        share=0.5,
        seconds=3.0,
        early=True,
    ),
    _disturbed("S3 resets in mid-body", Disturbance.CUT_BODY),
    # Longer than a client waits for a reply.
    _disturbed("S3 hangs", Disturbance.HANG, methods=("PUT", "GET", "HEAD"), within="", seconds=2.0),
    _disturbed("S3 gets other bytes", Disturbance.FLIP_BYTE),
    _disturbed("S3 loses replies", Disturbance.LOSE_REPLY),
    Fault("S3 cuts replies", _cut_replies, times=1, redoes=False),
    _disturbed("object gone before HEAD", Disturbance.VANISH, share=0.4),
    _disturbed(
        "object gone before delete",
        Disturbance.VANISH_LATER,
        methods=("PUT", "HEAD"),
        share=0.3,
        redoes=True,
    ),
    Fault("object deleted later", _delete),
    Fault("S3 refuses until all wait", _refuse_until_all_wait, redoes=False),
)
