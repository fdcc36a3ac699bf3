"""The structured log: one line per event on stderr, as key=value pairs.

    2026-01-31T12:00:00.123Z INFO broker.service event="topic loaded" topic=persistent://... ms=3

A line says what happened and to what. It never holds a payload, a property of a message, a token or
a password.
"""

from __future__ import annotations

import logging
import sys
import time

ROOT = "pyxbroker"
_QUOTED = frozenset(' "\'=\\')


def get_logger(name: str) -> Log:
    """The log of one part; `name` is its module, such as `__name__`."""
    return Log(logging.getLogger(name))


class Log:
    """Events with fields: `log.info("topic loaded", topic=name, ms=3)`.

    A field's value is formatted only when the line is written.
    """

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, **fields: object) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write(logging.ERROR, event, fields)

    def failure(self, event: str, error: BaseException, **fields: object) -> None:
        """An error with the traceback of an exception that was met elsewhere."""
        self._write(logging.ERROR, event, fields, error)

    def exception(self, event: str, **fields: object) -> None:
        """An error with the traceback of the exception that is being handled."""
        self._write(logging.ERROR, event, fields, with_traceback=True)

    def _write(
        self,
        level: int,
        event: str,
        fields: dict[str, object],
        with_traceback: bool | BaseException = False,
    ) -> None:
        if self._logger.isEnabledFor(level):
            extra = {"fields": fields}
            self._logger.log(level, "%s", event, exc_info=with_traceback, extra=extra)


class LineFormatter(logging.Formatter):
    """Makes one line of a record; only a traceback adds lines, indented."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        part = record.name.removeprefix(ROOT + ".")
        fields = "".join(
            f" {key}={format_value(value)}" for key, value in getattr(record, "fields", {}).items()
        )
        line = (
            f"{seconds}.{int(record.msecs):03d}Z {record.levelname} {part}"
            f" event={format_value(record.getMessage())}{fields}"
        )
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "".join(f"\n    {each}" for each in trace.splitlines())
        return line


def format_value(value: object) -> str:
    """The value as it stands in a line: quoted when it would not be one word, never two lines."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, BaseException):
        value = f"{type(value).__name__}: {value}" if str(value) else type(value).__name__
    text = str(value)
    if text and text.isprintable() and not _QUOTED.intersection(text):
        return text
    escaped = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in text.replace("\\", "\\\\").replace('"', '\\"')
    )
    return f'"{escaped}"'


def configure(level: str = "INFO") -> None:
    """Sends the log to stderr. Call it once, at the start of a process.

    `level` is DEBUG, INFO, WARNING or ERROR. Other libraries are heard from WARNING on.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(level)
