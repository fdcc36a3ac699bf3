"""The log: one line per event, and nothing in it can break a line or look like another field."""

from __future__ import annotations

import io
import logging
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyxbroker.base import log


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
    assert first.endswith(r'event=failed error="ValueError: two\nlines"')
    assert all(line.startswith("    ") for line in rest)


@given(st.text())
def test_any_text_stays_one_word_of_one_line(text: str) -> None:
    shown = log.format_value(text)
    assert len(shown.splitlines()) == 1
    assert len(shlex.split(f"key={shown}")) == 1
