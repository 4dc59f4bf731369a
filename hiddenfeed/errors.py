"""The one tree of errors: every failure hiddenfeed raises on purpose is one of four kinds.

The kind says what happens next, and only a process's shell acts on it: a job is tried again,
quarantined or failed, a command prints one sentence and exits.
"""

from __future__ import annotations

from typing import ClassVar


class HiddenfeedError(Exception):
    """Root of all errors raised on purpose. Its text is one sentence a person can act on."""

    exit_code: ClassVar[int] = 1


class ConfigError(HiddenfeedError):
    """A setting, argument or input file is wrong; a person must change it before trying again."""

    exit_code = 2


class DataError(HiddenfeedError):
    """This piece of data cannot be processed, now or later; it is quarantined with its reason."""

    exit_code = 65


class TransientError(HiddenfeedError):
    """The outside world is away (store, Redis, disk full); the same call may succeed later."""

    exit_code = 75


class PermanentError(HiddenfeedError):
    """The call will not succeed however often it is made; a person must look."""

    exit_code = 1


class MissingObjectError(PermanentError):
    """The store has no object under the key."""
