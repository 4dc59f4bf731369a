"""Where each byte of a batch file lies, and the header that says so: pure functions of the batch's facts.

A batch file is one safetensors file. Its data starts at a multiple of 4096 bytes and its tensors
lie one behind the other in this order, states first, so that all sizes and offsets are known before
the first forward pass and every micro-batch can be written straight to its place:

    hidden_states        [T, K, H]  tokens of a sample are neighbours; taps in increasing order
    final_hidden_states  [T, H]     only if the run keeps a final state
    alignment            [1..7]     zeros, only if the states do not end at a multiple of 8 bytes
    offsets              [S + 1]    int64, first token of each sample, and T
    sample_index         [S]        int64, row of the sample in the input
    input_ids            [T]        int32
    loss_mask            [T]        uint8, 1 = a token the model is trained to predict

`encode_header` always gives exactly `layout.header_bytes` bytes, so the header can be written last,
when the checksums are known.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec

from hiddenfeed.checksum import checksum_of, combine, parse
from hiddenfeed.dtypes import STATE_DTYPES, item_bytes, safetensors_code
from hiddenfeed.errors import DataError
from hiddenfeed.run import FORMAT_VERSION, RunDocument
from hiddenfeed.words import count_text

FORMAT = "hiddenfeed-batch"
#: Data starts at a multiple of this: a page, and a block of every disk.
HEADER_STEP_BYTES = 4096
#: No header is larger; the length field of a hostile file could say anything.
MAX_HEADER_BYTES = 1024 * 1024
#: Room kept for one checksum in text form.
CHECKSUM_CHARACTERS = 64
#: Room kept for all guard statistics of a batch, names and punctuation included.
GUARD_BYTES, GUARD_BYTES_PER_TAP = 1024, 48
#: The same for what the states were computed with.
COMPUTED_BYTES = 512

#: No tensor of an honest file is larger; keeps offsets far inside 64 bits.
_MAX_TENSOR_BYTES = 2**53
#: What a safetensors file starts with: bytes of the JSON that follows.
LENGTH_FIELD = struct.Struct("<Q")
_FINAL_NORMS = ("none", "pre", "post")


class SetAside(msgspec.Struct, frozen=True, array_like=True):
    """A sample of the plan that the batch file does not hold, and why."""

    #: Row of the sample in the input.
    source_row: int
    reason: str


class BatchFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that decides a batch file's layout and header, checksums and guard statistics apart."""

    run_id: str
    batch_id: int
    #: As in the run's identity: hub id or `weights:<hash>`, never a path.
    model: str
    model_revision: str | None
    #: Canonical and strictly increasing.
    taps: tuple[int, ...]
    #: `none`: no final state is stored; `pre`, `post`: on which side of the final norm it was taken.
    final_norm: str
    #: Dtype of the states: `bfloat16`, `float16` or `float32`.
    dtype: str
    hidden_size: int
    #: Real tokens of the file; padding is never stored.
    tokens: int
    samples: int
    #: Samples of the batch that could not be extracted and are in neither `tokens` nor `samples`.
    set_aside: tuple[SetAside, ...] = ()

    @classmethod
    def of_run(
        cls,
        document: RunDocument,
        batch_id: int,
        *,
        tokens: int,
        samples: int,
        set_aside: tuple[SetAside, ...] = (),
    ) -> BatchFacts:
        """The facts of one batch of a run; `tokens` and `samples` are those that its file holds."""
        identity = document.identity
        return cls(
            run_id=document.run_id,
            batch_id=batch_id,
            model=identity.model,
            model_revision=identity.model_revision,
            taps=identity.taps,
            final_norm=identity.final_state,
            dtype=identity.dtype,
            hidden_size=document.hidden_size,
            tokens=tokens,
            samples=samples,
            set_aside=set_aside,
        )


def bytes_per_token(*, taps: int, hidden_size: int, dtype: str, final: bool) -> int:
    """Bytes one token takes in a batch file: states, final state, id and mask."""
    return (taps + int(final)) * hidden_size * item_bytes(dtype) + item_bytes("int32") + item_bytes("uint8")


