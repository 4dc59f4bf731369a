"""The shell of a command: what its body raises as one line on stderr, and the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from hiddenfeed.errors import HiddenfeedError


def exit_code_of(body: Callable[[], int]) -> int:
    """What `body` returns, or the exit code of what it raised: 130 when interrupted."""
    try:
        code = body()
        sys.stdout.flush()
        return code
    except HiddenfeedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read us has seen enough; nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
