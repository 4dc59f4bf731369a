"""When files go to the store, and when one of them tries for all."""

from __future__ import annotations

from uploader.circuit import FAILURES_OF_AN_OUTAGE, LONGEST_PAUSE_SECONDS, Circuit, Pass


class Clock:
    """Goes on when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def broken(clock: Clock) -> Circuit:
    """A circuit that has seen an outage begin."""
    circuit = Circuit(clock)
    news = [circuit.failed(circuit.enter(), "refused") for _ in range(FAILURES_OF_AN_OUTAGE)]
    assert news == [False] * (FAILURES_OF_AN_OUTAGE - 1) + [True]
    return circuit


def test_failures_between_successes_are_no_outage() -> None:
    circuit = Circuit(Clock())
    for _ in range(10):
        for _ in range(FAILURES_OF_AN_OUTAGE - 1):
            assert not circuit.failed(circuit.enter(), "refused")
        assert not circuit.succeeded()
    assert circuit.why_not() is None
    assert circuit.enter() is Pass.FREE


def test_in_an_outage_nobody_goes_and_everybody_hears_why() -> None:
    circuit = broken(Clock())
    assert circuit.enter() is Pass.NONE
    assert circuit.why_not() == "the store is away (refused)"


def test_one_tries_and_its_success_lets_all_go() -> None:
    clock = Clock()
    circuit = broken(clock)
    clock.now += 1.0
    assert circuit.why_not() is None
    assert circuit.enter() is Pass.TRIAL
    assert circuit.enter() is Pass.NONE
    assert circuit.why_not() == "one file tries whether the store is back (refused)"
    assert circuit.succeeded()
    assert circuit.enter() is Pass.FREE


def test_a_failed_try_makes_the_pause_longer_up_to_a_limit() -> None:
    clock = Clock()
    circuit = broken(clock)
    pauses = []
    for _ in range(5):
        before = clock.now
        while circuit.why_not() is not None:
            clock.now += 0.25
        pauses.append(clock.now - before)
        assert not circuit.failed(circuit.enter(), "refused")
    assert pauses == [1.0, 2.0, 4.0, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]


def test_a_try_that_tells_nothing_is_followed_by_another() -> None:
    clock = Clock()
    circuit = broken(clock)
    clock.now += 1.0
    used = circuit.enter()
    circuit.left(used)
    assert circuit.enter() is Pass.TRIAL


def test_stragglers_of_the_outage_change_nothing() -> None:
    """Files that were under way when it began fail later."""
    clock = Clock()
    circuit = broken(clock)
    clock.now += 0.9
    assert not circuit.failed(Pass.FREE, "late")
    clock.now += 0.1
    assert circuit.enter() is Pass.TRIAL