@dataclass(frozen=True)
class TensorPlace:
    """One tensor of a batch file. `start` counts from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * item_bytes(self.dtype)

    @property
    def row_bytes(self) -> int:
        """Bytes of one entry of the first dimension."""
        return math.prod(self.shape[1:]) * item_bytes(self.dtype)

    @property
    def end(self) -> int:
        """First byte behind the tensor."""
        return self.start + self.size_bytes

    def row_start(self, row: int) -> int:
        """File offset of entry `row` of the first dimension."""
        return self.start + row * self.row_bytes


@dataclass(frozen=True)
class BatchLayout:
    """Where everything of one batch file lies. Raises DataError for facts no file can have."""

    facts: BatchFacts
    #: Bytes before the data; made from the facts unless a file at hand says otherwise.
    header_bytes: int = 0

    def __post_init__(self) -> None:
        _check_facts(self.facts)
        if not self.header_bytes:
            object.__setattr__(self, "header_bytes", _header_bytes_for(self.facts))

    @cached_property
    def tensors(self) -> tuple[TensorPlace, ...]:
        """All tensors in file order, without holes."""
        places: list[TensorPlace] = []
        start = self.header_bytes
        for name, dtype, shape in _tensor_shapes(self.facts):
            place = TensorPlace(name, dtype, shape, start)
            places.append(place)
            start = place.end
        return tuple(places)

    @property
    def file_size(self) -> int:
        """Bytes of the whole file."""
        return self.tensors[-1].end

    def tensor(self, name: str) -> TensorPlace:
        """The place of the tensor `name`; raises KeyError if the file has none of that name."""
        for place in self.tensors:
            if place.name == name:
                return place
        raise KeyError(name)

    @property
    def states(self) -> TensorPlace:
        """Place of `hidden_states`; a token's states are its row."""
        return self.tensors[0]

    @property
    def final_states(self) -> TensorPlace | None:
        """Place of `final_hidden_states`, if the run keeps them."""
        return None if self.facts.final_norm == "none" else self.tensor("final_hidden_states")


def encode_header(
    layout: BatchLayout,
    checksums: Mapping[str, str],
    guards: Mapping[str, str],
    computed: Mapping[str, str] | None = None,
) -> bytes:
    """Exactly `layout.header_bytes` bytes: length, JSON, spaces; `computed` is what the states were computed with.

    Equal arguments give equal bytes. Raises DataError if a tensor has no checksum, a checksum names
    no tensor, or checksums, guard statistics and `computed` do not fit the room kept for them.
    """
    names = [place.name for place in layout.tensors]
    if set(names) != set(checksums):
        raise DataError(f"checksums are for {sorted(checksums)}, but the file's tensors are {sorted(names)}")
    text = _header_json(layout, checksums, guards, computed or {})
    room = layout.header_bytes - LENGTH_FIELD.size
    if len(text) > room:
        raise DataError(
            f"header of batch {layout.facts.batch_id} needs {len(text)} bytes and has {room}: "
            "the guard statistics, or what is said of the device, are too long"
        )
    return LENGTH_FIELD.pack(room) + text.ljust(room, b" ")


def whole_file_checksum(header: bytes, layout: BatchLayout, checksums: Mapping[str, str]) -> str:
    """`algorithm:base64` of the file, from its header and its tensors' checksums, without reading it.

    Raises DataError if the checksums are of different algorithms.
    """
    algorithm, _ = parse(checksums["hidden_states"])
    pieces = [(checksums[place.name], place.size_bytes) for place in layout.tensors]
    return combine([(checksum_of(header, algorithm), len(header)), *pieces])


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor in a safetensors header; offsets count from the start of the data."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def tensor_entries(layout: BatchLayout) -> dict[str, TensorEntry]:
    """The file's tensors as its header lists them, in file order."""
    origin = layout.header_bytes
    return {
        place.name: TensorEntry(
            safetensors_code(place.dtype), place.shape, (place.start - origin, place.end - origin)
        )
        for place in layout.tensors
    }


