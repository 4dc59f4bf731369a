"""The process in which `prepare` measures one thing: `python -m benchmarks.prepare_child FOLDER prepare|ratio ROUNDS`."""

from __future__ import annotations

import io
import json
import os
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
    seconds, prepared = _timed(recipe, folder)
    return {"seconds": seconds, "tokens": prepared.summary.tokens, "waste": prepared.plan.waste}


def _ratio(recipe: Recipe, folder: Path, rounds: int) -> dict[str, Any]:
    """Rows per second of a preparation over those of the bare tokenizer with all its threads, in turn."""
    template = recipe.template
    assert template is not None
    with Path(recipe.data.data).open(encoding="utf-8") as lines:
        texts = [template.render(json.loads(line)["messages"]) for line in lines]
    ratios = []
    for number in range(rounds):
        first = _timed(recipe, folder)[0] if number % 2 else None
        bare = _bare(recipe, texts)
        ratios.append(bare / (first or _timed(recipe, folder)[0]))
    return {"ratios": ratios}


def _timed(recipe: Recipe, folder: Path) -> tuple[float, Prepared]:
    work = folder / "work"
    work.mkdir()
    begun = time.perf_counter()
    prepared = prepare(recipe, work, Console(io.StringIO()))
    seconds = time.perf_counter() - begun
    shutil.rmtree(work)
    return seconds, prepared


def _bare(recipe: Recipe, texts: list[str]) -> float:
    core = recipe.tokenizer.core
    begun = time.perf_counter()
    for start in range(0, len(texts), _CHUNK):
        core.encode_batch(texts[start : start + _CHUNK], add_special_tokens=False)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main(sys.argv[1:])
