"""The machine that takes requests apart: its events, its states, and what strangers' bytes cost."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from pyxbroker.web.errors import HttpError
from pyxbroker.web.request_parser import (
    END,
    TRANSITIONS,
    End,
    Event,
    Found,
    Head,
    RequestParser,
    State,
)

ROOM = 1000
HOST = b"Host: broker\r\n"
GET = b"GET /x HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = b"PUT /x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
OFFER = b"PUT /x HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n"


def received(*pieces: bytes, room: int = ROOM) -> tuple[RequestParser, list[Event]]:
    parser = RequestParser()
    return parser, [event for piece in pieces for event in parser.receive(piece, room)]


def joined(events: list[Event]) -> list[object]:
    """Events with neighbouring pieces of a body in one, heads as what was asked."""
    found: list[object] = []
    for event in events:
        if isinstance(event, bytes) and found and isinstance(found[-1], bytes):
            found[-1] += event
        elif isinstance(event, Head):
            found.append((event.method, event.path, event.length))
        else:
            found.append(event)
    return found


STREAM = b"".join(
    [
        b"\r\n" + GET,
        CHUNKED + b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nDigest: none\r\n\r\n",
        OFFER + b"Content-Length: 4\r\n\r\nbody",
        OFFER + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
        OFFER + b"\r\n",
        b"DELETE /last HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n",
    ]
)
EVENTS = [
    *[("GET", "/x", 0), END],
    *[("PUT", "/x", None), b"abcde", END],
    *[("PUT", "/x", 4), b"body", END],
    *[("PUT", "/x", None), b"body", END],
    *[("PUT", "/x", 0), END],
    *[("DELETE", "/last", 0), END],
]


def test_events_are_the_same_wherever_the_bytes_are_split() -> None:
    for at in range(len(STREAM)):
        parser, events = received(STREAM[:at], STREAM[at:])
        assert joined(events) == EVENTS, at
        assert parser.state is State.ENDED
    _, events = received(*[STREAM[at : at + 1] for at in range(len(STREAM))])
    assert joined(events) == EVENTS


def test_every_state_but_the_last_ones_leads_on_and_is_reached() -> None:
    ends = {State.ENDED, State.REFUSED}
    assert {state for state, _ in TRANSITIONS} == set(State) - ends
    assert set(TRANSITIONS.values()) | {State.REFUSED} == set(State)
    assert {found for _, found in TRANSITIONS} == set(Found)


@pytest.mark.parametrize(
    ("sent", "state"),
    [
        (b"\r\n", State.IDLE),
        (b"G", State.HEAD),
        (CHUNKED + b"1\r\na\r\n0\r\n", State.BODY),
        (OFFER + b"Content-Length: 4\r\n\r\nbod", State.BODY),
        (OFFER + b"Content-Length: 4\r\n\r\nbody", State.IDLE),
        (b"GET / HTTP/1.0\r\n\r\n", State.ENDED),
        (OFFER + b"Connection: close\r\n\r\n" + GET, State.ENDED),
        (b"?", State.REFUSED),
    ],
)
def test_the_state_says_what_comes_next(sent: bytes, state: State) -> None:
    assert received(sent)[0].state is state


def test_what_one_turn_brings_of_a_body_is_one_piece() -> None:
    parser, _ = received(CHUNKED)
    assert parser.receive(b"1\r\na\r\n" * 500, 0) == [b"a" * 500]
    assert parser.receive(b"1\r\na\r\n0\r\n\r\n", 0) == [b"a", END]


def test_a_refusal_is_the_last_event_and_what_was_whole_before_it_counts() -> None:
    parser, events = received(GET + CHUNKED + b"1\r\na\r\nzz\r\n", GET)
    *before, refusal = events
    assert joined(before) == [("GET", "/x", 0), END, ("PUT", "/x", None), b"a"]
    assert isinstance(refusal, HttpError) and refusal.status == 400
    assert parser.has_ended
    parser.end()
    assert parser.state is State.REFUSED


def test_blanks_around_the_value_of_a_header_are_no_part_of_it() -> None:
    for sent in (b"value", b" value", b"\t value \t ", b"value  "):
        events = received(b"GET /x HTTP/1.1\r\n" + HOST + b"A:" + sent + b"\r\nB: \r\n\r\n")[1]
        assert isinstance(events[0], Head)
        assert events[0].headers == {"host": "broker", "a": "value", "b": ""}


def test_requests_that_have_no_room_are_refused() -> None:
    _, events = received(GET * 5, room=3)
    assert [type(event) for event in events] == [Head, End] * 3 + [HttpError]
    assert isinstance(events[-1], HttpError) and events[-1].status == 429


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /x HTTP/1.1\nHost: broker\n\n",
        b"GET /x HTTP/3.0\r\n" + HOST + b"\r\n",
        b"NOTHING /x HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /x HTTP/1.1\r\nHost : broker\r\n\r\n",
        b"GET /\xc3\xa4 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"PUT /x HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"PUT /x HTTP/1.1\r\n" + HOST + b"Content-Length: +1\r\n\r\n",
        b"PUT /x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
        CHUNKED + b"1\na\r\n",
        CHUNKED + b"1\r\nab\r\n",
        CHUNKED + b"-1\r\n",
        CHUNKED + b"0\r\n A: b\r\n\r\n",
    ],
)
def test_what_two_servers_might_read_differently_is_refused(request_bytes: bytes) -> None:
    *_, last = received(request_bytes)[1]
    assert isinstance(last, HttpError) and last.status == 400


def test_a_start_does_not_wait_for_what_a_first_client_needs() -> None:
    seen = "import sys, pyxbroker.roles.standalone; print(*sys.modules)"
    command = [sys.executable, "-c", seen]
    modules = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert "pyxbroker.web.server" in modules
    late = {"httptools", "email.utils", "http", "pyxbroker.web.response"}
    late |= {"pyxbroker.web.connection", "pyxbroker.web.endpoint", "pyxbroker.admin.endpoints"}
    assert not late & set(modules)


# --- what bytes cost --------------------------------------------------------------------------


def _cpu_s(before: bytes, pieces: list[bytes]) -> float:
    """CPU of taking some pieces in; the best of three, since others use the machine, too."""
    best = 1e9
    for _ in range(3):
        parser, _ = received(before)
        began = time.process_time()
        for piece in pieces:
            parser.receive(piece, 1 << 30)
        best = min(best, time.process_time() - began)
    return best


def _bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


@pytest.mark.parametrize(
    ("before", "make"),
    [
        (CHUNKED, lambda size: [b"1\r\na\r\n" * (size // 6)]),
        (CHUNKED, lambda size: _bytewise(b"1\r\na\r\n" * (size // 24))),
        (CHUNKED, lambda size: [b"1;" + b"x" * 100 + b"\r\na\r\n"] * (size // 100)),
        (b"", lambda size: [b"\r\n" * (size // 2)]),
        (b"", lambda size: [GET * (size // len(GET) // 8)]),
        (b"", lambda size: _bytewise(GET * (size // len(GET) // 8))),
        (b"", lambda size: [OFFER + b"\r\n"] * (size // len(OFFER) // 8)),
    ],
    ids=["chunks", "chunk-bytes", "extensions", "lines", "requests", "request-bytes", "offers"],
)
def test_bytes_cost_the_same_however_many_there_are(before: bytes, make: object) -> None:
    few, many = 1 << 16, 1 << 19
    assert callable(make)
    # Eight times the bytes: eight times the time if it is linear, 64 times if it is quadratic.
    assert _cpu_s(before, make(many)) < 24 * max(_cpu_s(before, make(few)), 5e-4)


def test_the_smallest_chunks_do_not_hold_the_loop_up() -> None:
    # What one read of a socket brings at most, in chunks of a byte each.
    assert _cpu_s(CHUNKED, [b"1\r\na\r\n" * ((256 << 10) // 6)]) < 0.1


@pytest.mark.parametrize("line", [b"A: " + b"x" * (15 << 10), b"a:b\r\n" * (3 << 10)])
def test_a_head_byte_by_byte_costs_no_more_than_its_limit_allows(line: bytes) -> None:
    head = b"GET /x HTTP/1.1\r\n" + HOST + line
    assert _cpu_s(b"", _bytewise(head)) / len(head) < 20e-6
