"""What a run left behind, held against an undisturbed one: the store, the queues, the spool, the processes."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import redis

from common import rq_keys
from common.queues import extract_queue_name, queue_counts, upload_queue_name
from common.redis_client import text
from common.run_state import get_run, read_progress
from hiddenfeed.batch_file import decode_header, tensor_arrays
from hiddenfeed.errors import HiddenfeedError
from hiddenfeed.inventory import load_document
from hiddenfeed.layout import batches_prefix
from hiddenfeed.store import Store
from hiddenfeed.store.memory import MemoryStore
from hiddenfeed.verify import verify
from tests.faults.fault_site import SPOOL, Site
from tests.faults.fleet import processes_of

#: The producer ends when the store is complete; second copies of batches may still be on their way then.
SETTLE_SECONDS = 60.0
_READERS = 8
#: Equal bytes in every run of the job, whatever its name.
_DOCUMENTS = ("tokens.parquet", "skipped.parquet")


@dataclass(frozen=True)
class Reference:
    """What every run of the job must leave. Keys are relative to the run's."""

    fingerprint: str
    keys: frozenset[str]
    #: Key -> a digest of what it holds: of each tensor of a batch file, of the bytes of a document.
    contents: Mapping[str, Mapping[str, str]]

    @property
    def batches(self) -> int:
        """Batch files of a run."""
        return sum(key.startswith("batches/") for key in self.keys)

    def run_id(self, name: str) -> str:
        """The id that a run of this name has."""
        return f"{name}-{self.fingerprint}"


@dataclass
class Findings:
    """What is wrong, in sentences; all empty is what every fault must end in."""

    #: Keys that a run must have and this one has not.
    lost: list[str] = field(default_factory=list)
    #: Keys that a run must not have.
    duplicated: list[str] = field(default_factory=list)
    #: Keys whose content is not that of the reference.
    corrupted: list[str] = field(default_factory=list)
    #: Everything else.
    troubles: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[str]:
        """Every sentence."""
        kinds = ("lost", "duplicated", "corrupted")
        named = [f"{kind}: {key}" for kind in kinds for key in getattr(self, kind)]
        return named + self.troubles


def take_reference(store: Store, run_id: str) -> Reference:
    """The reference, from a run that nothing disturbed."""
    copy = copy_run(store, run_id)
    keys = _relative_keys(copy, run_id)
    fingerprint = load_document(copy, run_id).fingerprint
    return Reference(fingerprint, frozenset(keys), _contents(copy, run_id, keys))


def inspect(site: Site, reference: Reference, run_id: str) -> Findings:
    """Everything that is wrong after the run; its producers must have ended.

    Files may be on their way through the spool then: second copies of batches, and files that no job
    spoke of until an uploader announced them again. All of them must be gone soon.
    """
    findings = Findings()
    with site.client as client:
        checks: list[Callable[[], None]] = [
            lambda: check_store(site.store, reference, run_id, findings),
            lambda: check_spool(site, findings),
            lambda: _check_queues(client, run_id, findings),
            lambda: _check_counters(client, site.store, run_id, findings),
        ]
        for check in checks:
            try:
                check()
            except (HiddenfeedError, redis.RedisError) as error:
                findings.troubles.append(f"could not be checked: {error}")
    # A killed preparation leaves its folder to the next one to sweep.
    findings.troubles += [f"left in TMPDIR: {path.name}" for path in site.temporary.glob("hiddenfeed-*")]
    strays = processes_of(site.folder) - site.fleet.pids()
    findings.troubles += [f"process {process} was left over" for process in sorted(strays)]
    return findings


def check_store(store: Store, reference: Reference, run_id: str, findings: Findings) -> None:
    """The store holds exactly the expected keys, each with the reference's content, and the proof holds."""
    copy = copy_run(store, run_id)
    keys = _relative_keys(copy, run_id)
    findings.lost += sorted(reference.keys - keys)
    findings.duplicated += sorted(keys - reference.keys)
    contents = _contents(copy, run_id, keys & reference.contents.keys())
    findings.corrupted += sorted(
        key for key, content in contents.items() if content != reference.contents[key]
    )
    try:
        if not verify(copy, run_id, deep=True).finished:
            findings.troubles.append(f"run {run_id} has no complete.json")
    except HiddenfeedError as error:
        findings.troubles.append(f"no proof: {error}")


