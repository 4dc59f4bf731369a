"""Everything a preparation starts from, found and checked before the first row is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from common.hub import hub_or_cache, local_folder
from common.settings.catalogue import DataSettings, PlanSettings
from common.settings.combinations import check_lengths, check_names
from hiddenfeed.batch_layout import bytes_per_token
from hiddenfeed.errors import ConfigError
from hiddenfeed.layout import MAX_NAME_CHARACTERS
from hiddenfeed.options import StoreOptions
from hiddenfeed.taps import Taps, parse_taps
from hiddenfeed.words import count_text
from producer.chat_template import ChatTemplate
from producer.columns import Columns, choose_columns
from producer.crew import SampleParts
from producer.duplicates import Duplicates
from producer.model_facts import ModelFacts, read_model_facts
from producer.plan import PlanLimits, batch_tokens
from producer.sources import DataFile, FileState, find_files
from producer.tokenizer import Tokenizer, load_tokenizer

#: Says one line to the person who waits.
Say = Callable[[str], None]

_DATA_SUFFIXES = r"(\.(jsonl|ndjson|json|parquet|arrow))?(\.(gz|zst|bz2|xz))?$"


@dataclass(frozen=True)
class Recipe:
    """Inputs and settings of one preparation; nothing has been read of the data yet."""

    data: DataSettings
    plan: PlanSettings
    files: Sequence[DataFile]
    #: What each file was like before anything was read of it.
    file_states: Sequence[FileState]
    #: What makes a row of them a sample.
    columns: Columns
    model: ModelFacts
    taps: Taps
    tokenizer: Tokenizer
    #: None for a model without one, which is an error once a conversation is met.
    template: ChatTemplate | None
    #: The template that marks what is to be predicted, where one was given for that alone.
    marking: ChatTemplate | None = None

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
        data = re.sub(_DATA_SUFFIXES, "", self._data_name, flags=re.IGNORECASE)
        slug = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{model}-{data}").strip("-_")
        return slug[:MAX_NAME_CHARACTERS].strip("-_") or "run"

    @property
    def _data_name(self) -> str:
        """What the data is called: the file or folder that was named, the first file of a pattern."""
        named = self.data.data.rstrip("/").rpartition("/")[2]
        one = named not in ("", "-", ".", "..") and not re.search(r"[*?\[]", named)
        return named if one else Path(self.files[0].name).name

    def check_unchanged(self) -> None:
        """Raises ConfigError if a data file is not what it was when the recipe was made."""
        if [file.state() for file in self.files] != self.file_states:
            raise ConfigError(f"{self.data.data} was changed while it was read; start again when it is whole")

    @property
    def sample_parts(self) -> SampleParts:
        """What samples are made with, in any process."""
        return SampleParts(
            columns=self.columns,
            tokenizer=self.tokenizer,
            template=self.template.text if self.template is not None else None,
            marking=self.marking.text if self.marking is not None else None,
            vocab_size=self.model.vocab_size,
            settings=self.data,
        )

    def duplicates(self) -> Duplicates:
        """What has been seen of a preparation's samples: nothing yet."""
        return Duplicates(by_content=self.data.duplicates == "drop")


def make_recipe(
    data: DataSettings, plan: PlanSettings, say: Say, options: StoreOptions | None = None
) -> Recipe:
    """Find the files, the model, its tokenizer, the template and the taps; `options` reach data in S3.

    Raises ConfigError with one sentence for whatever is not there or does not fit, TransientError
    when the hub is away.
    """
    check_names(data)
    check_lengths(data)
    columns = choose_columns(data.data_format, data.columns)
    files = find_files(data.data, options, say)
    if local_folder(data.model) is None:
        say(f"looking for model {data.model} in the local cache and on the hub")
    with hub_or_cache("model", data.model, say):
        model = read_model_facts(data.model, data.model_revision)
        data = _within_positions(data, model, say)
        taps = parse_taps(data.taps, model.num_blocks)
        tokenizer, own_template = load_tokenizer(model)
    template = _template(data, tokenizer, own_template)
    marking = _marking(data, tokenizer)
    pinned = f" at {model.revision[:12]}" if model.revision else ""
    say(f"model {data.model}{pinned}: {count_text(model.num_blocks, 'block')} of width {model.hidden_size}")
    say(f"taps {data.taps}: {taps.meaning}")
    return Recipe(
        data,
        plan,
        files,
        [file.state() for file in files],
        columns,
        model,
        taps,
        tokenizer,
        template,
        marking,
    )


def _within_positions(data: DataSettings, model: ModelFacts, say: Say) -> DataSettings:
    """The settings with no sample longer than the model has positions, said aloud where that changes them."""
    if model.max_positions is None or data.max_length <= model.max_positions:
        return data
    say(
        f"--max-length {data.max_length:,} is lowered to {model.max_positions:,}, which is all the positions that the "
        "model has"
    )
    if data.min_length > model.max_positions:
        raise ConfigError(
            f"--min-length {data.min_length} is above the model's {model.max_positions} positions"
        )
    return msgspec.structs.replace(data, max_length=model.max_positions)


def _template(
    data: DataSettings, tokenizer: Tokenizer, own_template: Callable[[], str | None]
) -> ChatTemplate | None:
    """The template of the file that was given, else the tokenizer's own."""
    if data.chat_template is not None:
        return _template_file("--chat-template ", data.chat_template, tokenizer)
    own = own_template()
    return ChatTemplate(own, tokenizer.special_tokens, "the model's chat template") if own else None


def _marking(data: DataSettings, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The template of `--loss-mask template:FILE`."""
    _, found, name = data.loss_mask.partition("template:")
    if not found:
        return None
    marking = _template_file("--loss-mask template:", name, tokenizer)
    if not marking.marks_generation:
        raise ConfigError(f"--loss-mask template:{name} marks nothing with {{% generation %}}")
    return marking


def _template_file(flag: str, name: str, tokenizer: Tokenizer) -> ChatTemplate:
    path = Path(name).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{flag}{path} cannot be read: {error}") from None
    return ChatTemplate(text, tokenizer.special_tokens, f"{flag}{path}")
