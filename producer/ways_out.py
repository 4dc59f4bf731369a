"""What to do about a conversation whose loss mask cannot be proven: only what helps."""

from __future__ import annotations

from typing import Literal

from producer.rows import RowError

#: What a template does that leaves a turn without a proof.
Fault = Literal["rewrites", "leaves out", "no boundary"]

_TEMPLATE_THAT: dict[Fault, str] = {
    "rewrites": "keeps earlier turns as they were",
    "leaves out": "shows all that the assistant says",
    "no boundary": "says where each one's words begin",
}


class UnprovenError(RowError):
    """No way finds what the assistant generates; `fault` says why, and the way out is still to be said."""

    def __init__(self, reason: str, fault: Fault) -> None:
        super().__init__(reason)
        self.fault: Fault = fault


def with_way_out(error: UnprovenError, *, last_turn_helps: bool) -> RowError:
    """The error with what to do, `--loss-mask last-turn` among it if that is known to help."""
    modes = "last-turn or all" if last_turn_helps else "all"
    return RowError(
        f"{error}; give --loss-mask {modes}, --loss-mask template:FILE with the template and {{% generation %}} in it, "
        f"or --chat-template FILE with one that {_TEMPLATE_THAT[error.fault]}"
    )
