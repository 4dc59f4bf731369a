"""What a process says while it works: one line per event, for people on a terminal, JSON elsewhere.

A message is a sentence; what varies goes into fields: `log.info("job finished", job=job_id)`.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import MutableMapping
from typing import Any, TextIO

import msgspec

from common.settings.catalogue import LogSettings
from hiddenfeed.words import visible_text

_FIELDS = "hiddenfeed_fields"
#: Of ASCII and Latin-1, and the two that end a line elsewhere.
_PASSED_ON = frozenset({"exc_info", "stack_info", "stacklevel", "extra"})


class Logger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls take fields as keyword arguments."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Move the fields of a call to where the formatters find them."""
        fields = dict(self.extra or {}) | {
            name: kwargs.pop(name) for name in list(kwargs) if name not in _PASSED_ON
        }
        kwargs["extra"] = {_FIELDS: fields}
        return msg, kwargs

    def bind(self, **fields: Any) -> Logger:
        """The same logger with `fields` on every line."""
        return Logger(self.logger, {**(self.extra or {}), **fields})


def get_logger(name: str, **fields: Any) -> Logger:
    """A logger named `name` below `hiddenfeed`, with `fields` on every line."""
    return Logger(logging.getLogger(f"hiddenfeed.{name}"), fields)


def setup_logging(settings: LogSettings, role: str, stream: TextIO | None = None) -> None:
    """Send everything logged in this process to `stream` (stderr). Called once, by a role's main."""
    target = stream if stream is not None else sys.stderr
    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not target.isatty())
    handler = logging.StreamHandler(target)
    handler.setFormatter(JsonFormatter(role) if as_json else HumanFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries chatter at info; their warnings are worth a line.
    root.setLevel(logging.WARNING)
    logging.getLogger("hiddenfeed").setLevel(settings.log_level.upper())


class HumanFormatter(logging.Formatter):
    """`12:34:56 warning worker: lease lost (job=extract-…)`"""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it if there is one."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()} "
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        text = f"{record.getMessage()}{f' ({fields})' if fields else ''}"
        line = f"{clock} {level}{_source(record)}: {visible_text(text)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, role, source, message, the fields, traceback."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self.role = role

    def format(self, record: logging.LogRecord) -> str:
        """One line; a field that JSON cannot carry is written as text."""
        entry: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "role": self.role,
            "source": _source(record),
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in _fields(record).items() if name not in entry}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(entry, enc_hook=str).decode()
        except UnicodeEncodeError:
            # Half of a character, as some data has them.
            entry = {name: _encodable(str(value)) for name, value in entry.items()}
            return msgspec.json.encode(entry).decode()


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, _FIELDS, {})
    return fields


def _source(record: logging.LogRecord) -> str:
    return record.name.removeprefix("hiddenfeed.")
