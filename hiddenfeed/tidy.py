"""What lies among a run's batches and does not belong there, and taking it away.

A proof refuses such a run, rightly, whoever put it there. Looked at is only what lies under `batches/` and
`quarantine/`: names that the plan has not, and objects that are not what the plan says. Nothing that a proof
rests on can be among them, and a batch whose object is taken away is extracted again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from hiddenfeed.errors import DataError
from hiddenfeed.evidence import file_evidence, note_evidence
from hiddenfeed.inventory import load_document, place_of
from hiddenfeed.layout import batches_prefix, check_key, quarantine_prefix
from hiddenfeed.parallel import map_bounded
from hiddenfeed.plan_file import PlanFile
from hiddenfeed.run import RunDocument
from hiddenfeed.store.base import ObjectInfo, Store
from hiddenfeed.verify import read_batch

#: Called with (what is looked at, how many are done, how many there are).
Progress = Callable[[str, int, int], None]


class Stray(msgspec.Struct, frozen=True, kw_only=True):
    """One object that does not belong."""

    key: str
    size_bytes: int
    #: Why, as a sentence that names the key.
    reason: str
    #: The batch that is extracted again without it; None if it stands in for none.
    batch_id: int | None = None
    #: False for a name that we do not touch, because none of ours could look like that.
    removable: bool = True


def find_strays(
    store: Store, run_id: str, *, deep: bool = False, progress: Progress | None = None
) -> list[Stray]:
    """Everything among the run's batches that a proof would refuse, by key; changes nothing.

    With `deep` every byte of the batch files is read. Raises DataError if there is no such run or its plan
    cannot be read, for then nothing can be said of its batches.
    """
    document = load_document(store, run_id)
    plan = PlanFile(store, run_id)
    found: list[Stray] = []
    files: dict[int, ObjectInfo] = {}
    notes: dict[int, ObjectInfo] = {}
    for prefix, known in ((batches_prefix(run_id), files), (quarantine_prefix(run_id), notes)):
        for info in store.list(prefix):
            try:
                known[place_of(store, document, info.key)] = info
            except DataError as error:
                found.append(_stray(info, error, removable=_is_key(info.key)))
    # A note beside a file says nothing.
    alone = {batch: info for batch, info in notes.items() if batch not in files}
    looks = [(batch, info, True) for batch, info in files.items()]
    looks += [(batch, info, False) for batch, info in alone.items()]
    results = map_bounded(lambda look: _judge(store, document, plan, *look, deep), looks)
    for done, stray in enumerate(results, 1):
        found += [stray] if stray else []
        if progress:
            progress("objects", done, len(looks))
    return sorted(found, key=lambda stray: stray.key)


def remove(store: Store, strays: Sequence[Stray]) -> Iterator[Stray]:
    """Delete those that may be; yields each when it is gone."""
    for stray in strays:
        if stray.removable:
            store.delete(stray.key)
            yield stray


def _judge(
    store: Store,
    document: RunDocument,
    plan: PlanFile,
    batch_id: int,
    info: ObjectInfo,
    is_file: bool,
    deep: bool,
) -> Stray | None:
    planned = plan.batch(batch_id)
    try:
        evidence = (file_evidence if is_file else note_evidence)(store, document, planned, info)
        if deep and is_file:
            read_batch(store, plan, evidence)
    except DataError as error:
        return _stray(info, error, batch_id=batch_id)
    return None


def _stray(
    info: ObjectInfo, error: DataError, *, batch_id: int | None = None, removable: bool = True
) -> Stray:
    return Stray(
        key=info.key, size_bytes=info.size_bytes, reason=str(error), batch_id=batch_id, removable=removable
    )


def _is_key(key: str) -> bool:
    try:
        check_key(key)
    except DataError:
        return False
    return True