def copy_run(store: Store, run_id: str) -> MemoryStore:
    """All objects of the run, each read whole and verified by its checksum, so that looking twice is cheap."""
    copy = MemoryStore()
    keys = [info.key for info in store.list(f"{run_id}/")]
    with ThreadPoolExecutor(_READERS) as threads:
        for key, data in zip(keys, threads.map(store.read, keys), strict=True):
            copy.write(key, data)
    return copy


def check_spool(site: Site, findings: Findings, seconds: float = SETTLE_SECONDS) -> None:
    """No file stays in the spool for longer than `seconds`, finished or not."""
    left: list[str] = []

    def is_empty() -> bool:
        left[:] = sorted(str(path.relative_to(site.spool.root)) for path in site.spool.root.glob("*/*"))
        return not left

    if not until(is_empty, seconds):
        findings.troubles += [f"left in the spool: {name}" for name in left]


def _check_queues(client: redis.Redis, run_id: str, findings: Findings) -> None:
    """Every job of the run has finished, and none is in a list or registry of those that have not."""
    found: list[str] = []

    def is_quiet() -> bool:
        found[:] = stuck_jobs(client, run_id)
        return not found

    if not until(is_quiet, SETTLE_SECONDS):
        findings.troubles += found
    record = get_run(client, run_id)
    if record is None or record.state != "complete":
        findings.troubles.append(
            f"Redis knows the run as {record.state if record else 'none'}, not as complete"
        )


def stuck_jobs(client: redis.Redis, run_id: str) -> list[str]:
    """A sentence for every way in which the run's jobs are not over."""
    queues = (extract_queue_name(run_id), upload_queue_name(SPOOL))
    sentences = []
    for queue in queues:
        counts = queue_counts(client, queue)
        for kind in ("queued", "started", "scheduled", "failed"):
            if number := getattr(counts, kind):
                sentences.append(f"{number} jobs are {kind} on {queue}")
        for key in rq_keys.other_registries(queue):
            if number := client.zcard(key):
                sentences.append(f"{number} jobs are in {key}")
    for kind in ("extract", "upload"):
        for key in client.scan_iter(match=rq_keys.job_key(f"{kind}-{run_id}-*"), count=1000):
            status = text(client.hget(key, rq_keys.JobField.STATUS) or b"nothing")
            if status != "finished":
                sentences.append(f"{text(key)} says {status}")
    return sentences


def _check_counters(client: redis.Redis, store: Store, run_id: str, findings: Findings) -> None:
    """Each batch counted once, whatever happened."""
    planned, progress = load_document(store, run_id).plan, read_progress(client, run_id)
    for name in ("batches", "samples", "tokens"):
        if getattr(planned, name) != getattr(progress, name):
            findings.troubles.append(
                f"Redis counted {getattr(progress, name)} {name} of {getattr(planned, name)}"
            )


def _relative_keys(store: Store, run_id: str) -> set[str]:
    return {info.key.removeprefix(f"{run_id}/") for info in store.list(f"{run_id}/")}


def _contents(store: Store, run_id: str, keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """Digests by key of all batch files and of the documents that are the same in every run."""
    batches = batches_prefix(run_id).removeprefix(f"{run_id}/")
    wanted = [key for key in keys if key.startswith(batches) or key in _DOCUMENTS]
    return {key: _digests(store, f"{run_id}/{key}") for key in wanted}


def _digests(store: Store, key: str) -> dict[str, str]:
    """By tensor; empty for a batch file that cannot be read as one, which is no reference's content."""
    try:
        data = store.read(key)
        if not key.endswith(".safetensors"):
            return {"": _digest(data)}
        tensors = tensor_arrays(data, decode_header(data, key).layout)
    except HiddenfeedError:
        return {}
    return {name: _digest(tensor.tobytes()) for name, tensor in tensors.items()}


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def until(true: Callable[[], bool], seconds: float) -> bool:
    """Poll an outside fact; False if it did not come true in time."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not true():
        if time.monotonic() >= deadline:
            return False
        pause.wait(0.1)
    return True
