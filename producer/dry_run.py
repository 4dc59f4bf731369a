"""`plan`: what a run would be, without making it; from data, or from a few numbers before there is any."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from common.settings.catalogue import DataSettings, ExtractSettings, ForecastSettings, PlanSettings
from common.settings.resolve import Resolved
from hiddenfeed.errors import ConfigError
from hiddenfeed.options import StoreOptions
from hiddenfeed.sizes import parse_size
from hiddenfeed.taps import parse_taps
from producer.bootstrap import open_console
from producer.forecast import Machines, load_of_numbers, load_of_plan, mean_tokens
from producer.forecast_lines import Kept, forecast_lines, plan_lines, size_lines
from producer.make import end_like_interrupt
from producer.model_facts import read_model_facts
from producer.prepare import survey
from producer.recipe import make_recipe
from producer.report import tally_lines

#: Of conversations as people have them; what a suspiciously small total is held against.
_USUAL_TOKENS = 500


@dataclass(frozen=True)
class Numbers:
    """What is known of a run before there is data; two of the first three at least."""

    samples: int | None
    mean_tokens: float | None
    total_bytes: int | None
    hidden_size: int
    blocks: int


def add_numbers(parser: argparse.ArgumentParser) -> None:
    """The flags of `plan` that are no settings."""
    parser.add_argument(
        "--dry-run", action="store_true", help="changes nothing: `plan` never stores anything"
    )
    section = parser.add_argument_group(
        "without data", "two of --samples, --mean-tokens and --total-bytes, in place of --data"
    )
    section.add_argument("--samples", metavar="N", type=int, help="number of conversations")
    section.add_argument("--mean-tokens", metavar="TOKENS", type=float, help="tokens of each, on average")
    section.add_argument("--total-bytes", metavar="BYTES", help="size of all batch files, e.g. 950GB")
    section.add_argument(
        "--hidden-size",
        metavar="H",
        type=int,
        default=5120,
        help="width of the model's states, if --model is not given (default %(default)s)",
    )
    section.add_argument(
        "--blocks",
        metavar="N",
        type=int,
        default=64,
        help="decoder blocks of the model, if --model is not given (default %(default)s)",
    )


def needs_data(parsed: argparse.Namespace) -> bool:
    """Whether --data and --model must be given."""
    return parsed.samples is None and parsed.mean_tokens is None and parsed.total_bytes is None


def plan(settings: Resolved, arguments: argparse.Namespace) -> int:
    """Print what the run would be; needs neither Redis nor a store, and writes nothing."""
    end_like_interrupt()
    lines = _of_data(settings) if needs_data(arguments) else _of_numbers(settings, _numbers(arguments))
    console = open_console(settings)
    for line in lines:
        console.result(line)
    return 0


def _of_data(settings: Resolved) -> list[str]:
    console = open_console(settings)
    recipe = make_recipe(
        settings.group(DataSettings), settings.group(PlanSettings), console.say, settings.group(StoreOptions)
    )
    plan, tally = survey(recipe, console)
    kept = Kept(len(recipe.taps.taps), recipe.model.hidden_size, recipe.data.dtype, recipe.data.final_state)
    load = load_of_plan(plan, recipe.bytes_per_token)
    return [
        *tally_lines(tally),
        *plan_lines(plan, recipe.plan.micro_batch_tokens),
        *size_lines(load, kept, settings.group(StoreOptions)),
        *forecast_lines(load, _machines(settings)),
    ]


def _of_numbers(settings: Resolved, numbers: Numbers) -> list[str]:
    kept = _kept(settings.group(DataSettings), numbers)
    samples, each = _samples_and_tokens(numbers, kept.bytes_per_token)
    lines = []
    if numbers.total_bytes is not None and numbers.samples is not None:
        implied = mean_tokens(numbers.total_bytes, numbers.samples, kept.bytes_per_token)
        lines.append(
            f"{numbers.total_bytes / 1e9:,.0f} GB over {numbers.samples:,} samples is {implied:,.1f} tokens each at {kept}"
        )
    target = settings.group(PlanSettings).target_file_bytes
    sizes = [each] if each >= _USUAL_TOKENS / 5 else [each, float(_USUAL_TOKENS)]
    for tokens in sizes:
        load = load_of_numbers(samples, max(samples, round(samples * tokens)), kept.bytes_per_token, target)
        if tokens != each:
            lines.append(f"conversations usually have hundreds of tokens; with {tokens:,.0f} each:")
        lines += [
            *size_lines(load, kept, settings.group(StoreOptions)),
            *forecast_lines(load, _machines(settings)),
        ]
    return lines


def _numbers(arguments: argparse.Namespace) -> Numbers:
    """The numbers checked; raises ConfigError."""
    try:
        total = None if arguments.total_bytes is None else parse_size(arguments.total_bytes)
    except ValueError:
        raise ConfigError(
            f"--total-bytes {arguments.total_bytes!r} cannot be used: it takes a size such as 950GB"
        ) from None
    numbers = Numbers(
        arguments.samples, arguments.mean_tokens, total, arguments.hidden_size, arguments.blocks
    )
    for name in ("samples", "mean_tokens", "total_bytes", "hidden_size", "blocks"):
        value = getattr(numbers, name)
        if value is not None and not 1 <= value < 1e18:
            raise ConfigError(f"--{name.replace('_', '-')} {value} cannot be used: it takes a number above 0")
    if (numbers.samples, numbers.mean_tokens, numbers.total_bytes).count(None) > 1:
        raise ConfigError(
            "a plan without data needs two of --samples, --mean-tokens and --total-bytes; with data, give --data and --model"
        )
    return numbers


def _samples_and_tokens(numbers: Numbers, per_token: int) -> tuple[int, float]:
    """How many samples, and tokens of each; what --mean-tokens says goes before what --total-bytes implies."""
    samples, each = numbers.samples, numbers.mean_tokens
    if samples is None:
        assert each is not None
        assert numbers.total_bytes is not None
        samples = max(1, round(numbers.total_bytes / (each * per_token)))
    if each is None:
        assert numbers.total_bytes is not None
        each = mean_tokens(numbers.total_bytes, samples, per_token)
    return samples, each


def _kept(data: DataSettings, numbers: Numbers) -> Kept:
    """What is kept of a token, of the model if one is given."""
    hidden, blocks = numbers.hidden_size, numbers.blocks
    if data.model:
        model = read_model_facts(data.model, data.model_revision)
        hidden, blocks = model.hidden_size, model.num_blocks
    return Kept(len(parse_taps(data.taps, blocks).taps), hidden, data.dtype, data.final_state)


def _machines(settings: Resolved) -> Machines:
    forecast = settings.group(ForecastSettings)
    return Machines(
        gpus=forecast.gpus,
        tokens_per_second=forecast.tokens_per_second,
        batches_in_flight=ExtractSettings().batches_in_flight,
        upload_bytes_per_second=forecast.upload_bandwidth_bytes or None,
    )