def _tensor_shapes(facts: BatchFacts) -> list[tuple[str, str, tuple[int, ...]]]:
    """(name, dtype, shape) in file order. Wide integers come before narrow ones: all stay aligned."""
    tokens, samples, hidden = facts.tokens, facts.samples, facts.hidden_size
    shapes: list[tuple[str, str, tuple[int, ...]]] = [
        ("hidden_states", facts.dtype, (tokens, len(facts.taps), hidden))
    ]
    if facts.final_norm != "none":
        shapes.append(("final_hidden_states", facts.dtype, (tokens, hidden)))
    state_bytes = sum(math.prod(shape) for _, _, shape in shapes) * item_bytes(facts.dtype)
    if state_bytes % 8:
        # Only for hidden sizes no real model has; torch refuses to view int64 at an odd place.
        shapes.append(("alignment", "uint8", (-state_bytes % 8,)))
    return [
        *shapes,
        ("offsets", "int64", (samples + 1,)),
        ("sample_index", "int64", (samples,)),
        ("input_ids", "int32", (tokens,)),
        ("loss_mask", "uint8", (tokens,)),
    ]


def _check_facts(facts: BatchFacts) -> None:
    if facts.dtype not in STATE_DTYPES:
        raise DataError(f"states cannot be stored as {facts.dtype!r}, only as {', '.join(STATE_DTYPES)}")
    if facts.final_norm not in _FINAL_NORMS:
        raise DataError(f"final norm {facts.final_norm!r} is not one of {', '.join(_FINAL_NORMS)}")
    if not facts.taps or facts.taps[0] < 0 or list(facts.taps) != sorted(set(facts.taps)):
        raise DataError(f"taps {list(facts.taps)} are not strictly increasing numbers from 0")
    if facts.batch_id < 0 or facts.hidden_size < 1 or not 1 <= facts.samples <= facts.tokens:
        raise DataError(
            f"a batch {facts.batch_id} of {count_text(facts.samples, 'sample')}, {count_text(facts.tokens, 'token')} "
            f"and hidden size {facts.hidden_size} cannot be"
        )
    if facts.tokens * (len(facts.taps) + 1) * facts.hidden_size * 4 > _MAX_TENSOR_BYTES:
        raise DataError(f"a batch of {facts.tokens} tokens and hidden size {facts.hidden_size} is too large")


def _header_bytes_for(facts: BatchFacts) -> int:
    """The smallest step that holds the header whatever the checksums and guard statistics are."""
    # Offsets are written relative to the data, so the header's own size does not change its text.
    draft = BatchLayout(facts, header_bytes=HEADER_STEP_BYTES)
    filler = {place.name: "x" * CHECKSUM_CHARACTERS for place in draft.tensors}
    text = len(_header_json(draft, filler, {}, {}))
    needed = LENGTH_FIELD.size + text + COMPUTED_BYTES + GUARD_BYTES + GUARD_BYTES_PER_TAP * len(facts.taps)
    size = -(-needed // HEADER_STEP_BYTES) * HEADER_STEP_BYTES
    if size > MAX_HEADER_BYTES:
        raise DataError(f"the header of a batch with {len(facts.taps)} taps would need {size} bytes")
    return size


def _header_json(
    layout: BatchLayout, checksums: Mapping[str, str], guards: Mapping[str, str], computed: Mapping[str, str]
) -> bytes:
    facts = layout.facts
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "run_id": facts.run_id,
        "batch_id": str(facts.batch_id),
        "model": facts.model,
        **({} if facts.model_revision is None else {"model_revision": facts.model_revision}),
        "taps": ",".join(map(str, facts.taps)),
        "final_norm": facts.final_norm,
        "dtype": facts.dtype,
        **({"set_aside": msgspec.json.encode(facts.set_aside).decode()} if facts.set_aside else {}),
        **{f"checksum.{place.name}": checksums[place.name] for place in layout.tensors},
        **{f"computed.{name}": computed[name] for name in sorted(computed)},
        **{f"guard.{name}": guards[name] for name in sorted(guards)},
    }
    return msgspec.json.encode({"__metadata__": metadata, **tensor_entries(layout)})
