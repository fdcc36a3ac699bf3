"""The structured log: one line per event on stderr, as key=value pairs.

    2026-01-31T12:00:00.123Z INFO topic event="a topic was compacted" topic=persistent://... left=3

A line says what happened and to what. It never holds a payload, a message property, a token or a
password. Repeated lines become one line with a count (log_limits.py).
"""

from __future__ import annotations

import json
import logging
import sys
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, TextIO

from pyxbroker.base.log_limits import (
    CHARACTERS_MAX,
    LINE_BYTES_MAX,
    LineLimits,
    Moment,
    cut,
    cut_traceback,
    escape,
    size_of,
    text_of,
)

ROOT = "pyxbroker"
AUDIT = "pyxbroker.audit"  # its lines are JSON (auth/audit.py)
_QUOTED = frozenset(" \"'=\\")
_ESCAPED = frozenset('"\\')

defects: Counter[str] = Counter()
"""Internal errors met since the process began, by the part that met them."""


def get_logger(name: str) -> Log:
    """Return the log of one part; `name` is its module, such as `__name__`."""
    return Log(logging.getLogger(name))


def get_role_logger() -> Log:
    """Return the log of the process itself, whose name is that of its role."""
    return _role


def name_role(role: str) -> None:
    """Name the role of this process, such as `broker`; it is `standalone` before."""
    _role.rename(f"{ROOT}.{role}")


class Log:
    """Events with fields: `log.info("topic loaded", topic=name, ms=3)`.

    A field's value is formatted only when the line is written.
    """

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def rename(self, name: str) -> None:
        """Write the following lines with another name."""
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: object) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write(logging.ERROR, event, fields)

    def failure(self, event: str, error: BaseException, /, **fields: object) -> str:
        """Log and count an internal error: an unforeseen exception, with its traceback.

        Returns the reference by which a user's report leads to the line. It identifies the place
        where the error was raised, so lines omitted as repeated have the same reference.
        """
        reference = _reference_of(event, error)
        defects[_part(self._logger.name)] += 1
        self._write(logging.ERROR, event, {**fields, "reference": reference}, error)
        return reference

    def exception(self, event: str, /, **fields: object) -> str:
        """Log the exception that is being handled, as `failure` does."""
        error = sys.exc_info()[1]
        assert error is not None, "no exception is being handled"
        return self.failure(event, error, **fields)

    def refused(self, event: str, error: BaseException, /, **fields: object) -> str:
        """Log a foreseen error that made the broker refuse something; the client gets no details.

        Returns the reference of the line, as `failure` does.
        """
        reference = _reference_of(event, error)
        self.warning(event, **fields, error=error, reference=reference)
        return reference

    def _write(
        self,
        level: int,
        event: str,
        fields: dict[str, object],
        with_traceback: BaseException | None = None,
    ) -> None:
        if self._logger.isEnabledFor(level):
            extra = {"fields": fields}
            self._logger.log(level, event, exc_info=with_traceback, extra=extra)


_role = get_logger(f"{ROOT}.standalone")


def _part(name: str) -> str:
    """Return the part of the program that a logger belongs to."""
    return name.removeprefix(ROOT + ".")


