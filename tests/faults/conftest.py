"""A site for the fault runs: one per test process, made anew after a test that failed on it; and a server that fails on cue."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.faults.aftermath import Reference
from tests.faults.fault_site import Site, open_site
from tests.faults.scripted_s3 import ScriptedS3
from tests.faults.trial import make_reference

_failed = pytest.StashKey[bool]()


@dataclass(frozen=True)
class Stage:
    """A site on which a run was made that nothing disturbed."""

    site: Site
    reference: Reference


class _Stages:
    """Hands out a stage, and another one when the last was spoilt."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._stage: Stage | None = None

    def take(self) -> Stage:
        if self._stage is None:
            site = self._opened.enter_context(open_site())
            self._stage = Stage(site, make_reference(site))
        return self._stage

    def drop(self) -> None:
        self._stage = None
        self._opened.close()


@pytest.fixture(scope="session")
def stages() -> Iterator[_Stages]:
    """The stages of this test process."""
    stages = _Stages()
    yield stages
    stages.drop()


@pytest.fixture
def stage(stages: _Stages, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A site with its reference; a test that fails leaves it to nobody."""
    yield stages.take()
    if request.node.stash.get(_failed, True):
        stages.drop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note how a test's own part ended, for the fixture that comes after it."""
    report = yield
    if call.when == "call":
        item.stash[_failed] = not report.passed
    return report


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedS3]:
    """A scripted S3 server, with keys for it in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with ScriptedS3() as started:
        yield started
