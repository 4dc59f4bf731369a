"""Commands that are run to their end for their answer, while somebody may ask this process to end."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

from hiddenfeed.errors import ConfigError, HiddenfeedError, PermanentError, TransientError
from standalone.signals import Interrupted, StopRequest

_LOOK_SECONDS = 0.2
_ERROR = "error: "


@dataclass(frozen=True)
class Answer:
    """How a command ended and what it said."""

    code: int
    output: str
    errors: str

    @property
    def sentences(self) -> list[str]:
        """The errors it reported, a sentence each."""
        return [line.removeprefix(_ERROR) for line in self.errors.splitlines() if line.startswith(_ERROR)]

    def error(self, otherwise: str) -> HiddenfeedError:
        """Its last error as ours; `otherwise` and the end of what it said if it reported none."""
        kinds: dict[int, type[HiddenfeedError]] = {
            kind.exit_code: kind for kind in (ConfigError, TransientError)
        }
        kind = kinds.get(self.code, PermanentError)
        return kind(
            self.sentences[-1]
            if self.sentences
            else f"{otherwise}: {self.errors.strip()[-500:]}".rstrip(": ")
        )


def run_all(
    commands: Sequence[tuple[Sequence[str], Mapping[str, str]]],
    stop: StopRequest,
    look: Callable[[list[str]], None] = lambda _: None,
) -> list[Answer]:
    """Run all (command, environment) at once and wait for all; `look` is shown meanwhile what each has said on stderr.

    Raises Interrupted, with none left running, as soon as `stop` asks for it.
    """
    with ExitStack() as stack:
        outputs, errors = ([stack.enter_context(_file()) for _ in commands] for _ in range(2))
        children = []
        try:
            for (command, environ), output, error in zip(commands, outputs, errors, strict=True):
                # A session of its own: Ctrl-C reaches us alone, and we see to it.
                child = subprocess.Popen(
                    command,
                    env=dict(environ),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=error,
                    start_new_session=True,
                )
                children.append(child)
            while any(child.poll() is None for child in children):
                look([_text(file) for file in errors])
                if stop.wait(_LOOK_SECONDS):
                    raise Interrupted
        finally:
            for child in children:
                child.kill()
                child.wait()
        return [
            Answer(child.returncode, _text(output), _text(error))
            for child, output, error in zip(children, outputs, errors, strict=True)
        ]


def _file() -> IO[bytes]:
    return tempfile.TemporaryFile()


def _text(file: IO[bytes]) -> str:
    """What was written so far; the writer's place in the file stays."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")
