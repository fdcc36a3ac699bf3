"""Bytes on their way to a socket: order, ownership, and what a slow peer costs."""

from __future__ import annotations

import errno
import os
import socket
import weakref
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyxbroker.buffers import OutVector


class Owner:
    """Keeps memory; a test sees through a weak reference when it is let go."""

    def __init__(self, data: bytes) -> None:
        self.data = data


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with near, far:
        yield near, far


def read_all(sock: socket.socket) -> bytes:
    parts = []
    sock.setblocking(False)
    while True:
        try:
            parts.append(sock.recv(1 << 20))
        except BlockingIOError:
            return b"".join(parts)


def test_pieces_leave_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    out = OutVector()
    out.append(b"one ")
    out.append(b"two ")
    third = Owner(b"three ")
    out.lend(third.data, third)
    out.append(b"four")
    assert out.pending == 18
    assert out.send_to(near.fileno()) == 0
    assert read_all(far) == b"one two three four"
    assert (out.pending, out.held[2]) == (0, 0)


def test_more_pieces_than_one_call_takes_leave_in_order(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    out = OutVector()
    for n in range(1300):
        owner = Owner(b"%04d" % n)
        out.lend(owner.data, owner)
    got = b""
    while out.send_to(near.fileno()) == 1:
        got += read_all(far)
    assert got + read_all(far) == b"".join(b"%04d" % n for n in range(1300))


def test_what_is_left_moves_only_when_that_makes_room_for_as_much(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, _ = pair
    out = OutVector()
    for size in (10, *[100_000] * 15):
        owner = Owner(bytes(size))
        out.lend(owner.data, owner)
    assert out.held[1] == 16
    # The first piece has left, and of the second one a part.
    assert out.send_to(near.fileno()) == 1
    out.lend(b"more", owner)
    assert out.held[1] == 32


def test_an_error_of_the_socket_is_told(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    far.close()
    out = OutVector()
    out.append(b"x")
    assert out.send_to(near.fileno()) == -errno.EPIPE


STEPS = st.tuples(
    st.sampled_from(["copy", "lend", "lend more"]), st.integers(1, 3000), st.booleans()
)


@given(st.lists(STEPS, min_size=1, max_size=80))
def test_a_peer_that_reads_now_and_then_gets_every_byte(
    steps: list[tuple[str, int, bool]],
) -> None:
    near, far = socket.socketpair()
    near.setblocking(False)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    out = OutVector()
    owner: list[bytes] = []  # keeps what is lent until it is replaced
    sent, got = b"", b""
    with near, far:
        for kind, size, reads in steps:
            data = os.urandom(size)
            sent += data
            if kind == "copy":
                out.append(data)
            elif kind == "lend" or not out.held[2]:
                owner = [data]
                out.lend(data, owner)
            else:
                owner.append(data)
                out.lend(data, None)
            out.send_to(near.fileno())
            if reads and out.pending:
                got += far.recv(2000)
        while out.pending:
            got += read_all(far)
            assert out.send_to(near.fileno()) >= 0
        assert got + read_all(far) == sent
        assert out.held[2] == 0


def test_owners_are_let_go_when_their_bytes_are_sent_though_more_is_pending(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    out = OutVector()
    alive = []
    for _ in range(10):
        owner = Owner(os.urandom(8192))
        alive.append(weakref.ref(owner))
        out.lend(owner.data, owner)
        out.lend(owner.data, None)
    del owner
    assert out.send_to(near.fileno()) == 1
    assert all(each() is not None for each in alive[1:])
    while out.pending > 3 * 16384:
        read_all(far)
        assert out.send_to(near.fileno()) == 1
    assert [each() is None for each in alive[:6]] == [True] * 6
    assert alive[-1]() is not None


def test_what_a_slow_peer_has_taken_does_not_pile_up(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """A consumer that never catches up must not make the vector grow for ever."""
    near, far = pair
    out = OutVector()
    for _ in range(5000):
        owner = Owner(os.urandom(1000))
        out.append(owner.data[:90])
        out.lend(owner.data, owner)
        while out.pending > 20_000:
            out.send_to(near.fileno())
            if out.pending > 20_000:
                far.recv(4000)
        assert out.pending
    arena_bytes, pieces, owners = out.held
    assert arena_bytes <= 8192
    assert pieces <= 128
    assert owners <= 32
