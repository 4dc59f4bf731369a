"""report.html: the end report as one page that needs no other file, no script and no network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from html import escape

from common.check_words import STATE_HEAD, STATES_TITLE, state_row
from common.history import Rates
from hiddenfeed.words import count_text, duration_text, size_rate_text, size_text
from producer.end_report import EndReport

#: What is said first of how states were computed.
_HOW = ("device", "dtype", "attention", "quantization", "compiled", "torch", "transformers")
_MIXED = "The workers of this run were not alike: states of different lines differ in their last bits."
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 900, 220, 90, 24
_LIGHT = "--ground: #fff; --text: #171b21; --line: #d5dbe2; --muted: #525c69; --blue: #1a5fb4; --orange: #a84c00; --good: #176b36; --good-ground: #e5f4ea;"
_DARK = "--ground: #12151a; --text: #e7ebf0; --line: #3a424d; --muted: #a9b3c0; --blue: #7fb4ff; --orange: #ffb26b; --good: #7bd69a; --good-ground: #15301f;"
_STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} font: 15px/1.5 system-ui, sans-serif; }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
body {{ max-width: 64rem; margin: 1.5rem auto; padding: 0 1rem; background: var(--ground); color: var(--text); font-variant-numeric: tabular-nums; }}
h1 {{ font-size: 1.3rem; margin: 0; overflow-wrap: anywhere; }} h2 {{ font-size: 1.05rem; margin: 1.8rem 0 .4rem; }} p {{ margin: .3rem 0; }}
.proved {{ border-left: .35rem solid var(--good); background: var(--good-ground); border-radius: .3rem; padding: .6rem 1rem; margin: 1rem 0; }}
.proved .sum {{ color: var(--good); font-size: 1.15rem; font-weight: 650; margin: 0; }}
.proved ul {{ margin: .3rem 0 0; padding-left: 1.1rem; }} li {{ overflow-wrap: anywhere; }} li::first-letter, .note::first-letter {{ text-transform: uppercase; }}
code {{ font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }}
dl {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: .5rem 1.2rem; }}
dt, .muted {{ color: var(--muted); font-size: .85rem; }} dd {{ margin: 0; font-weight: 600; overflow-wrap: anywhere; }}
.wide {{ overflow-x: auto; }} table {{ border-collapse: collapse; }}
th, td {{ padding: .2rem 1rem .2rem 0; text-align: right; vertical-align: top; white-space: nowrap; border-bottom: 1px solid var(--line); }}
th {{ color: var(--muted); font-weight: 600; }}
th:first-child, td:first-child, .words td, .words th {{ text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 8rem; }}
svg {{ width: 100%; min-width: 40rem; height: auto; display: block; }} svg text {{ fill: var(--muted); font-size: 13px; }}
.grid {{ stroke: var(--line); }} .a {{ stroke: var(--blue); }} .b {{ stroke: var(--orange); stroke-dasharray: 6 4; }}
.a, .b {{ fill: none; stroke-width: 2; }} .ka {{ color: var(--blue); }} .kb {{ color: var(--orange); }}
@media print {{
  @page {{ margin: 14mm; }}
  :root {{ color-scheme: light; font-size: 10pt; }} body {{ max-width: none; margin: 0; padding: 0; }}
  .wide {{ overflow: visible; }} table {{ width: 100%; font-size: 8pt; }} th, td {{ white-space: normal; padding-right: .5rem; }}
  h2 {{ break-after: avoid; }} svg, tr, .proved, dl div {{ break-inside: avoid; }} svg {{ min-width: 0; max-height: 45mm; }} th:first-child, td:first-child {{ min-width: 0; }}
}}
"""

Series = tuple[str, Callable[[Rates], float | None]]


