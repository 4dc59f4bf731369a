"""Everything a preparation starts from, found and checked before the first row is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.hub import local_folder
from common.settings.catalogue import DataSettings, PlanSettings
from hiddenfeed.batch_layout import bytes_per_token
from hiddenfeed.errors import ConfigError
from hiddenfeed.layout import check_run_id
from hiddenfeed.taps import Taps, parse_taps
from producer.chat_template import ChatTemplate
from producer.loss_spans import LossSpans
from producer.model_facts import ModelFacts, read_model_facts
from producer.plan import PlanLimits, batch_tokens
from producer.samples import SampleMaker
from producer.sources import find_files
from producer.tokenizer import Tokenizer, load_tokenizer

#: Says one line to the person who waits.
Say = Callable[[str], None]

FileState = tuple[int, int]

_NAME_CHARACTERS = 60


@dataclass(frozen=True)
class Recipe:
    """Inputs and settings of one preparation; nothing has been read of the data yet."""

    data: DataSettings
    plan: PlanSettings
    files: Sequence[Path]
    #: (size in bytes, time of the last change) of each file before anything was read of it.
    file_states: Sequence[FileState]
    model: ModelFacts
    taps: Taps
    tokenizer: Tokenizer
    #: None for a model without one, which is an error once a conversation is met.
    template: ChatTemplate | None

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in a batch file."""
        return bytes_per_token(
            taps=len(self.taps.taps),
            hidden_size=self.model.hidden_size,
            dtype=self.data.dtype,
            final=self.data.final_state != "none",
        )

    @property
    def limits(self) -> PlanLimits:
        """What the plan depends on."""
        return PlanLimits(
            micro_batch_tokens=self.plan.micro_batch_tokens,
            batch_tokens=batch_tokens(self.plan.target_file_bytes, self.bytes_per_token),
            hidden_size=self.model.hidden_size,
            seed=self.plan.seed,
        )

    @property
    def name(self) -> str:
        """Start of the run's id: as given, or made from model and data."""
        if self.data.name is not None:
            return self.data.name
        model = Path(self.model.name).name
        data = self.files[0].name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")
        slug = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{model}-{data}").strip("-_")
        return slug[:_NAME_CHARACTERS].strip("-_") or "run"

    def check_unchanged(self) -> None:
        """Raises ConfigError if a data file is not what it was when the recipe was made."""
        if states_of(self.files) != self.file_states:
            raise ConfigError(f"{self.data.data} was changed while it was read; start again when it is whole")

    def sample_maker(self) -> SampleMaker:
        """A fresh maker of samples; it remembers the ids of one preparation."""
        spans = None
        if self.template is not None:
            spans = LossSpans(
                self.template, self.tokenizer.turn_tokens(self.template.text), self.data.loss_mask
            )
        return SampleMaker(self.tokenizer, spans, self.model.vocab_size, self.data)


def make_recipe(data: DataSettings, plan: PlanSettings, say: Say) -> Recipe:
    """Find the files, the model, its tokenizer, the template and the taps.

    Raises ConfigError with one sentence for whatever is not there or does not fit, TransientError
    when the hub is away.
    """
    if data.name is not None:
        _check_name(data.name)
    if data.min_length > data.max_length:
        raise ConfigError(f"--min-length {data.min_length} is above --max-length {data.max_length}")
    files = find_files(data.data)
    if local_folder(data.model) is None:
        say(f"looking for model {data.model} in the local cache and on the hub")
    model = read_model_facts(data.model, data.model_revision)
    taps = parse_taps(data.taps, model.num_blocks)
    tokenizer = load_tokenizer(model)
    template = _template(data, tokenizer)
    pinned = f" at {model.revision[:12]}" if model.revision else ""
    say(f"model {data.model}{pinned}: {model.num_blocks} blocks of width {model.hidden_size}")
    say(f"taps {data.taps}: {taps.meaning}")
    return Recipe(data, plan, files, states_of(files), model, taps, tokenizer, template)


def states_of(files: Sequence[Path]) -> list[FileState]:
    """Size and time of the last change of each file; raises ConfigError if one is gone."""
    try:
        return [(stat.st_size, stat.st_mtime_ns) for stat in (file.stat() for file in files)]
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from None


def _template(data: DataSettings, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The template of the file that was given, else the tokenizer's own."""
    if data.chat_template is not None:
        path = Path(data.chat_template).expanduser()
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--chat-template {path} cannot be read: {error}") from None
        return ChatTemplate(text, tokenizer.special_tokens, f"--chat-template {path}")
    own = tokenizer.chat_template()
    return ChatTemplate(own, tokenizer.special_tokens, "the model's chat template") if own else None


def _check_name(name: str) -> None:
    if not re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{_NAME_CHARACTERS - 1}}}", name):
        raise ConfigError(
            f"--name {name!r} is not allowed: letters, digits, '-' and '_' only, at most {_NAME_CHARACTERS}"
        )
    check_run_id(name)
