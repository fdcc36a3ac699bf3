"""Limits of the log: repeated lines become one line with a count, and lines are truncated.

A cause is a logger, a level and an event. Numbers in an event do not distinguish causes; the type
of an exception with a traceback, and where it was raised, do. The first lines of a cause in a
window are written. Further ones are counted, and one line at the end of the window reports them:

    ... ERROR broker.topic event="an entry cannot be read" entry=9:312 repeated=22000 since=...

That line has the fields of the last omitted line. A cause that keeps repeating has one such line
per window. A single connection may use only some of a cause's lines, so that other connections
still appear. All lines together are limited in number and bytes per second. DEBUG is not limited,
since the operator asked for all of it. The length of a line is bounded for all levels.

This module reads no clock and writes nothing. It stores no traceback, and so no frame or buffer.
"""

from __future__ import annotations

import logging
import math
import re

WINDOW_S = 10.0
LINES_PER_SECOND_MAX = 100  # of all causes together
BYTES_PER_SECOND_MAX = 128 << 10  # the line that exceeds it is the last one
PEER_LINES_MAX = 3  # of a cause in a window with the same connection in their field `peer`
CAUSES_MAX = 256  # distinguished within a window; all others count as one cause
CHARACTERS_MAX = 1024  # of a formatted value, and of a line of a traceback
LINE_BYTES_MAX = 8 << 10  # of an event's line
TRACEBACK_BYTES_MAX = 32 << 10
TRACEBACK_LINES_MAX = 100
RETRY_S = 0.1  # until the next check for counts that are due

# Lines of one cause that are written in a window. INFO lines mostly report each object once, such
# as a deleted topic, so more of them are worth reading.
_LINES_MAX = 5
_INFO_LINES_MAX = 50

# The pattern is compiled on first use: a process that logs nothing starts faster.
_NUMBER = r"\b[0-9a-f]*\d[0-9a-f]*"
_PLAIN = (str, int, float, type(None))


def text_of(value: object) -> str:
    """Return a value as text of bounded length; an exception with its type."""
    if isinstance(value, BaseException):
        message = str(value)
        value = f"{type(value).__name__}: {message}" if message else type(value).__name__
    return cut(str(value))


def cut(text: str) -> str:
    """Truncate a text to CHARACTERS_MAX."""
    return text if len(text) <= CHARACTERS_MAX else text[: CHARACTERS_MAX - 3] + "..."