def render_report(report: EndReport) -> str:
    """The page; every text is escaped."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.run_id)}: how it went</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>{escape(report.run_id)}</h1>{''.join(_parts(report))}</main></body></html>\n"
    )


def _parts(report: EndReport) -> Iterable[str]:
    yield f'<p class="muted">How the run went, with the model {escape(report.model)}</p>'
    yield _proof(report)
    yield _numbers(report)
    yield "<h2>Extraction and upload over time</h2>"
    yield _chart(
        report.rates,
        ("extracted", lambda each: each.extract_bytes_per_second),
        ("stored", lambda each: each.upload_bytes_per_second),
        size_rate_text,
    )
    yield "<h2>Files waiting for upload</h2>"
    yield _chart(
        report.rates, ("files", lambda each: float(each.backlog)), None, lambda value: f"{value or 0:,.0f}"
    )
    if any(each.spool_bytes is not None for each in report.rates):
        yield "<h2>Spool</h2>"
        yield _chart(
            report.rates, ("used", lambda each: each.spool_bytes), ("cap", lambda each: each.spool_cap_bytes),
            lambda value: size_text(value or 0),
        )  # fmt: skip
    yield from _checks(report)
    yield from _tables(report)


def _proof(report: EndReport) -> str:
    """What was proved, what that means, and how anybody can prove it again."""
    proof = report.proof
    url = f"{report.store.rstrip('/')}/{report.run_id}"
    meaning = [
        "Each input row is in exactly one of the three, and none is missing: that was computed from the files in the store, "
        "not from what anybody counted on the way.",
        f"{count_text(proof['batches'], 'batch file')}, {count_text(proof['tokens'], 'token')}, {size_text(proof['size_bytes'])}, "
        f"in {escape(report.store)}; complete.json names every file of the run with its size and checksum.",
        f"To prove it again: <code>python -m hiddenfeed verify {escape(url)}</code>, and with <code>--deep</code> every byte is read.",
    ]
    if proof["quarantined"]:
        meaning.insert(1, "Why samples were quarantined stands below, and of each in quarantine.parquet.")
    if proof["skipped"]:
        meaning.insert(1, "Why rows were skipped stands below, and of each row in skipped.parquet.")
    items = "".join(f"<li>{each}</li>" for each in meaning)
    return (
        f'<section class="proved" aria-label="Completeness"><p class="sum">Proved complete: '
        f"{count_text(proof['rows'], 'input row')} = {proof['stored']:,} stored + {proof['skipped']:,} skipped + "
        f"{proof['quarantined']:,} quarantined</p><ul>{items}</ul></section>"
    )


def _numbers(report: EndReport) -> str:
    lag, spread = report.upload_lag, report.spread
    rows = [
        ("From the first batch to the last", duration_text(report.seconds)),
        ("Began", _clock(report.first_batch_at)),
        ("Ended", _clock(report.last_batch_at)),
        ("Tokens per second", _number(report.tokens_per_second)),
        ("Samples per second", _number(report.samples_per_second)),
        ("Stored per second", size_rate_text(report.stored_bytes_per_second)),
        (
            "Padding",
            f"{report.padding_planned:.2%} planned, {_percent(report.padding_seen)} seen by the devices",
        ),
        ("Model", report.model),
        ("Taps", f"{', '.join(map(str, report.taps))}, as {report.dtype}"),
    ]
    if spread:
        rows.append(
            (
                "Workers, tokens per second",
                f"{spread.slowest:,.0f} to {spread.fastest:,.0f}, median {spread.median:,.0f}",
            )
        )
    if lag:
        rows.append(
            (
                "Upload lag",
                f"{lag.mean_files:,.1f} files on average, {lag.most_files:,} at most, {duration_text(lag.mean_seconds)} each",
            )
        )
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in rows)
    return f"<dl>{items}</dl>"


def _checks(report: EndReport) -> Iterable[str]:
    items = "".join(f"<li>{escape(finding.text)}</li>" for finding in report.findings)
    yield f"<h2>Checks</h2><ul>{items}</ul>"
    if report.checks.states:
        yield _table(
            "Norms and zeros",
            STATE_HEAD,
            map(state_row, report.checks.states),
            STATES_TITLE.removesuffix(" so far"),
        )


def _tables(report: EndReport) -> Iterable[str]:
    if report.workers:
        yield _table("GPU workers", ("worker", "device", "batches", "samples", "tokens", "tokens/s", "busy", "padding", "read", "forward", "stall", "write"),
            [
                (
                    each.worker, ", ".join(filter(None, (each.device, each.kind))), f"{each.batches:,}", f"{each.samples:,}", f"{each.tokens:,}",
                    _number(each.tokens_per_second), _percent(each.busy), f"{each.padding:.1%}",
                    *(duration_text(each.seconds[stage]) for stage in ("read", "forward", "stall", "write")),
                )
                for each in report.workers
            ],
        )  # fmt: skip
    if report.uploaders:
        yield _table("Uploaders", ("uploader", "files", "size", "rate", "each file", "duplicates"),
            [
                (
                    each.uploader, f"{each.files:,}", size_text(each.size_bytes), size_rate_text(each.bytes_per_second),
                    size_rate_text(each.transfer_bytes_per_second), f"{each.duplicates:,}",
                )
                for each in report.uploaders
            ],
        )  # fmt: skip
    for title, reasons in (("Skipped rows", report.skipped), ("Quarantined samples", report.quarantined)):
        if reasons:
            yield _table(title, ("reason", "how many"), [(why, f"{many:,}") for why, many in reasons.items()])
    if report.costs:
        yield _table(
            "What a batch cost",
            ("device", "batches", "seconds per 1,000 tokens", "per million squared lengths", "spread"),
            [
                (each.device, f"{each.batches:,}", f"{each.a:.4g}", f"{each.b:.4g}", f"{each.spread:.1%}")
                for each in report.costs
            ],
        )
    if ways := report.computed:
        names = sorted(
            {name for way in ways for name in way.how},
            key=lambda name: (_HOW.index(name) if name in _HOW else len(_HOW), name),
        )
        rows = [(*(way.how.get(name, "") for name in names), f"{way.batches:,}") for way in ways]
        yield _table("Computed with", (*names, "batches"), rows, _MIXED if len(ways) > 1 else "", "words")
    yield _table("Versions", ("program", "version"), sorted(report.versions.items()), kind="words")
    settings = [(name, _setting(value)) for name, value in sorted(report.settings.items())]
    yield _table("Settings", ("setting", "value"), settings, "those that decide what is stored", kind="words")


def _chart(
    rates: Sequence[Rates], first: Series, second: Series | None, say: Callable[[float | None], str]
) -> str:
    """Lines over time in SVG, with its numbers in words for those who do not see it."""
    if len(rates) < 2:
        return '<p class="muted">The run was too short for a curve, or nobody watched it.</p>'
    lines = [(kind, *series) for kind, series in (("a", first), ("b", second)) if series]
    values = [value for _, _, take in lines for each in rates if (value := take(each)) is not None]
    top = max([*values, 1.0])
    begin, end = rates[0].at, rates[-1].at

    def place(at: float, value: float) -> str:
        x = _LEFT + (at - begin) / (end - begin) * (_WIDTH - _LEFT - 10)
        return f"{x:.1f} {_HEIGHT - _BOTTOM - value / top * (_HEIGHT - _BOTTOM - 14):.1f}"

    parts = []
    for share in (0, 0.5, 1):
        y = place(begin, top * share).split()[1]
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y}" y2="{y}"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{float(y) + 4}" text-anchor="end">{escape(say(top * share))}</text>'
        )
    for at, anchor in ((begin, "start"), (end, "end")):
        x = place(at, 0).split()[0]
        parts.append(f'<text x="{x}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{_clock(at)}</text>')
    for kind, _, take in lines:
        path = "L".join(place(each.at, value) for each in rates if (value := take(each)) is not None)
        parts.append(f'<path class="{kind}" d="M{path}"/>')
    said = "; ".join(
        f"{name}: highest {say(max((take(each) or 0) for each in rates))}" for _, name, take in lines
    )
    names = " and ".join(name for _, name, _ in lines)
    keys = " ".join(
        f'<span class="k{kind}">{"━" if kind == "a" else "╍"} {name}</span>' for kind, name, _ in lines
    )
    return (
        f'<p class="muted">{keys}</p><div class="wide" role="region" tabindex="0" aria-label="chart of {names}">'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(said)}">{"".join(parts)}</svg></div>'
    )


def _table(
    title: str, head: Sequence[str], rows: Iterable[Sequence[str]], note: str = "", kind: str = "numbers"
) -> str:
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    # What scrolls sideways on a narrow window must be reachable by keyboard, and have a name then.
    scrolled = f'<div class="wide" role="region" tabindex="0" aria-label="{title}">'
    said = f'<p class="muted note">{note}</p>' if note else ""
    table = f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return f"<h2>{title}</h2>{said}{scrolled}{table}</div>"


def _setting(value: object) -> str:
    return (
        "not set" if value is None else ("yes" if value else "no") if isinstance(value, bool) else str(value)
    )


def _clock(at: float | None) -> str:
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
