"""How much the log may say: a cause that repeats is one line with a count, and lines have an end.

A cause is a logger, a level and an event; numbers in an event do not tell causes apart, the type of
an exception with a traceback does, and where it was raised. The first lines of a cause in a window
are written. Those beyond are left out and counted, and when the window ends one line says how many
there were:

    ... ERROR broker.topic event="an entry cannot be read" entry=9:312 repeated=22000 since=...

It has the fields of the last line that was left out. While a cause goes on repeating it has one
such line for each window. One connection has a part of a cause's lines, so that others are still
named, and all lines together have a number and a size for each second. DEBUG is not limited: who
asks for it wants everything. The length of a line is bounded for all levels.

Nothing here reads a clock or writes; no traceback, and so no frame and no buffer, is kept.
"""

from __future__ import annotations

import logging
import math
import re

WINDOW_S = 10.0
LINES_PER_SECOND_MAX = 100  # of all causes together
BYTES_PER_SECOND_MAX = 128 << 10  # the line that goes beyond is the last one
PEER_LINES_MAX = 3  # of a cause in a window that name one connection, in their field `peer`
CAUSES_MAX = 256  # told apart within a window; all others count as one cause
CHARACTERS_MAX = 1024  # of a value as it is written, and of a line of a traceback
LINE_BYTES_MAX = 8 << 10  # of an event's line
TRACEBACK_BYTES_MAX = 32 << 10
TRACEBACK_LINES_MAX = 100
RETRY_S = 0.1  # until the next look for what is due

# Lines of one cause that are written in a window. What is information is mostly told once for each
# thing, such as a topic that was deleted; so more of it is worth reading.
_LINES_MAX = 5
_INFO_LINES_MAX = 50

# Compiled when it is first used: a start that logs nothing need not wait for it.
_NUMBER = r"\b[0-9a-f]*\d[0-9a-f]*"
_PLAIN = (str, int, float, type(None))


def text_of(value: object) -> str:
    """The value as text of bounded length; an error with its type."""
    if isinstance(value, BaseException):
        said = str(value)
        value = f"{type(value).__name__}: {said}" if said else type(value).__name__
    return cut(str(value))


def cut(text: str) -> str:
    """The text, its end left out when it is too long."""
    return text if len(text) <= CHARACTERS_MAX else text[: CHARACTERS_MAX - 3] + "..."


def escape(text: str) -> str:
    """The text without what a terminal or another line could be made of."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def cut_traceback(lines: list[str]) -> list[str]:
    """The lines of a traceback, their middle left out when there are too many, or they are too
    long together."""
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
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "backslashreplace"))


class _Cause:
    """What one cause did in its window."""

    __slots__ = ("ends", "is_shared", "last", "left_out", "peers", "since", "written")

    def __init__(self, now: float, is_shared: bool) -> None:
        self.is_shared = is_shared  # stands for all causes for which there is no place
        self.ends = now + WINDOW_S
        self.written = 0
        self.peers: dict[object, int] = {}  # lines written that name a connection, by that
        self.left_out = 0
        self.since = 0.0  # when the first line that was left out came
        self.last: logging.LogRecord | None = None

    def has_room(self, record: logging.LogRecord) -> bool:
        """Whether one more line may be written in this window."""
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
        # What a field refers to, above all an error's frames, must not live on with the record.
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
        """The line for all that were left out; a new window begins, with that line alone."""
        record = self.last
        assert record is not None, "only what left something out is asked"
        fields = record.__dict__["fields"]
        if self.is_shared:
            fields.clear()
            fields["last"] = record.msg
            record.msg = "lines of many causes were left out"
        # Apart from the others: these are never left out of a line that is too long.
        record.__dict__["counts"] = {"repeated": self.left_out, "since": Moment(self.since)}
        self.ends = now + WINDOW_S
        self.written = lines_max
        self.left_out, self.last = 0, None
        return record


class Moment(float):
    """Seconds since the epoch, which the log shows as a time."""


class LineLimits:
    """Decides which records become lines. Times are those of a clock that only goes forward."""

    def __init__(self) -> None:
        self._causes: dict[object, _Cause] = {}
        self._next_due = math.inf
        self._second = -math.inf  # when the second began in which lines are counted
        self._lines = 0
        self._bytes = 0

    def wrote(self, size_bytes: int) -> None:
        """Lines of this size were written of records that are limited and were admitted."""
        self._bytes += size_bytes

    def admit(self, record: logging.LogRecord, now: float) -> list[logging.LogRecord]:
        """The records to write now: those that are due, then this one if it is not too many."""
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
        """The lines for what was left out, of each cause whose window has ended."""
        if now < self._next_due:
            return []
        due = []
        for key, cause in list(self._causes.items()):
            if cause.ends > now:
                continue
            if cause.left_out == 0:
                del self._causes[key]
            elif self._take_room(now):
                due.append(_taken(cause, now))
        next_due = min((each.ends for each in self._causes.values()), default=math.inf)
        self._next_due = max(next_due, now + RETRY_S)
        return due

    def all(self, now: float) -> list[logging.LogRecord]:
        """The lines for all that was left out, when there will be no later moment for them."""
        return [_taken(each, now) for each in self._causes.values() if each.left_out]

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
        """Whether this second has room for one more line; it is taken."""
        if now >= self._second + 1:
            self._second, self._lines, self._bytes = now, 0, 0
        self._lines += 1
        return self._lines <= LINES_PER_SECOND_MAX and self._bytes < BYTES_PER_SECOND_MAX


def _lines_max(level: int) -> int:
    return _INFO_LINES_MAX if level < logging.WARNING else _LINES_MAX


def _taken(cause: _Cause, now: float) -> logging.LogRecord:
    assert cause.last is not None, "only what left something out is asked"
    return cause.take(now, _lines_max(cause.last.levelno))
