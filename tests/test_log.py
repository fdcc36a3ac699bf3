"""The log: one line per event, and nothing in it can break a line or look like another field."""

from __future__ import annotations

import io
import logging
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyxbroker.base import log, log_limits


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def writer(stream: io.StringIO) -> log.Log:
    logger = logging.Logger("pyxbroker.broker.service", logging.INFO)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(log.LineFormatter())
    logger.addHandler(handler)
    return log.Log(logger)


def test_a_line_has_time_level_part_event_and_fields(writer: log.Log, stream: io.StringIO) -> None:
    writer.info("topic loaded", topic="persistent://public/default/a b", ms=0.1234567)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO broker\.service"
        r' event="topic loaded" topic="persistent://public/default/a b" ms=0\.123457\n',
        stream.getvalue(),
    )


def test_a_level_that_is_off_writes_nothing(writer: log.Log, stream: io.StringIO) -> None:
    writer.debug("detail", value=1)
    assert stream.getvalue() == ""


def test_a_traceback_is_indented(writer: log.Log, stream: io.StringIO) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        writer.exception("failed", error=error)
    first, *rest = stream.getvalue().splitlines()
    assert re.search(r' event=failed error="ValueError: two\\nlines" reference=\w{8}$', first)
    assert all(line.startswith("    ") for line in rest)


@given(st.text())
def test_any_text_stays_one_word_of_one_line(text: str) -> None:
    shown = log.format_value(text)
    assert len(shown.splitlines()) == 1
    assert len(shlex.split(f"key={shown}")) == 1


def test_what_a_client_sends_forges_no_line_and_reaches_no_terminal(
    writer: log.Log, stream: io.StringIO
) -> None:
    sent = "t\r\n2026-01-31T12:00:00.123Z ERROR x event=forged\x1b]0;title\x07\u2028\x9b2J\u202e"
    try:
        raise ValueError(sent)
    except ValueError as error:
        writer.exception("failed", error=error, topic=sent)
    written = stream.getvalue()
    assert all(each.isprintable() for each in written.split("\n"))
    first, *rest = written.splitlines()
    assert " event=failed " in first
    assert first.count("\\x1b]0;title") == 2
    assert all(line.startswith("    ") for line in rest)


def test_a_line_has_an_end_whatever_its_fields_are(writer: log.Log, stream: io.StringIO) -> None:
    """A character may take ten when it is escaped, or four bytes."""
    for text in ("\U000f0000" * 5000, "\U0001f600" * 5000, "\0" * 5000, '"' * 5000):
        stream.truncate(stream.seek(0))
        writer.error(text, **{f"field_{n}": text for n in range(10)}, last="kept")
        (line,) = stream.getvalue().splitlines()
        assert len(line.encode()) <= log_limits.LINE_BYTES_MAX
        assert line.endswith(" last=kept left_out=10") or line.count(" field_") >= 2
        assert len(shlex.split(line)) >= 5


def test_a_defect_is_counted_by_part_and_its_reference_is_that_of_its_place(
    writer: log.Log, stream: io.StringIO
) -> None:
    def met(number: int) -> str:
        try:
            if number < 2:
                raise ValueError(number)
            raise ValueError(number)
        except ValueError as error:
            return writer.failure("failed", error)

    before = log.defects["broker.service"]
    first, again, elsewhere = (met(number) for number in range(3))
    assert log.defects["broker.service"] == before + 3
    assert first == again != elsewhere
    assert stream.getvalue().count(f" reference={first}\n") == 2