def escape(text: str) -> str:
    """Escape characters that could control a terminal or begin another line."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def cut_traceback(lines: list[str]) -> list[str]:
    """Omit the middle of a traceback that has too many lines or too many bytes."""
    half = len(lines)
    if half > TRACEBACK_LINES_MAX:
        half = TRACEBACK_LINES_MAX // 2
        first, last = lines[:half], lines[-half:]
    else:
        half = (len(lines) + 1) // 2
        first, last = lines[:half], lines[half:]
    first, last = ([cut(escape(cut(each))) for each in part] for part in (first, last))
    size = sum(size_of(each) for each in (*first, *last))
    while size > TRACEBACK_BYTES_MAX:
        longer = first if len(first) > len(last) else last
        size -= size_of(longer.pop(-1 if longer is first else 0))
    left_out = len(lines) - len(first) - len(last)
    return [*first, *([f"... {left_out} lines ..."] if left_out else []), *last]


def size_of(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "backslashreplace"))


class _Cause:
    """The lines of one cause in its current window."""

    __slots__ = ("ends", "is_shared", "last", "left_out", "peers", "since", "written")

    def __init__(self, now: float, is_shared: bool) -> None:
        self.is_shared = is_shared  # stands for all causes beyond CAUSES_MAX
        self.ends = now + WINDOW_S
        self.written = 0
        self.peers: dict[object, int] = {}  # lines written, by connection
        self.left_out = 0
        self.since = 0.0  # time of the first omitted line
        self.last: logging.LogRecord | None = None

    def has_room(self, record: logging.LogRecord) -> bool:
        """Return True if one more line may be written in this window."""
        if self.written >= _lines_max(record.levelno):
            return False
        peer = getattr(record, "fields", {}).get("peer")
        return peer is None or self.peers.get(peer, 0) < PEER_LINES_MAX

    def wrote(self, record: logging.LogRecord) -> None:
        self.written += 1
        peer = getattr(record, "fields", {}).get("peer")
        if peer is not None:
            self.peers[peer] = self.peers.get(peer, 0) + 1

    def leave_out(self, record: logging.LogRecord) -> None:
        if self.left_out == 0:
            self.since = record.created
        self.left_out += 1
        # The stored record must not keep alive what its fields refer to, above all error frames.
        from copy import copy  # a start repeats no line

        kept = copy(record)
        kept.msg, kept.args = record.getMessage(), None
        kept.exc_info = kept.exc_text = None
        fields = getattr(record, "fields", {})
        if record.exc_info and record.exc_info[1] is not None:
            fields = {**fields, "error": record.exc_info[1]}
        kept.__dict__["fields"] = {
            key: value if isinstance(value, _PLAIN) else text_of(value)
            for key, value in fields.items()
        }
        self.last = kept

    def take(self, now: float, lines_max: int) -> logging.LogRecord:
        """Return the line that reports the omitted ones, and start a new window with it."""
        record = self.last
        assert record is not None, "no line was omitted"
        fields = record.__dict__["fields"]
        if self.is_shared:
            fields.clear()
            fields["last"] = record.msg
            record.msg = "lines of many causes were omitted"
        # Separate from the fields, because a line that is too long must not omit these.
        record.__dict__["counts"] = {"repeated": self.left_out, "since": Moment(self.since)}
        self.ends = now + WINDOW_S
        self.written = lines_max
        self.left_out, self.last = 0, None
        return record


class Moment(float):
    """A time in seconds since the epoch, which the log formats as a date."""


class LineLimits:
    """Decides which records are written. Times come from a monotonic clock."""

    def __init__(self) -> None:
        self._causes: dict[object, _Cause] = {}
        self._next_due = math.inf
        self._second = -math.inf  # start of the second in which lines are counted
        self._lines = 0
        self._bytes = 0

    def wrote(self, size_bytes: int) -> None:
        """Count the bytes of an admitted record that is subject to limits."""
        self._bytes += size_bytes

    def admit(self, record: logging.LogRecord, now: float) -> list[logging.LogRecord]:
        """Return the records to write now: counts that are due, then this one if it is admitted."""
        if record.levelno <= logging.DEBUG:
            return [record]
        due = self.due(now)
        cause = self._cause(record, now)
        if cause.has_room(record) and self._take_room(now):
            cause.wrote(record)
            return [*due, record]
        cause.leave_out(record)
        return due

    def due(self, now: float) -> list[logging.LogRecord]:
        """Return a line for each cause whose window has ended with omitted lines."""
        if now < self._next_due:
            return []
        due = []
        for key, cause in list(self._causes.items()):
            if cause.ends > now:
                continue
            if cause.left_out == 0:
                del self._causes[key]
            elif self._take_room(now):
                due.append(_take_summary(cause, now))
        next_due = min((each.ends for each in self._causes.values()), default=math.inf)
        self._next_due = max(next_due, now + RETRY_S)
        return due

    def all(self, now: float) -> list[logging.LogRecord]:
        """Return a line for each cause with omitted lines, at the end of the process."""
        return [_take_summary(each, now) for each in self._causes.values() if each.left_out]

    def _cause(self, record: logging.LogRecord, now: float) -> _Cause:
        error = record.exc_info[0] if record.exc_info else None
        reference = getattr(record, "fields", {}).get("reference")
        event = re.sub(_NUMBER, "#", str(record.msg))
        key: object = (record.name, record.levelno, event, error, reference)
        if key not in self._causes and len(self._causes) >= CAUSES_MAX:
            key = None
        cause = self._causes.get(key)
        if cause is None:
            cause = self._causes[key] = _Cause(now, is_shared=key is None)
            self._next_due = min(self._next_due, cause.ends)
        return cause

    def _take_room(self, now: float) -> bool:
        """Reserve one more line in this second. Return False if there is no room."""
        if now >= self._second + 1:
            self._second, self._lines, self._bytes = now, 0, 0
        self._lines += 1
        return self._lines <= LINES_PER_SECOND_MAX and self._bytes < BYTES_PER_SECOND_MAX


def _lines_max(level: int) -> int:
    return _INFO_LINES_MAX if level < logging.WARNING else _LINES_MAX


def _take_summary(cause: _Cause, now: float) -> logging.LogRecord:
    assert cause.last is not None, "no line was omitted"
    return cause.take(now, _lines_max(cause.last.levelno))
