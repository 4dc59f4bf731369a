"""A run whose Redis is killed, away or wiped ends as if nothing had happened, and no process has ended for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.faults.cases import in_cases, run_case
from tests.faults.conftest import Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@in_cases(
    ["Redis restarted", "Redis drops connections", "Redis clock jumps"],
    ["Redis away", "Redis standing still"],
    ["two producers at once", "Redis wiped", "Redis wiped, submit again"],
)
def test_redis_fails_and_nothing_is_lost(stage: Stage, names: Sequence[str]) -> None:
    run_case(stage, names)