def _reference_of(event: str, error: BaseException) -> str:
    """Return a code that is equal for errors of one type raised on the same path."""
    way = [event, type(error).__qualname__]
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        way.append(f"{code.co_filename}:{code.co_name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return reference_to(" ".join(way))


def reference_to(event: str) -> str:
    """Return the reference of an event that has no exception."""
    return f"{zlib.crc32(event.encode(errors='replace')):08x}"


class LineFormatter(logging.Formatter):
    """Formats a record as one line; only a traceback adds lines, indented.

    Fields that do not fit are omitted, and the field `left_out` counts them.
    """

    def format(self, record: logging.LogRecord) -> str:
        part = _part(record.name)
        line = (
            f"{format_time(record.created)} {record.levelname} {part}"
            f" event={format_value(record.getMessage())}"
        )
        counts = _format_fields(getattr(record, "counts", {}))
        room = LINE_BYTES_MAX - size_of(line) - sum(map(len, counts)) - len(" left_out=99")
        left_out = 0
        for field in _format_fields(getattr(record, "fields", {})):
            size = size_of(field)
            if size <= room:
                line += field
                room -= size
            else:
                left_out += 1
        line += "".join((f" left_out={left_out}" if left_out else "", *counts))
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "".join(f"\n    {each}" for each in cut_traceback(trace.splitlines()))
        return line


def _format_fields(fields: dict[str, object]) -> list[str]:
    return [f" {key}={format_value(value)}" for key, value in fields.items()]


def format_value(value: object) -> str:
    """Return a value as a line shows it: on one line, quoted if it is not one word, truncated."""
    if isinstance(value, Moment):
        return format_time(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    text = text_of(value)
    if text and text.isprintable() and not _QUOTED.intersection(text):
        return text
    shown: list[str] = []
    room = CHARACTERS_MAX
    for each in text:
        piece = f"\\{each}" if each in _ESCAPED else escape(each)
        room -= len(piece)
        if room < 0:
            shown.append("...")
            break
        shown.append(piece)
    return f'"{"".join(shown)}"'


def format_time(seconds: float) -> str:
    """Return a time since the epoch as ISO 8601 in UTC."""
    whole, part = divmod(seconds, 1)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{int(part * 1000):03d}Z"


if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[TextIO]
else:
    _StreamHandler = logging.StreamHandler  # not subscriptable in Python 3.10


class LimitedHandler(_StreamHandler):
    """Writes lines; those of one cause at a bounded rate."""

    all_up_to = logging.DEBUG
    """Lines up to this level are not limited, and do not count for the limits of others."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.setFormatter(LineFormatter())
        self._limits = LineLimits()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            lines = self._limits.admit(record, time.monotonic())
        except Exception:
            # logging's convention for records that cannot be written: report on stderr, continue.
            self.handleError(record)
            return
        for each in lines:
            super().emit(each)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.levelno > self.all_up_to:
            self._limits.wrote(size_of(text))
        return text

    def write_repeated(self, *, is_end: bool = False) -> None:
        """Write the counts of omitted lines that are due, or all of them at the end."""
        with self.lock or nullcontext():
            now = time.monotonic()
            for each in self._limits.all(now) if is_end else self._limits.due(now):
                super().emit(each)

    def close(self) -> None:
        """Write the remaining counts; logging calls this when the process ends."""
        self.write_repeated(is_end=True)
        super().close()


class AuditFormatter(logging.Formatter):
    """Formats a record as one line of JSON.

    Values that are neither numbers nor booleans become text of bounded length. Non-ASCII characters
    are escaped.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": format_time(record.created),
            "logger": record.name,
            "event": record.getMessage(),
        }
        for name, value in getattr(record, "fields", {}).items():
            if value is not None:
                line[_NAMES_IN_AUDIT.get(name, name)] = _plain(value)
        for name, value in getattr(record, "counts", {}).items():
            line[name] = format_time(value) if isinstance(value, Moment) else value
        return json.dumps(line, separators=(",", ":"))


# Line limits use the field `peer`, which the audit log shows under its own name.
_NAMES_IN_AUDIT = {"peer": "address"}


def _plain(value: object) -> object:
    if isinstance(value, bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return cut(str(value))


class AuditHandler(LimitedHandler):
    """Writes all changes without a limit, and limits other lines like the log."""

    all_up_to = logging.INFO

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.setFormatter(AuditFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno <= self.all_up_to:
            logging.StreamHandler.emit(self, record)
        else:
            super().emit(record)


def write_repeated(*, is_end: bool = False) -> None:
    """Write the counts of omitted lines. A running process calls it periodically: a cause that has
    stopped has no further line that would report its count."""
    for handler in (*logging.getLogger().handlers, *logging.getLogger(AUDIT).handlers):
        if isinstance(handler, LimitedHandler):
            handler.write_repeated(is_end=is_end)


def configure(level: str = "INFO") -> None:
    """Send the log to stderr. Call it once, at the start of a process.

    `level` is DEBUG, INFO, WARNING or ERROR. Other libraries log from WARNING on.
    """
    root = logging.getLogger()
    root.handlers[:] = [LimitedHandler(sys.stderr)]
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(level)
    audit = logging.getLogger(AUDIT)
    audit.handlers[:] = [AuditHandler(sys.stderr)]
    audit.setLevel(logging.INFO)  # independent of the level of the log
    audit.propagate = False
