"""The end report: its numbers, and a page that needs nothing and takes no text for markup."""

from __future__ import annotations

from html.parser import HTMLParser

import msgspec

from producer.end_report import EndReport
from producer.end_report_page import render_report
from tests.end_reports import example_report, report_of


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.outside += [name for name, _ in attrs if name in ("src", "href", "onclick")]


def test_numbers_of_the_report() -> None:
    report = example_report()
    assert report.seconds == 104
    assert [worker.batches for worker in report.workers] == [50, 50]
    assert report.spread is not None
    assert report.spread.slowest == report.spread.fastest
    assert report.upload_lag is not None
    # A batch every ten seconds, 5 to 17 files waiting.
    assert (report.upload_lag.mean_files, report.upload_lag.most_files, report.upload_lag.mean_seconds) == (
        11,
        17,
        110,
    )
    assert len(report.rates) == 12
    assert report.costs[0].device == "cuda"
    assert "files" not in report.proof
    assert msgspec.json.decode(msgspec.json.encode(report), type=EndReport) == report


def test_page_stands_alone() -> None:
    page = render_report(example_report())
    tags = _Tags()
    tags.feed(page)
    assert "script" not in tags.tags
    assert tags.outside == []
    assert tags.tags.count("svg") == 3
    assert "Proved complete: 12 input rows = 9 stored + 2 skipped + 1 quarantined" in page
    assert "<code>python -m hiddenfeed verify s3://b/p/demo-0123456789ab</code>" in page
    assert "3 batch files, 1,000 tokens" in page
    assert "norms of tokens, without the first of each sample, and zeros" in page
    assert page.count("&lt;script&gt;") == 4
    assert '<th scope="col">device</th><th scope="col">dtype</th><th scope="col">torch</th>' in page
    assert "<td>a CPU, 2 threads</td><td>float32</td><td></td><td>1</td>" in page
    assert "The workers of this run were not alike" in page
    assert "<li>3 samples set aside: values that are not finite</li>" in page
    assert "<td>tap 18</td><td>61.5 in batch 3</td><td>1234 in batch 9</td><td>0.00% in batch 0</td>" in page


def test_without_redis_the_proof_still_stands() -> None:
    report = report_of(None, rates=(), upload_lag=None)
    assert report.seconds is None
    assert "Proved complete" in render_report(report)
    assert "no batch has been checked yet" in render_report(report)
    assert "too short for a curve" in render_report(report)
