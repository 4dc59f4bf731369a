"""Faults of S3: killed, refusing, resetting, silent, receiving other bytes, losing what it took."""

from __future__ import annotations

from collections.abc import Collection

from hiddenfeed.errors import TransientError
from hiddenfeed.layout import batches_prefix
from tests.faults.aftermath import until
from tests.faults.fault_proxy import Disturbance
from tests.faults.fault_site import SPOOL_CAP_BYTES
from tests.faults.lookout import spool_bytes
from tests.faults.trial import Fault, Trial

_FULL_SECONDS = 60.0


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
) -> Fault:
    """A share of the requests meets the disturbance for a while, so that some get through between."""

    def inject(trial: Trial) -> None:
        with trial.site.proxy.disturbing(
            disturbance, trial.random, methods=methods, within=within, share=share
        ):
            trial.wait(trial.outage_seconds())

    return Fault(name, inject)


def _fill_spool(trial: Trial) -> None:
    """S3 takes no file until the spool is at its cap and the GPU workers wait."""
    everything, random = trial.site.proxy, trial.random
    with everything.disturbing(Disturbance.UNAVAILABLE, random):
        full = 0.9 * SPOOL_CAP_BYTES
        until(lambda: spool_bytes(trial.site.spool) > full or trial.is_over, _FULL_SECONDS)
        trial.wait(random.uniform(0.5, 2.0))


def _delete(trial: Trial) -> None:
    """Somebody deletes batch files that the store had and the uploader has forgotten."""
    store = trial.site.store
    try:
        keys = [info.key for info in store.list(batches_prefix(trial.run_id))]
        for key in trial.random.sample(keys, min(3, len(keys))):
            store.delete(key)
    except TransientError as error:
        raise AssertionError("the undisturbed side of the store is away") from error


FAULTS = (
    Fault("S3 away", _away),
    _disturbed(
        "S3 answers 503", Disturbance.UNAVAILABLE, methods=("PUT", "GET", "HEAD"), within="", share=0.9
    ),
    _disturbed("S3 resets in mid-body", Disturbance.CUT_BODY),
    _disturbed("S3 hangs", Disturbance.HANG, methods=("PUT", "GET", "HEAD"), within=""),
    _disturbed("S3 gets other bytes", Disturbance.FLIP_BYTE),
    _disturbed("S3 loses replies", Disturbance.LOSE_REPLY),
    _disturbed("S3 cuts replies", Disturbance.CUT_REPLY, methods=("GET",), within=""),
    _disturbed("object gone before HEAD", Disturbance.VANISH, share=0.4),
    _disturbed("object gone before delete", Disturbance.VANISH, methods=("HEAD",), share=0.2),
    Fault("object deleted later", _delete),
    Fault("S3 away until the spool is full", _fill_spool),
)
