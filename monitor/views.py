"""What all faces of the monitor show: plain facts and numbers, ready to be printed or sent as JSON."""

from __future__ import annotations

import msgspec

from common.check_words import Finding
from common.checks import Checks
from hiddenfeed.words import time_left_text


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU worker did for a run."""

    worker: str
    #: `cuda:0`, and what it is: `NVIDIA H200`; empty where nobody said.
    device: str
    kind: str
    batches: int
    samples: int
    tokens: int
    size_bytes: int
    #: Computed, over the clock, waiting included; None until two batches tell.
    tokens_per_second: float | None
    samples_per_second: float | None
    #: Shares of read, forward, stall and write in the time of its batches; they sum to 1 or are all 0.
    stages: dict[str, float]
    #: Share of padding in what the device saw.
    padding: float
    #: Since the latest of its stored batches was computed.
    last_seconds_ago: float | None
    #: `busy`, `idle`, `waiting`, `silent`, or `gone` where no process of that name is known any more.
    state: str = "gone"
    #: Share of the clock in which the device computed; None until two batches tell.
    busy: float | None = None
    #: Ids of the jobs it has in hand.
    current: tuple[str, ...] = ()
    #: Forward passes that ran out of memory and went on in halves.
    halvings: int = 0
    #: Batches of which it could store only a note.
    quarantined: int = 0


class HostView(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU workers of one host at a glance."""

    host: str
    #: A letter for each: `b` busy, `i` idle, `w` waiting, `s` silent, `g` gone.
    states: str


class UploaderView(msgspec.Struct, frozen=True, kw_only=True):
    """What one uploader did for a run."""

    uploader: str
    files: int
    duplicates: int
    size_bytes: int
    #: Over the clock, waiting included; None until two files tell.
    bytes_per_second: float | None
    #: Of one file on its way.
    transfer_bytes_per_second: float | None
    last_seconds_ago: float | None


class FailureView(msgspec.Struct, frozen=True, kw_only=True):
    """A job that failed: for good, so that a person must look at it, or for now."""

    job_id: str
    description: str
    error: str
    #: What tries it again, for a person to copy; empty where its name is none of ours, so that nobody pastes what another wrote.
    command: str = ""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `state` is a word: waiting, running, uploading, proving, stalled, paused, cancelled, complete."""

    run_id: str
    state: str
    model: str
    batches: int
    batches_total: int
    samples: int
    samples_total: int
    tokens: int
    tokens_total: int
    size_bytes: int
    #: 0 to 1, of tokens.
    done: float
    #: Whether the store holds the run's proof; None if that is not known.
    proved: bool | None
    #: Computed, over the clock; None until two batches tell.
    tokens_per_second: float | None
    samples_per_second: float | None
    #: Until the store holds the last batch, and the range in which that is likely; None where nobody can say.
    remaining_seconds: float | None
    remaining_low_seconds: float | None
    remaining_high_seconds: float | None
    queued: int
    started: int
    retrying: int
    failed: int
    failures: tuple[FailureView, ...]
    workers: tuple[DeviceView, ...]
    #: The latest of the batches that will be tried again by themselves.
    retries: tuple[FailureView, ...] = ()
    uploaders: tuple[UploaderView, ...]
    #: Samples that could not be extracted, and why the last of them could not.
    set_aside: int = 0
    set_aside_reason: str = ""
    #: Over the last two minutes; None where nobody watched.
    recent: RecentView | None = None
    #: What was checked of the stored batches: the worst so far, and the same in sentences, what went wrong first.
    checks: Checks = Checks()
    findings: tuple[Finding, ...] = ()
    #: Forward passes that ran out of memory and went on in halves.
    halvings: int = 0
    #: Batches of which a note with the reason is stored in place of states.
    quarantined_batches: int = 0
    #: All GPU workers, host by host.
    hosts: tuple[HostView, ...] = ()
    #: How many more there are than are listed, in a view that was cut.
    more_workers: int = 0
    more_hosts: int = 0
    more_uploaders: int = 0


class RecentView(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a run of late."""

    seconds: float
    extract_bytes_per_second: float
    upload_bytes_per_second: float
    tokens_per_second: float
    #: How many files more wait for upload than then.
    backlog_growth: int


