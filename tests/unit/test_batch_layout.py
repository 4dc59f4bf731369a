"""Layout and header of batch files, judged by safetensors itself."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hiddenfeed.batch_file import (
    BatchFacts,
    BatchLayout,
    bytes_per_token,
    decode_header,
    encode_header,
    tensor_arrays,
    whole_file_checksum,
)
from hiddenfeed.checksum import checksum_of
from hiddenfeed.dtypes import item_bytes, raw_dtype, to_float32
from hiddenfeed.errors import DataError

Arrays = dict[str, npt.NDArray[Any]]


@st.composite
def batch_facts(draw: st.DrawFn) -> BatchFacts:
    samples = draw(st.integers(1, 5))
    taps = draw(st.sets(st.integers(0, 80), min_size=1, max_size=6))
    return BatchFacts(
        run_id="run-0123456789ab",
        batch_id=draw(st.integers(0, 2_000_000)),
        model=draw(st.text(max_size=60)),
        model_revision=draw(st.none() | st.text(max_size=40)),
        taps=tuple(sorted(taps)),
        final_norm=draw(st.sampled_from(["none", "pre", "post"])),
        dtype=draw(st.sampled_from(["bfloat16", "float16", "float32"])),
        hidden_size=draw(st.integers(1, 9)),
        tokens=samples + draw(st.integers(0, 20)),
        samples=samples,
    )


def _facts(**changes: Any) -> BatchFacts:
    facts: dict[str, Any] = {
        "run_id": "run-0123456789ab",
        "batch_id": 7,
        "model": "example/tiny",
        "model_revision": None,
        "taps": (2, 15, 27),
        "final_norm": "none",
        "dtype": "bfloat16",
        "hidden_size": 16,
        "tokens": 10,
        "samples": 2,
    }
    return BatchFacts(**(facts | changes))


def _arrays(layout: BatchLayout, seed: int) -> Arrays:
    generator = np.random.default_rng(seed)
    arrays = {}
    for place in layout.tensors:
        data = generator.integers(0, 128, place.size_bytes, np.uint8).tobytes()
        arrays[place.name] = np.frombuffer(data, raw_dtype(place.dtype)).reshape(place.shape)
    return arrays


def _checksums(arrays: Arrays) -> dict[str, str]:
    return {name: checksum_of(array.tobytes()) for name, array in arrays.items()}


def _write_in_pieces(path: Path, layout: BatchLayout, arrays: Arrays, order: random.Random) -> None:
    """Row by row in any order, as the micro-batches of a batch come; the header last."""
    pieces = [
        (place.row_start(row), arrays[place.name][row].tobytes())
        for place in layout.tensors
        for row in range(place.shape[0])
    ]
    order.shuffle(pieces)
    with path.open("wb") as file:
        file.truncate(layout.file_size)
        for start, data in [*pieces, (0, encode_header(layout, _checksums(arrays), {"norm": "1.5"}))]:
            file.seek(start)
            file.write(data)


@settings(max_examples=60, deadline=None)
@given(batch_facts(), st.integers(0, 2**32 - 1))
def test_a_file_written_in_pieces_is_what_safetensors_reads(
    tmp_path_factory: pytest.TempPathFactory, facts: BatchFacts, seed: int
) -> None:
    layout = BatchLayout(facts)
    arrays = _arrays(layout, seed)
    path = tmp_path_factory.mktemp("batch") / "file.safetensors"
    _write_in_pieces(path, layout, arrays, random.Random(seed))
    data = path.read_bytes()
    assert len(data) == layout.file_size

    loaded = safetensors.torch.load_file(path)
    assert set(loaded) == set(arrays)
    for name, tensor in loaded.items():
        place = layout.tensor(name)
        assert tuple(tensor.shape) == place.shape
        assert str(tensor.dtype) == f"torch.{place.dtype}"
        assert tensor.contiguous().view(torch.uint8).numpy().tobytes() == arrays[name].tobytes()
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.metadata()["run_id"] == facts.run_id
        assert file.metadata()["guard.norm"] == "1.5"
        last = file.get_slice("hidden_states")[facts.tokens - 1 :]
        assert last.view(torch.uint8).numpy().tobytes() == arrays["hidden_states"][-1].tobytes()
    if facts.dtype != "bfloat16":
        for name, array in safetensors.numpy.load_file(path).items():
            assert array.dtype == arrays[name].dtype
            assert array.tobytes() == arrays[name].tobytes()

    header = decode_header(data, "file")
    assert header.layout == layout
    assert header.checksums == _checksums(arrays)
    assert header.guards == {"norm": "1.5"}
    ours = tensor_arrays(data, header.layout)
    assert all(np.array_equal(ours[name].view(np.uint8), arrays[name].view(np.uint8)) for name in arrays)
    raw_header = data[: layout.header_bytes]
    assert whole_file_checksum(raw_header, layout, header.checksums) == checksum_of(data)


def test_numpy_reads_the_integers_of_a_bfloat16_file(tmp_path: Path) -> None:
    layout = BatchLayout(_facts())
    arrays = _arrays(layout, 1)
    _write_in_pieces(tmp_path / "file", layout, arrays, random.Random(1))
    with safetensors.safe_open(tmp_path / "file", framework="np") as file:
        for name in ("offsets", "sample_index", "input_ids", "loss_mask"):
            assert np.array_equal(file.get_tensor(name), arrays[name])


@given(batch_facts())
def test_tensors_follow_each_other_aligned_from_a_page_on(facts: BatchFacts) -> None:
    layout = BatchLayout(facts)
    places = layout.tensors
    assert layout.header_bytes % 4096 == 0
    assert places[0].name == "hidden_states"
    assert places[0].start == layout.header_bytes
    for before, after in itertools.pairwise(places):
        assert after.start == before.end
    assert all(place.start % item_bytes(place.dtype) == 0 for place in places)
    final = layout.final_states
    assert (final is None) == (facts.final_norm == "none")
    assert final is None or final.start == places[0].end


@given(batch_facts(), st.integers(0, 40))
def test_the_header_always_fits_what_it_keeps_room_for(facts: BatchFacts, guard_length: int) -> None:
    layout = BatchLayout(facts)
    checksums = {place.name: "c" * 64 for place in layout.tensors}
    guards = {f"t{tap}": "9" * guard_length for tap in facts.taps}
    computed = {"device": "d" * 60, "attention": "a" * 40, "dtype": "bfloat16", "torch": "t" * 40}
    header = encode_header(layout, checksums, guards, computed)
    assert decode_header(header, "here").computed == computed
    assert len(header) == layout.header_bytes
    assert header == encode_header(
        layout,
        dict(reversed(checksums.items())),
        dict(reversed(guards.items())),
        dict(reversed(computed.items())),
    )
    assert decode_header(header, "here").guards == guards


def test_a_usual_header_takes_one_page_and_many_taps_take_more() -> None:
    assert BatchLayout(_facts()).header_bytes == 4096
    many = BatchLayout(_facts(taps=tuple(range(100))))
    assert many.header_bytes > 4096
    checksums = {place.name: "c" * 64 for place in many.tensors}
    assert decode_header(encode_header(many, checksums, {}), "here").layout == many


def test_a_header_that_does_not_fit_is_refused() -> None:
    layout = BatchLayout(_facts())
    checksums = {place.name: "crc32:AAAAAA==" for place in layout.tensors}
    with pytest.raises(DataError, match="guard statistics, or what is said of the device, are too long"):
        encode_header(layout, checksums, {"essay": "x" * 5000})
    with pytest.raises(DataError, match="checksums are for"):
        encode_header(layout, {}, {})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "float8"}, "cannot be stored as 'float8'"),
        ({"dtype": "int32"}, "cannot be stored as 'int32'"),
        ({"final_norm": "both"}, "final norm 'both'"),
        ({"taps": ()}, "strictly increasing"),
        ({"taps": (2, 1)}, "strictly increasing"),
        ({"taps": (1, 1)}, "strictly increasing"),
        ({"taps": (-1, 1)}, "strictly increasing"),
        ({"samples": 0}, "cannot be"),
        ({"samples": 11}, "cannot be"),
        ({"hidden_size": 0}, "cannot be"),
        ({"batch_id": -1}, "cannot be"),
        ({"tokens": 2**60}, "too large"),
    ],
)
def test_facts_that_cannot_be_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        BatchLayout(_facts(**changes))


@given(batch_facts())
def test_bytes_per_token_is_what_one_more_token_costs(facts: BatchFacts) -> None:
    wide = BatchLayout(
        BatchFacts(**{name: getattr(facts, name) for name in facts.__struct_fields__} | {"tokens": 8008})
    )
    wider = BatchLayout(
        BatchFacts(**{name: getattr(facts, name) for name in facts.__struct_fields__} | {"tokens": 8016})
    )
    each = bytes_per_token(
        taps=len(facts.taps),
        hidden_size=facts.hidden_size,
        dtype=facts.dtype,
        final=facts.final_norm != "none",
    )
    assert wider.file_size - wide.file_size == 8 * each


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_float32_is_what_torch_makes_of_the_same_bits(dtype: str) -> None:
    every = np.arange(2**16, dtype=np.uint16)
    raw = every.astype(np.uint32).view(np.float32) if dtype == "float32" else every.view(raw_dtype(dtype))
    expected = (
        torch.from_numpy(raw.view(np.uint8).copy()).view(getattr(torch, dtype)).to(torch.float32).numpy()
    )
    found = to_float32(raw, dtype)
    assert found.dtype == np.float32
    assert np.array_equal(found, expected, equal_nan=True)
    with pytest.raises(DataError, match="are not hidden states"):
        to_float32(raw.astype(np.float64), dtype)
