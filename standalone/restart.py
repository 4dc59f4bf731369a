"""What happens after a role's process has ended: pure decisions from how it ended."""

from __future__ import annotations

from dataclasses import dataclass

#: A process that ran for this long had started well; its end counts as a first one again.
SETTLED_SECONDS = 60.0
#: Ends in a row, each soon after the start, after which a person must look.
MOST_QUICK_ENDS = 5
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
#: Exit codes of errors that another start would only repeat: permanent, configuration, data.
_HOPELESS = frozenset({1, 2, 65})
_TRANSIENT = 75


@dataclass(frozen=True)
class Ended:
    """How a role's process ended."""

    role: str
    #: Exit code; negative for a signal.
    code: int
    ran_seconds: float
    #: The error sentence it printed; empty if it printed none.
    sentence: str
    #: What its log ends with, for errors without a sentence.
    last_lines: str = ""


@dataclass(frozen=True)
class Restart:
    """Start it again after a pause."""

    after_seconds: float
    quick_ends: int


@dataclass(frozen=True)
class GiveUp:
    """Stop everything and say this; `code` is the exit code of the whole."""

    sentence: str
    code: int
    #: The role that made it necessary.
    role: str


def decide(ended: Ended, quick_ends_before: int, *, patient: bool = True) -> Restart | GiveUp:
    """Whether a role that should run is started again. `quick_ends_before` counts quick ends in a row.

    Without patience something that is away ends everything: nothing has begun yet, so a person had
    better hear of it at once.
    """
    hopeless = _HOPELESS if patient else _HOPELESS | {_TRANSIENT}
    if ended.code in hopeless and ended.sentence:
        return GiveUp(ended.sentence, ended.code, ended.role)
    quick_ends = quick_ends_before + 1 if ended.ran_seconds < SETTLED_SECONDS else 1
    # Something that is away may come back at any time, so there is no last attempt.
    if quick_ends > MOST_QUICK_ENDS and ended.code != _TRANSIENT:
        said = ended.sentence or ended.last_lines or "it said nothing"
        return GiveUp(
            f"{ended.role} ended {quick_ends} times soon after its start ({shown_code(ended.code)}): {said}",
            1,
            ended.role,
        )
    return Restart(min(_FIRST_PAUSE_SECONDS * 2 ** (quick_ends - 1), _LONGEST_PAUSE_SECONDS), quick_ends)


def shown_code(code: int) -> str:
    """`exit code 1` or `killed by signal 9`."""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
