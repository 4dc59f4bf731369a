"""A prepared run into the store: tokens.parquet, skipped.parquet, and last of all run.json.

A run exists once its run.json does. Two producers that prepare the same run at once write the same
bytes; whichever run.json comes first is the run's.
"""

from __future__ import annotations

import importlib.metadata
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from hiddenfeed.checksum import file_checksum
from hiddenfeed.errors import PermanentError
from hiddenfeed.inventory import load_document
from hiddenfeed.layout import run_document_key, skipped_key, tokens_key
from hiddenfeed.run import RunDocument, RunIdentity, StoredFile, fingerprint
from hiddenfeed.store import PutOutcome, Store
from producer.prepare import Prepared
from producer.recipe import Recipe

_PROGRAMS = ("hiddenfeed", "transformers", "tokenizers", "jinja2", "pyarrow", "numpy")


def find_run(store: Store, run_id: str) -> RunDocument | None:
    """The run's document, None if there is no such run yet; raises DataError if it cannot be read."""
    if store.head(run_document_key(run_id)) is None:
        return None
    return load_document(store, run_id)


def publish(
    store: Store, run_id: str, recipe: Recipe, identity: RunIdentity, prepared: Prepared
) -> RunDocument:
    """Store the run and return its document, which is another producer's if that was faster.

    Raises TransientError when the store is away; what was stored by then is found again next time.
    """
    tokens = _put(store, tokens_key(run_id), prepared.tokens_path)
    skipped = _put(store, skipped_key(run_id), prepared.skipped_path)
    document = RunDocument(
        run_id=run_id,
        fingerprint=fingerprint(identity),
        identity=identity,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        model=recipe.model.name,
        hidden_size=recipe.model.hidden_size,
        num_blocks=recipe.model.num_blocks,
        taps_spec=recipe.data.taps,
        taps_meaning=recipe.taps.meaning,
        plan=prepared.summary,
        tokens=tokens,
        skipped=skipped,
        versions=program_versions(),
        settings=_settings(recipe),
    )
    data = msgspec.json.format(msgspec.json.encode(document), indent=1)
    outcome = store.write(run_document_key(run_id), data, if_absent=True)
    return document if outcome is PutOutcome.STORED else load_document(store, run_id)


def program_versions() -> dict[str, str]:
    """Versions of what decides the bytes of a plan."""
    versions = {"python": platform.python_version()}
    for name in _PROGRAMS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            # A checkout on PYTHONPATH has no metadata of its own.
            versions[name] = "unknown"
    return versions


def _put(store: Store, key: str, path: Path) -> StoredFile:
    size_bytes, checksum = path.stat().st_size, file_checksum(path)
    if store.put_file(key, path, size_bytes=size_bytes, checksum=checksum) is PutOutcome.OTHER_WINS:
        raise PermanentError(
            f"{store.url} holds another {key}, left by a preparation that other versions of the libraries made and "
            "never finished; delete it and start again"
        )
    return StoredFile(key=key, size_bytes=size_bytes, checksum=checksum)


def _settings(recipe: Recipe) -> dict[str, Any]:
    groups = (recipe.data, recipe.plan)
    return {name: value for group in groups for name, value in msgspec.to_builtins(group).items()}
