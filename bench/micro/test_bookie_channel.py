"""bookie_frames.pyx and bookie_channel.pyx: adds on their way to a bookie, and its answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

from bench.micro import material
from manual_loop import ManualLoop
from pyxbroker.bookie_channel import BookieChannel
from pyxbroker.bookie_frames import frames_of
from pyxbroker.entry import CRC32C, EntryRun
from pyxbroker.turn import Turn

RUN = 64
ANSWER = bytes.fromhex("00000018 02010000 00000000")


class Loop(ManualLoop):
    def call_later(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Nothing times out."""


class Adder:
    """A writer that counts its entries."""

    digest = CRC32C
    entries = 0

    def on_adds_acked(self, slot: int, first: int, last: int) -> None:
        self.entries += last - first + 1


def run_of(first: int) -> EntryRun:
    one = EntryRun.of_all([material.PAYLOAD] * RUN)
    one.ledger_id, one.first_entry_id = 1, first
    return one


def test_a_run_of_64_packaged_for_all_bookies(benchmark: Any) -> None:
    def setup() -> tuple[tuple[EntryRun], dict[str, Any]]:
        return (run_of(0),), {}

    def package(one: EntryRun) -> int:
        return len(frames_of(one, CRC32C, -1, 0)[0])

    assert benchmark.pedantic(package, setup=setup, rounds=2000) == RUN * (1024 + 64)


def test_a_run_of_64_to_a_bookie_and_its_answers(benchmark: Any) -> None:
    loop = Loop()
    channel = BookieChannel(
        Turn(cast(asyncio.AbstractEventLoop, loop)),
        frame_bytes_max=material.FRAME_BYTES_MAX,
        pending_bytes_max=1 << 30,
        add_timeout_s=30,
        read_timeout_s=30,
    )
    ours, bookie = socket.socketpair()
    for end in (ours, bookie):
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    channel.attach(ours)
    received = bytearray(4 << 20)
    adder = Adder()

    def setup() -> tuple[tuple[EntryRun, bytes], dict[str, Any]]:
        first = adder.entries
        ids = ((1).to_bytes(8, "big") + n.to_bytes(8, "big") for n in range(first, first + RUN))
        return (run_of(first), b"".join(ANSWER + each for each in ids)), {}

    def add(one: EntryRun, answers: bytes) -> None:
        channel.add_run(adder, 0, one, -1, 0)
        loop.run_soon()
        bookie.recv_into(received)
        bookie.send(answers)
        loop.go_round()

    benchmark.pedantic(add, setup=setup, rounds=2000)
    assert adder.entries >= RUN
    bookie.close()
    ours.close()
