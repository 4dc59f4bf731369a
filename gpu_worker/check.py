"""`python -m gpu_worker check`: stored samples against an independent forward pass of the whole model.

Each sample is computed alone, in an untruncated model, through transformers' own
`output_hidden_states=True`: nothing of how the run was extracted is used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from common.checks import state_names
from common.cli import Command
from common.settings.catalogue import ExtractSettings, LogSettings, StoreSettings
from common.settings.resolve import Resolved
from gpu_worker.agreement import FIT_TOKENS, Agreement, Floats, Tolerance, compare, tolerance_for
from gpu_worker.bootstrap import use_device
from gpu_worker.engine import check_weights, engine_key
from gpu_worker.model import dtype_name, load_pretrained
from gpu_worker.reference import Reference
from gpu_worker.selftest import must_run
from gpu_worker.structure import dissect, text_config
from gpu_worker.taps import Selection, is_mixture
from hiddenfeed.dtypes import STATE_DTYPES
from hiddenfeed.errors import ConfigError, DataError
from hiddenfeed.options import StoreOptions
from hiddenfeed.reader import RunReader, Sample, open_run
from hiddenfeed.words import count_text

GROUPS = (StoreSettings, StoreOptions, ExtractSettings, LogSettings)
DEFAULT_SAMPLES = 3

#: Is told what is being done.
Say = Callable[[str], None]


class StateCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One state over all samples checked."""

    #: `tap 15` or `the final state`.
    state: str
    #: Of the worst sample: cosine and |a - b| / |b|, of its mean token (median with experts).
    cosine: float
    relative_error: float
    ok: bool


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `check` found."""

    ok: bool
    run_id: str
    model: str
    device: str
    #: Dtype of the reference's forward pass, and the one states are stored in.
    compute_dtype: str
    dtype: str
    #: Ids of the samples checked, and their tokens.
    samples: list[str]
    tokens: int
    states: list[StateCheck]
    cosine_at_least: float
    relative_error_at_most: float


def command() -> Command:
    """`python -m gpu_worker check`"""

    def body(settings: Resolved, arguments: argparse.Namespace) -> int:
        report = check(settings, arguments.samples, _say)
        for line in describe(report):
            print(line)
        print(msgspec.json.encode(report).decode())
        return 0 if report.ok else 1

    made = Command(
        "python -m gpu_worker check",
        "Recompute stored samples alone, with the whole model, and compare. The last line is one JSON object.",
        GROUPS,
        body,
        epilog="example:\n  python -m gpu_worker check --store s3://bucket/runs --run my-run-0123456789ab --samples 5",
    )
    made.parser.add_argument(
        "--samples",
        type=_positive,
        default=DEFAULT_SAMPLES,
        metavar="N",
        help="samples to check (default %(default)s)",
    )
    return made


def check(settings: Resolved, samples: int, say: Say = lambda _: None) -> CheckReport:
    """Check `samples` stored samples of the run `--run`, spread over what is stored; `say` is told how far it is.

    Raises ConfigError without `--run` or if the model cannot be loaded, and DataError if there is no
    such run or nothing is stored of it yet.
    """
    extract = settings.group(ExtractSettings)
    if extract.run is None:
        raise ConfigError("--run must be given: which run to check")
    device = use_device(extract)
    reader = open_run(settings.group(StoreSettings).store, extract.run, settings.group(StoreOptions))
    if not len(reader):
        raise DataError(f"run {extract.run} has no stored sample to check yet")
    key = engine_key(reader.document, extract, device)
    say(f"loading {key.source}")
    check_weights(key)
    model = load_pretrained(key.source)
    positions = spread(reader.index["length"].to_numpy(), samples)
    return check_samples(reader, [reader.read(position) for position in positions], model, say)


def spread(lengths: npt.NDArray[np.int64], samples: int) -> list[int]:
    """Places of up to `samples` of N >= 1 samples, `lengths` int64[N] in tokens, evenly over those of `FIT_TOKENS` or more,
    if there are any.
    """
    fit = np.flatnonzero(lengths >= FIT_TOKENS)
    among = fit if len(fit) else np.arange(len(lengths))
    return [
        int(among[place])
        for place in np.linspace(0, len(among) - 1, min(samples, len(among))).round().astype(int)
    ]


def check_samples(
    reader: RunReader, samples: Sequence[Sample], model: nn.Module, say: Say = lambda _: None
) -> CheckReport:
    """Compare these samples of a run with what `model`, whole, gives for each of them alone."""
    parts = dissect(model)
    reference = Reference(model, parts)
    compute_dtype = dtype_name(parts.dtype)
    identity = reader.document.identity
    selection = Selection(identity.taps, identity.final_state)
    # What was computed in fewer bits than this reference agrees with it to no more than these.
    computed = [found for sample in samples if (found := sample.computed.get("dtype")) in STATE_DTYPES]
    tolerance = tolerance_for(
        [identity.dtype, compute_dtype, *computed], median=is_mixture(text_config(model))
    )
    pairs = []
    for number, sample in enumerate(samples, start=1):
        say(f"sample {number} of {len(samples)}, {count_text(len(sample), 'token')}")
        with must_run(reader.document.model):
            states = reference.states(_ids(sample), selection)
        pairs.append((_stored(sample), states.cpu().numpy()))
    if tolerance.median:
        # A token that went to other experts weighs much in a short sample, so all are taken together.
        pairs = [
            (np.concatenate([ours for ours, _ in pairs]), np.concatenate([theirs for _, theirs in pairs]))
        ]
    agreements = [compare(ours, theirs, median=tolerance.median) for ours, theirs in pairs]
    checked = _states(state_names(identity.taps, identity.final_state), agreements, tolerance)
    return CheckReport(
        ok=all(state.ok for state in checked),
        run_id=reader.run_id,
        model=reader.document.model,
        device=str(parts.device),
        compute_dtype=compute_dtype,
        dtype=identity.dtype,
        samples=[sample.sample_id for sample in samples],
        tokens=sum(len(sample) for sample in samples),
        states=checked,
        cosine_at_least=tolerance.cosine,
        relative_error_at_most=tolerance.error,
    )


def describe(report: CheckReport) -> list[str]:
    """The report for people."""
    lines = [
        f"{count_text(len(report.samples), 'sample')}, {count_text(report.tokens, 'token')} of {report.run_id}, each recomputed alone by the whole "
        f"{report.model} in {report.compute_dtype} on {report.device}:"
    ]
    for state in report.states:
        mark = "ok" if state.ok else "DIFFERS"
        lines.append(
            f"  {state.state:16} cosine {state.cosine:.6f}   relative error {state.relative_error:.2e}   {mark}"
        )
    return lines


def _states(names: Sequence[str], agreements: Sequence[Agreement], tolerance: Tolerance) -> list[StateCheck]:
    cosines = np.array([agreement.cosines for agreement in agreements]).min(axis=0)
    errors = np.array([agreement.errors for agreement in agreements]).max(axis=0)
    return [
        StateCheck(
            state=name,
            cosine=float(cosine),
            relative_error=float(error),
            ok=bool(cosine >= tolerance.cosine and error <= tolerance.error),
        )
        for name, cosine, error in zip(names, cosines, errors, strict=True)
    ]


def _ids(sample: Sample) -> torch.Tensor:
    """int64 [1, n]"""
    return torch.from_numpy(sample.input_ids.astype(np.int64))[None]


def _stored(sample: Sample) -> Floats:
    """float32 [n, K', H]"""
    states = sample.float32()
    if sample.raw_final is None:
        return states
    return np.concatenate([states, sample.final_float32()[:, None]], axis=1)


def _say(what: str) -> None:
    """For people and for whoever runs this command: the result alone is on stdout."""
    print(f"check: {what}", file=sys.stderr, flush=True)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number
