"""A home looked at again: its servers started for a command or for as long as somebody wants to look."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hiddenfeed.errors import ConfigError
from standalone import roles
from standalone.display import Display
from standalone.home import Home
from standalone.report import shown_path, shown_python
from standalone.servers import stop_all
from standalone.signals import StopRequest
from standalone.surroundings import Surroundings, open_surroundings, recall, shell_environment
from standalone.users import Users

_LOOK_SECONDS = 1.0


@contextmanager
def visited(home: Home) -> Iterator[Surroundings]:
    """The home's Redis and store, ready. Servers of the home end afterwards unless others use them."""
    if not home.path.is_dir():
        raise ConfigError(f"there is no home {home.path}: `demo` and `run` make one; give --home for another")
    surroundings = open_surroundings(home, recall(home))
    try:
        yield surroundings
    finally:
        surroundings.leave()


def execute(home: Home, command: Sequence[str]) -> int:
    """Run a command with everything in its environment to reach the home's Redis and store; returns its exit code.

    `python` stands for this Python.
    """
    if not command:
        raise ConfigError("give a command after --, e.g. -- python -m hiddenfeed show URL")
    program = [sys.executable, *command[1:]] if command[0] == "python" else list(command)
    # Ctrl-C is for the command, which shares our terminal; we wait until it has ended.
    with visited(home) as surroundings, StopRequest().listening():
        try:
            return subprocess.run(program, env=visitor_environment(surroundings), check=False).returncode
        except OSError as error:
            raise ConfigError(f"cannot run {command[0]}: {error.strerror}") from None


def serve(home: Home, display: Display, monitor_arguments: Sequence[str]) -> int:
    """Keep the servers and the monitor's page up until somebody asks to end; returns the exit code."""
    stop = StopRequest()
    with stop.listening(), visited(home) as surroundings:
        surroundings.write_environment_file()
        environ = visitor_environment(surroundings)
        display.say(
            f"store  {surroundings.store_url}"
            + (f" in the S3 server at {surroundings.s3.endpoint}" if surroundings.s3 else "")
        )
        display.say(f"to read it in another terminal:  . {shown_path(home.environment_file)}")
        display.say(
            f"                                 {shown_python()} -m hiddenfeed show {surroundings.store_url}"
        )
        display.say("Ctrl-C ends the servers and the page, whose address follows")
        command = [sys.executable, "-m", "monitor", "--serve", *monitor_arguments]
        page = subprocess.Popen(command, env=environ, start_new_session=True)
        try:
            while page.poll() is None and not stop.wait(_LOOK_SECONDS):
                for name in surroundings.keep_alive():
                    display.say(f"{name} ended and was started again")
        finally:
            page.terminate()
            code = page.wait()
    return 0 if stop.asked else code


def stop_home(home: Home, display: Display) -> int:
    """End the servers and role processes that a killed runner left; returns the exit code."""
    if not home.path.is_dir():
        raise ConfigError(f"there is no home {home.path}: `demo` and `run` make one; give --home for another")
    with home.locked(), Users(home.path).nobody():
        for name in home.stop_leftovers():
            display.say(f"ended {name}")
        stop_all(home.path)
    return 0


def visitor_environment(surroundings: Surroundings) -> dict[str, str]:
    """This process's environment with the home's Redis and store in it."""
    environ = roles.role_environment(
        surroundings.environment(os.environ), roles.setting_variables(surroundings.settings())
    )
    return environ | (shell_environment(surroundings.s3) if surroundings.s3 else {})
