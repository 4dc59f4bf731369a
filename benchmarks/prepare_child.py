"""The process in which `prepare` measures one thing: FOLDER prepare|ratio ROUNDS."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from common.settings.catalogue import DataSettings, PlanSettings
from producer.console import Console
from producer.prepare import Prepared, prepare
from producer.recipe import Recipe, make_recipe

_CHUNK = 512

#: Seconds on the clock, and of processors over this process and those that it started.
_Spent = tuple[float, float]


def main(arguments: list[str]) -> None:
    """Print one JSON object."""
    folder, what, rounds = Path(arguments[0]), arguments[1], int(arguments[2])
    # As the producer does: torch takes memory and seconds that nothing here needs.
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    sys.modules["torch"] = None  # type: ignore[assignment]
    data = DataSettings(data=str(folder / "data.jsonl"), model=str(folder / "model"))
    recipe = make_recipe(data, PlanSettings(), lambda line: None)
    result = _ratio(recipe, folder, rounds) if what == "ratio" else _prepare(recipe, folder)
    print(msgspec.json.encode(result).decode())


def _prepare(recipe: Recipe, folder: Path) -> dict[str, Any]:
    (seconds, _), prepared = _timed(recipe, folder)
    return {"seconds": seconds, "tokens": prepared.summary.tokens, "waste": prepared.plan.waste}


def _ratio(recipe: Recipe, folder: Path, rounds: int) -> dict[str, Any]:
    """Seconds of the bare tokenizer with all its threads over those of a preparation, in turn, by clock and processors."""
    template = recipe.template
    assert template is not None
    with Path(recipe.data.data).open(encoding="utf-8") as lines:
        texts = [template.render(json.loads(line)["messages"]) for line in lines]
    ratios, cpu_ratios = [], []
    for number in range(rounds):
        # The one that is first is the other one in the next round.
        first = _timed(recipe, folder)[0] if number % 2 else None
        bare = _bare(recipe, texts)
        whole = first or _timed(recipe, folder)[0]
        ratios.append(bare[0] / whole[0])
        cpu_ratios.append(bare[1] / whole[1])
    return {"ratios": ratios, "cpu_ratios": cpu_ratios}


def _timed(recipe: Recipe, folder: Path) -> tuple[_Spent, Prepared]:
    work = folder / "work"
    work.mkdir()
    begun = _now()
    prepared = prepare(recipe, work, Console(io.StringIO()))
    spent = _since(begun)
    shutil.rmtree(work)
    return spent, prepared


def _bare(recipe: Recipe, texts: list[str]) -> _Spent:
    core = recipe.tokenizer.core
    begun = _now()
    for start in range(0, len(texts), _CHUNK):
        core.encode_batch(texts[start : start + _CHUNK], add_special_tokens=False)
    return _since(begun)


def _now() -> _Spent:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return time.perf_counter(), sum(usage.ru_utime + usage.ru_stime for usage in used)


def _since(begun: _Spent) -> _Spent:
    now = _now()
    return now[0] - begun[0], now[1] - begun[1]
