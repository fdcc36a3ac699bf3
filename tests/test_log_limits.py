"""The log's limits: a cause that repeats is one line with a count, and every line has an end."""

from __future__ import annotations

import gc
import io
import logging
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator

import pytest

from pyxbroker.base import log, log_limits
from pyxbroker.base.log_limits import LineLimits

WINDOW_S = log_limits.WINDOW_S


class Lines:
    """What a log writes by a clock of its own, a second per line at first; without their times."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.limits = LineLimits()
        self.written: list[str] = []
        self._formatter = log.LineFormatter()

    def say(self, event: str, level: int = logging.ERROR, name: str = "a", **fields: object) -> int:
        """One line of the program; returns how many lines it led to."""
        logger = logging.getLogger(f"pyxbroker.{name}")
        record = logger.makeRecord(
            logger.name, level, "", 0, event, (), None, extra={"fields": fields}
        )
        record.created = self.now
        return self._write(self.limits.admit(record, self.now))

    def look(self) -> int:
        return self._write(self.limits.due(self.now))

    def _write(self, records: list[logging.LogRecord]) -> int:
        self.written += [self._formatter.format(each).partition(" ")[2] for each in records]
        return len(records)

    def take(self) -> list[str]:
        written, self.written = self.written, []
        return written


@pytest.fixture
def lines() -> Lines:
    return Lines()


def test_lines_of_one_cause_are_a_few_and_then_one_with_a_count(lines: Lines) -> None:
    for entry in range(22_000):
        lines.say("an entry is lost", entry=entry, topic="t")
        lines.now += 0.0001
    assert lines.take() == [
        f'ERROR a event="an entry is lost" entry={entry} topic=t' for entry in range(5)
    ]
    lines.now += WINDOW_S
    assert lines.look() == 1
    assert lines.take() == [
        'ERROR a event="an entry is lost" entry=21999 topic=t repeated=21995'
        " since=1970-01-01T00:16:40.000Z"
    ]


def test_a_cause_that_goes_on_has_one_line_for_each_window(lines: Lines) -> None:
    for _ in range(1000):
        lines.say("again")
        lines.now += WINDOW_S / 100
    written = lines.take()
    assert len(written) == 5 + 9
    counts = [int(line.partition("repeated=")[2].split()[0]) for line in written[5:]]
    # The line that brings a count is the first of the next window.
    assert all(90 <= each <= 101 for each in counts)
    lines.now += WINDOW_S
    lines.look()
    counts += [int(line.partition("repeated=")[2].split()[0]) for line in lines.take()]
    assert 5 + sum(counts) == 1000


def test_a_cause_that_was_quiet_for_a_window_is_new_again(lines: Lines) -> None:
    for _ in range(6):
        lines.say("again")
    lines.now += WINDOW_S
    assert lines.look() == 1
    lines.now += WINDOW_S
    assert lines.look() == 0
    lines.take()
    lines.say("again")
    assert lines.take() == ["ERROR a event=again"]


def test_the_next_line_of_any_cause_brings_the_counts_that_are_due(lines: Lines) -> None:
    for _ in range(7):
        lines.say("first")
    lines.take()
    lines.now += WINDOW_S
    lines.say("second")
    first, second = lines.take()
    assert "event=first repeated=2 since=" in first
    assert second == "ERROR a event=second"


def test_event_level_and_part_tell_causes_apart_and_numbers_do_not(lines: Lines) -> None:
    for number in range(10):
        lines.say(f"entry log {number:016x}.log: entry {number} is damaged")
        lines.say("x", logging.ERROR, "a")
        lines.say("x", logging.WARNING, "a")
        lines.say("x", logging.WARNING, "b")
        lines.say("y", logging.WARNING, "b")
    assert len(lines.take()) == 5 * 5


def test_one_connection_leaves_room_for_lines_of_others(lines: Lines) -> None:
    for _ in range(1000):
        lines.say("a SEND was refused", peer="1.2.3.4:5", level=logging.WARNING)
    lines.say("a SEND was refused", peer="1.2.3.4:6", level=logging.WARNING)
    assert [line.partition("peer=")[2] for line in lines.take()] == [
        *["1.2.3.4:5"] * log_limits.PEER_LINES_MAX,
        "1.2.3.4:6",
    ]
    lines.now += WINDOW_S
    lines.look()
    (line,) = lines.take()
    assert " repeated=997 " in line


def test_all_lines_together_have_a_size_in_a_second_and_nothing_goes_uncounted() -> None:
    stream = io.StringIO()
    writer = _writer(stream)
    try:
        raise ValueError("\U0001f600" * 1000)
    except ValueError as error:
        for number in range(60):
            # Letters, since numbers tell no causes apart.
            event = "a defect " + "g" * number
            writer.failure(event, error, text="\U0001f600" * 1000, more="\U0001f600" * 1000)
    written = len(stream.getvalue().encode())
    most = log_limits.BYTES_PER_SECOND_MAX
    assert most / 2 < written < most + log_limits.LINE_BYTES_MAX + log_limits.TRACEBACK_BYTES_MAX
    handler = logging.getLogger("pyxbroker.limited").handlers[0]
    assert isinstance(handler, log.LimitedHandler)
    handler.write_repeated(is_end=True)
    told = stream.getvalue().count("event=")
    assert told == 60


def test_debug_that_has_no_limit_leaves_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    writer = _writer(stream)
    monkeypatch.setattr(logging.getLogger("pyxbroker.limited"), "level", logging.DEBUG)
    writer.warning("the first")
    for _ in range(300):
        writer.debug("a detail", text="x" * 1000)
    assert stream.tell() > log_limits.BYTES_PER_SECOND_MAX
    writer.warning("something else")
    assert "something else" in stream.getvalue()


def test_a_traceback_has_an_end_in_bytes() -> None:
    stream = io.StringIO()
    writer = _writer(stream)
    try:
        raise ValueError("\n".join(["\U0001f600" * 1000] * 60))
    except ValueError as error:
        writer.failure("a defect", error)
    size = len(stream.getvalue().encode())
    most = log_limits.TRACEBACK_BYTES_MAX
    assert most - 5000 < size < most + 1000
    assert "lines ..." in stream.getvalue()


def test_information_has_more_lines_and_debug_has_all(lines: Lines) -> None:
    for number in range(200):
        lines.say("deleted", logging.INFO, topic=number)
        lines.say("detail", logging.DEBUG, number=number)
        lines.now += 0.01
    written = lines.take()
    assert sum("event=deleted" in line for line in written) == 50
    assert sum("event=detail" in line for line in written) == 200


def test_all_causes_together_have_a_bounded_rate_and_nothing_goes_uncounted(lines: Lines) -> None:
    events = [first + second for first in "abcdefghijklmnopqrst" for second in "ghijklmnopqrst"]
    assert len(events) > log_limits.CAUSES_MAX
    said = 0
    for _ in range(3 * int(WINDOW_S)):
        second = lines.now
        for event in events:
            lines.say(event)
            said += 1
        assert len(lines.written) <= log_limits.LINES_PER_SECOND_MAX
        assert len(lines.limits._causes) <= log_limits.CAUSES_MAX + 1
        said -= sum("repeated=" not in line for line in lines.written)
        said -= sum(int(each.partition("repeated=")[2].split()[0]) for each in _counts(lines))
        lines.take()
        lines.now = second + 1
    for _ in range(100):
        lines.now += 1
        lines.look()
    said -= sum(int(each.partition("repeated=")[2].split()[0]) for each in _counts(lines))
    assert said == 0
    assert any('event="lines of many causes were omitted" last=' in each for each in lines.written)
    assert lines.limits._causes == {}


def _counts(lines: Lines) -> Iterator[str]:
    return (line for line in lines.written if "repeated=" in line)


def test_exceptions_of_different_types_are_different_causes() -> None:
    stream = io.StringIO()
    writer = _writer(stream)
    for error in [ValueError("v"), KeyError("k")] * 10:
        writer.failure("a task failed", error, topic="t")
    written = stream.getvalue()
    assert written.count("\n    ValueError: v") == written.count("\n    KeyError: 'k'") == 5


def test_what_is_left_out_keeps_no_frame_alive() -> None:
    class Buffer:
        pass

    def fail() -> weakref.ref[Buffer]:
        buffer = Buffer()
        alive = weakref.ref(buffer)
        try:
            raise ValueError("read")
        except ValueError as error:
            writer.exception("a task failed", error=error, buffer=buffer)
        return alive

    stream = io.StringIO()
    writer = _writer(stream)
    for _ in range(5):
        fail()
    last = fail()
    gc.collect()
    assert last() is None
    handler = logging.getLogger("pyxbroker.limited").handlers[0]
    assert isinstance(handler, log.LimitedHandler)
    handler.write_repeated(is_end=True)
    end = stream.getvalue().splitlines()[-1]
    assert 'error="ValueError: read"' in end
    assert "repeated=1 since=20" in end


def test_a_value_and_a_traceback_have_an_end() -> None:
    stream = io.StringIO()
    writer = _writer(stream)

    def deep(depth: int) -> None:
        if depth == 0:
            raise ValueError("x" * 100_000)
        shallow(depth - 1)

    def shallow(depth: int) -> None:
        deep(depth)

    try:
        deep(200)
    except ValueError:
        writer.exception("e" * 10_000, text="y" * 100_000, number=10**3000)
    first, *rest = stream.getvalue().splitlines()
    assert len(first) < 4 * log_limits.CHARACTERS_MAX
    assert f" text={'y' * 1021}... " in first
    assert len(rest) == log_limits.TRACEBACK_LINES_MAX + 1
    assert max(map(len, rest)) <= log_limits.CHARACTERS_MAX + 4
    assert any("lines ..." in line for line in rest)
    assert rest[-1].strip().startswith("ValueError: xxx")


def test_a_process_writes_its_counts_when_it_ends() -> None:
    code = (
        "from pyxbroker.base import log\n"
        "log.configure()\n"
        "for n in range(8):\n"
        "    log.get_logger('pyxbroker.x').error('again', n=n)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    written = finished.stderr.splitlines()
    assert len(written) == 6
    assert " ERROR x event=again n=7 repeated=3 since=20" in written[-1]


def test_a_line_costs_little_when_it_is_left_out() -> None:
    """A storm of lines must not take the loop's time: formatting is what costs."""
    writer = _writer(io.StringIO())
    began = time.process_time()
    for number in range(10_000):
        writer.error("an entry cannot be read", topic="persistent://a/b/c", entry=number)
    assert time.process_time() - began < 1.0


def _writer(stream: io.StringIO) -> log.Log:
    logger = logging.getLogger("pyxbroker.limited")
    logger.handlers[:] = [log.LimitedHandler(stream)]
    logger.propagate = False
    return log.Log(logger)


def test_the_counts_of_every_limited_log_are_written_when_they_are_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [logging.NullHandler(), log.LimitedHandler(stream)])
    for _ in range(100):
        logging.getLogger("pyxbroker.due").error("the same again")
    before = stream.getvalue().count("\n")
    assert before < 100
    log.write_repeated()
    assert stream.getvalue().count("\n") == before, "the window is not over"
    log.write_repeated(is_end=True)
    assert f"repeated={100 - before}" in stream.getvalue().splitlines()[-1]
