"""Which run it is: everything that changes an output byte, hashed, and what differs on a resume."""

from __future__ import annotations

import hashlib
from pathlib import Path

from common.weights import DIGEST_BYTES, files_hash, weights_identity
from hiddenfeed.errors import ConfigError
from hiddenfeed.layout import check_run_id
from hiddenfeed.run import InputFile, RunDocument, RunIdentity, fingerprint, identity_differences
from producer.columns import canonical_columns
from producer.recipe import Recipe
from producer.sources.files import hash_data

#: Counted up whenever the same row would become another sample, or be kept where it was skipped or the other way
#: round: a half-made run is not gone on with in another way than it was begun.
PREPARATION = 3

#: Files that decide how a tokenizer cuts text, over all kinds of tokenizers.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)


def identify(recipe: Recipe) -> RunIdentity:
    """The identity of the run that a recipe makes; reads the data and a folder's weights whole.

    Raises ConfigError for a file that cannot be read and for a folder without weights.
    """
    model, data, plan = recipe.model, recipe.data, recipe.plan
    digests = hash_data(recipe.files)
    recipe.check_unchanged()
    return RunIdentity(
        data=tuple(
            InputFile(name=file.name, size_bytes=size, blake2b=digest)
            for file, (size, _), digest in zip(recipe.files, recipe.file_states, digests, strict=True)
        ),
        model=weights_identity(model.folder) if model.folder else model.name,
        model_revision=model.revision,
        tokenizer=files_hash(_tokenizer_files(recipe)),
        chat_template=_text_hash(recipe.template.text) if recipe.template else "none",
        loss_mask=f"template:{_text_hash(recipe.marking.text)}" if recipe.marking else data.loss_mask,
        max_length=data.max_length,
        overlength=data.overlength,
        min_length=data.min_length,
        min_loss_tokens=data.min_loss_tokens,
        duplicates=data.duplicates,
        data_format=data.data_format,
        columns=canonical_columns(data.columns),
        preparation=PREPARATION,
        taps=recipe.taps.taps,
        final_state=data.final_state,
        dtype=data.dtype,
        micro_batch_tokens=plan.micro_batch_tokens,
        target_file_bytes=plan.target_file_bytes,
        seed=plan.seed,
    )


def run_id_of(recipe: Recipe, identity: RunIdentity) -> str:
    """`<name>-<fingerprint>`"""
    return check_run_id(f"{recipe.name}-{fingerprint(identity)}")


def refuse_differences(stored: RunDocument, identity: RunIdentity) -> None:
    """Raises ConfigError naming everything in which a resume differs from the run, from what to what."""
    differences = identity_differences(stored.identity, identity)
    if differences:
        # What was prepared is in the store whole, and goes on without being prepared again.
        as_it_is = (
            f", or finish it as it was prepared with `python -m producer wait {stored.run_id}`"
            if stored.identity.preparation != identity.preparation
            else ""
        )
        raise ConfigError(
            f"run {stored.run_id} cannot be resumed, because its results would differ: {'; '.join(differences)}; "
            f"give the same data and settings, or leave out --run-id to start a new run{as_it_is}"
        )


def _tokenizer_files(recipe: Recipe) -> list[Path]:
    """The tokenizer's files in the model's folder, or in the hub's local cache."""
    model = recipe.model
    if model.folder:
        found = [model.folder / name for name in _TOKENIZER_FILES if (model.folder / name).is_file()]
    else:
        from huggingface_hub import try_to_load_from_cache  # only models of the hub need it

        cached = (
            try_to_load_from_cache(model.name, name, revision=model.revision) for name in _TOKENIZER_FILES
        )
        found = [Path(path) for path in cached if isinstance(path, str)]
    if not found:
        raise ConfigError(
            f"the tokenizer of model {model.name} has none of the files that tokenizers are made of"
        )
    return found


def _text_hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8"), digest_size=DIGEST_BYTES).hexdigest()
