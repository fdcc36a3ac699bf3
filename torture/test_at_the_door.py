"""The short form: half-open connections and guesses beside a client that behaves."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import wire

from torture.at_the_door import (
    SCENES,
    HalfOpenPeers,
    Seen,
    Stage,
    expect_connected,
    play,
    stage_of,
)

pytestmark = pytest.mark.slow(40)

SERVED_MS_MAX = 500.0  # the p99 of who behaves; other tests run beside it
SERVED_S_MAX = 10.0  # of a login


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory: Path = tmp_path_factory.mktemp("at-the-door")
    with stage_of(directory) as made:
        yield made


@pytest.mark.parametrize("name", SCENES)
def test_who_does_not_say_who_it_is_harms_nobody(stage: Stage, name: str) -> None:
    """Whoever behaves is served; how fast is what the long form says, on a machine of its own."""
    seen = play(stage, name, 200, 30.0 if name == "guesses" else 5.0)
    assert seen.beside_ms <= SERVED_MS_MAX and seen.first_login_s <= SERVED_S_MAX, seen.row()


def test_half_open_connections_are_closed_on_each_port(stage: Stage) -> None:
    peers = HalfOpenPeers()
    for port in stage.target.ports:
        peers.open(port, 5, b"\x16\x03\x01")
    time.sleep(17)  # ten seconds for all, and five that a refused request may linger
    assert peers.close() <= 5  # those that are told why: by HTTP


def test_who_waits_too_long_is_told() -> None:
    assert Seen("", 1.0, 1.0, 4.9, 1.0).is_ok
    assert not Seen("", 4.0, 4.0, 8.1, 1.0).is_ok
    assert not Seen("", 4.0, 8.1, 8.1, 1.0).is_ok  # the control forgives nothing
    assert not Seen("", 1.0, 1.0, 1.0, 2.1).is_ok


def test_a_row_has_the_machines_part_beside_the_figure() -> None:
    row = Seen("many", 0.5, 0.8, 1.6, 0.1, 2.0, 1.25, 12.3, "seen").row()
    assert row == "| many | 0.50 | 0.80 | 1.60 | 3.2 | 2.0 | 0.10 | 2 | 1.25 | 12 | seen | ok |"


@pytest.mark.parametrize(
    ("said", "is_in"),
    [
        (wire.command(wire.CONNECTED, {1: "a broker", 2: 21}), True),
        (wire.command(wire.ERROR, {1: 2**64 - 1, 2: 24, 3: "Too many logins have failed"}), False),
        (b"", False),
    ],
    ids=["connected", "refused", "closed"],
)
def test_a_refusal_is_no_login(said: bytes, is_in: bool) -> None:
    near, far = socket.socketpair()
    with near, far:
        far.sendall(said)
        far.shutdown(socket.SHUT_WR)
        if is_in:
            expect_connected(near)
            return
        with pytest.raises(AssertionError):
            expect_connected(near)


def test_there_are_users_for_so_many_rounds(tmp_path: Path) -> None:
    with stage_of(tmp_path, rounds=11) as made:
        for _ in range(11 * len(SCENES)):
            made.other.first_login_s()
