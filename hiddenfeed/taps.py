"""Which states to keep: every way of naming layers, turned into the one convention used inside.

Tap t is the residual stream after t decoder blocks: 0 = embeddings, n = after the last of n blocks
and before the final norm. Other systems number the same states otherwise; here is the only place
that knows how.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hiddenfeed.draft_config import draft_layers
from hiddenfeed.errors import ConfigError
from hiddenfeed.words import count_text, nearest_text

DFLASH_DEFAULT_TAPS = 5
_NUMBER = re.compile(r"-?\d{1,9}")


@dataclass(frozen=True)
class Taps:
    """What a specification means for one model."""

    #: Strictly increasing, each 0..n.
    taps: tuple[int, ...]
    #: One sentence for people, with the ids that other systems use for the same states.
    meaning: str


@dataclass(frozen=True)
class _Convention:
    """How a system numbers states: tap = id + shift, ids from `first` to n + `last_offset`."""

    what: str
    shift: int
    first: int
    last_offset: int

    def last(self, num_blocks: int) -> int:
        return num_blocks + self.last_offset


_CONVENTIONS = {
    "": _Convention("tap", 0, 0, 0),
    "blocks": _Convention("block id", 1, 0, -1),
    "vllm": _Convention("vLLM id", 0, 0, 0),
    "hf": _Convention("transformers hidden_states index", 0, 0, -1),
}


def parse_taps(spec: str, num_blocks: int) -> Taps:
    """The taps that `spec` names in a model of `num_blocks` decoder blocks.

    `0,15,30` canonical taps · `blocks:L,…` outputs of blocks (SGLang, DFlash, ModelOpt on transformers) ·
    `vllm:L,…` vLLM's and speculators' ids · `hf:t,…` indices into transformers' hidden_states ·
    `eagle3` · `dflash` or `dflash:K` · `draft:PATH`, a draft model's folder or config.json.
    Raises ConfigError with the valid range; the order in `spec` does not matter, repetition is refused.
    """
    if num_blocks < 1:
        raise ConfigError(f"a model of {num_blocks} decoder blocks has no taps")
    name, colon, rest = spec.strip().partition(":")
    name, rest = name.strip().lower(), rest.strip()
    if not colon and name in _PRESETS:
        return _PRESETS[name](spec, "", num_blocks)
    if name == "draft" and colon:
        return _from_draft(spec, rest, num_blocks)
    if name == "dflash" and colon:
        return _dflash(spec, rest, num_blocks)
    if colon and name in _CONVENTIONS and name:
        return _from_ids(spec, _ids(spec, rest), name, num_blocks)
    if not colon and re.match(r"[-\d\s,]", name):
        return _from_ids(spec, _ids(spec, name), "", num_blocks)
    raise ConfigError(
        f"taps {spec!r} are not understood: give numbers like 0,15,30, or blocks:…, vllm:…, hf:…, "
        f"eagle3, dflash, dflash:K or draft:PATH{nearest_text(name, _WORDS)}"
    )


def describe(taps: Sequence[int], num_blocks: int) -> str:
    """What these taps are, with the ids that other systems use for them."""
    parts = [f"states after {_listed(taps)} of {count_text(num_blocks, 'block')}, in this order"]
    if 0 in taps:
        parts.append("0 = the embeddings")
    if num_blocks in taps:
        parts.append(f"{num_blocks} = after the last block, before the final norm")
    blocks = ["embeddings" if tap == 0 else str(tap - 1) for tap in taps]
    raw = [str(tap) for tap in taps if tap < num_blocks]
    transformers = f"hidden_states[{', '.join(raw)}]" if raw else "no entry"
    if num_blocks in taps:
        transformers += " (its last entry is after the final norm, another state)"
    parts.append(
        f"in vLLM ids {_listed(taps)}, as block outputs {_listed(blocks)}, in transformers {transformers}"
    )
    return "; ".join(parts)


def _ids(spec: str, text: str) -> list[int]:
    """The numbers in `text`; raises ConfigError for ranges, empty places and what is no number."""
    ids = []
    for word in (part.strip() for part in text.split(",")):
        if not _NUMBER.fullmatch(word):
            hint = "; write out every number of a range" if re.search(r"\d\s*(-|\.\.|:)\s*\d", word) else ""
            raise ConfigError(f"taps {spec!r}: {word!r} is not a number{hint}")
        ids.append(int(word))
    return ids


def _from_ids(spec: str, ids: Sequence[int], convention_name: str, num_blocks: int) -> Taps:
    convention = _CONVENTIONS[convention_name]
    for number in ids:
        if convention_name == "hf" and number == num_blocks:
            raise ConfigError(
                f"taps {spec!r}: transformers' hidden_states[{number}] of this model is after the final norm, all "
                f"others are before it; tap {number} is the state before it, and final_state=post keeps the one after"
            )
        if not convention.first <= number <= convention.last(num_blocks):
            raise ConfigError(
                f"taps {spec!r}: {number} is not a {convention.what} of a model with {count_text(num_blocks, 'block')}; "
                f"{_ranges(num_blocks)}"
            )
    return _distinct(spec, [number + convention.shift for number in ids], num_blocks)


def _distinct(spec: str, taps: Sequence[int], num_blocks: int, reason: str = "") -> Taps:
    repeated = sorted({tap for tap in taps if list(taps).count(tap) > 1})
    if repeated:
        why = reason or f"; {_ranges(num_blocks)}"
        raise ConfigError(f"taps {spec!r} name tap {_listed(repeated)} more than once{why}")
    ordered = tuple(sorted(taps))
    return Taps(ordered, describe(ordered, num_blocks))


def _eagle3(spec: str, _rest: str, num_blocks: int) -> Taps:
    if num_blocks < 5:
        raise ConfigError(
            f"taps {spec!r} need 5 blocks or more, and the model has {num_blocks}; name taps one by one"
        )
    taps = [2, num_blocks // 2, num_blocks - 3]
    return _distinct(
        spec, taps, num_blocks, f": {num_blocks} blocks are too few for it; name taps one by one"
    )


def _dflash(spec: str, rest: str, num_blocks: int) -> Taps:
    if rest and not (re.fullmatch(r"\d{1,4}", rest) and int(rest) > 0):
        raise ConfigError(
            f"taps {spec!r}: {rest!r} is not a number of taps; write dflash:{DFLASH_DEFAULT_TAPS}"
        )
    count = int(rest) if rest else DFLASH_DEFAULT_TAPS
    if count == 1:
        blocks = [num_blocks // 2]
    elif num_blocks < 5:
        raise ConfigError(
            f"taps {spec!r} need 5 blocks or more, and the model has {num_blocks}; name taps one by one"
        )
    else:
        # The published formula, with Python's rounding of halves to even: other rounding, other taps.
        blocks = [round(1 + place * (num_blocks - 4) / (count - 1)) for place in range(count)]
    reason = f": {num_blocks} blocks are too few for {count} of them; name taps one by one"
    return _distinct(spec, [block + 1 for block in blocks], num_blocks, reason)


def _from_draft(spec: str, path: str, num_blocks: int) -> Taps:
    draft = draft_layers(Path(path))
    if draft.target_blocks is not None and draft.target_blocks != num_blocks:
        raise ConfigError(
            f"taps {spec!r}: the draft was made for a model of {count_text(draft.target_blocks, 'block')}, this one has {num_blocks}"
        )
    taps = [number + draft.shift for number in draft.ids]
    wrong = [number for number, tap in zip(draft.ids, taps, strict=True) if not 0 <= tap <= num_blocks]
    if wrong:
        raise ConfigError(
            f"taps {spec!r}: {draft.field} names layer {_listed(wrong)}, which a model of {count_text(num_blocks, 'block')} has not; "
            f"{_ranges(num_blocks)}"
        )
    found = _distinct(spec, taps, num_blocks)
    return Taps(
        found.taps,
        f"{found.meaning}; from {draft.field} of the draft, {_listed(draft.ids)}, read as {draft.reading}",
    )


_PRESETS: dict[str, Callable[[str, str, int], Taps]] = {"eagle3": _eagle3, "dflash": _dflash}


#: Every word that a specification may begin with.
_WORDS = (*_PRESETS, *filter(None, _CONVENTIONS), "draft")


def _ranges(num_blocks: int) -> str:
    last = num_blocks - 1
    return (
        f"taps are 0..{num_blocks} (states after that many blocks), which is blocks:0..{last} for taps 1..{num_blocks}, "
        f"vllm:0..{num_blocks}, hf:0..{last}"
    )


def _listed(items: Sequence[object]) -> str:
    return ", ".join(map(str, items))