class UploadQueueView(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one spool on their way."""

    name: str
    queued: int
    started: int
    retrying: int
    failed: int
    failures: tuple[FailureView, ...]
    #: The latest of the files that will be tried again by themselves.
    retries: tuple[FailureView, ...] = ()


class ProcessView(msgspec.Struct, frozen=True, kw_only=True):
    """A process that takes jobs. `state` is busy, idle, waiting or silent."""

    name: str
    role: str
    state: str
    #: The queue it serves; empty while it looks for work.
    queue: str
    running: int
    slots: int
    finished: int
    failed: int
    waits_for: str
    heartbeat_seconds_ago: float | None


class SpoolView(msgspec.Struct, frozen=True, kw_only=True):
    """The spool of this host."""

    name: str
    files: int
    size_bytes: int
    #: Space taken by files that are being written.
    part_bytes: int
    cap_bytes: int
    disk_free_bytes: int
    #: 0 to 1, of the cap.
    used: float
    #: How fast it fills of late, negative while it empties; None where nobody watched.
    bytes_per_second: float | None = None
    #: At that pace; None where it does not come to that.
    full_in_seconds: float | None = None
    empty_in_seconds: float | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One of the five questions that people ask of a run, answered in a sentence."""

    #: `busy`, `upload`, `done`, `wrong` or `disk`.
    about: str
    question: str
    #: `good`, `warn`, `bad` or `unknown`.
    verdict: str
    #: The answer in a few words, to be read from afar.
    brief: str
    text: str


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that all faces of the monitor show."""

    #: Seconds since the epoch, by Redis's clock if it could be read.
    at: float
    #: Sentences, the worst first; empty when all is well.
    problems: tuple[str, ...]
    runs: tuple[RunView, ...]
    uploads: tuple[UploadQueueView, ...]
    processes: tuple[ProcessView, ...]
    spool: SpoolView | None
    store: str
    #: Why Redis could not be read; empty if it was. Also the first of the problems.
    redis_error: str = ""
    #: The same of the store; empty as well if none was given.
    store_error: str = ""
    #: What of Redis could not be read though the rest could, a sentence each; among the problems as well.
    unreadable: tuple[str, ...] = ()
    #: Exit code of a look that could not see everything: 75 if something is away, 2 if a person must change something.
    exit_code: int = 0
    answers: tuple[Answer, ...] = ()
    #: The run that the answers are about, if it is one; empty if there is none.
    main_run: str = ""
    #: "When will it be done?" of every run, in their order.
    when_done: tuple[Answer, ...] = ()
    #: Live settings that are set, as text, by name.
    live: dict[str, str] = {}
    #: How many more there are than are listed, in a view that was cut.
    more_processes: int = 0
    more_uploads: int = 0


def left_text(run: RunView) -> str:
    """The time left with its range; empty where nobody can say."""
    left, low, high = run.remaining_seconds, run.remaining_low_seconds, run.remaining_high_seconds
    if left is None or low is None or high is None:
        return ""
    return time_left_text(left, low, high)


def proof_note(run: RunView, snapshot: Snapshot) -> str:
    """What is known of the run's proof, in a few words; empty if nobody asked the store."""
    if run.proved:
        return "proved"
    if snapshot.store_error:
        return "whether it is proved is unknown"
    return "no proof in the store" if run.proved is False and run.state in ("complete", "proving") else ""


def unknown_note(snapshot: Snapshot) -> str:
    """What could not be seen, as a sentence; empty if everything was."""
    if snapshot.redis_error:
        return "Runs, queues and processes are unknown: Redis could not be read."
    return "Proofs are unknown: the store could not be read." if snapshot.store_error else ""
