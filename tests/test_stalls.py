"""The watch over the loop's turns: each is measured, one that takes too long is one line."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from pyxbroker.cli import serving
from pyxbroker.settings.config import Config
from pyxbroker.stats.stalls import COMPILED, StallLog
from pyxbroker.turn import Turn
from pyxbroker.turn_watch import ENDED, STALLED, TurnWatch

LIMIT_S = 0.1
BLOCKED_S = 0.5  # long enough for a thread of a busy machine to see it

Scenario = Callable[[asyncio.AbstractEventLoop, TurnWatch], Awaitable[None]]


def lines_of(scenario: Scenario, caplog: pytest.LogCaptureFixture) -> list[Any]:
    """What the log says of the turns of a scenario on a loop of its own."""

    async def watched() -> None:
        loop = asyncio.get_running_loop()
        watch = TurnWatch(loop, LIMIT_S)
        log = StallLog(watch, stalled=STALLED, ended=ENDED)
        log.start()
        try:
            await asyncio.sleep(0.01)
            await scenario(loop, watch)
            await asyncio.sleep(0.01)
        finally:
            watch.close()
            watch.close()
            log.join()

    with caplog.at_level(logging.INFO, logger="pyxbroker.loop"):
        uvloop.run(watched())
    return [each for each in caplog.records if each.name == "pyxbroker.loop"]


def block(seconds: float = BLOCKED_S) -> None:
    time.sleep(seconds)


def over(watch: TurnWatch, seconds: float) -> int:
    """How many turns took longer."""
    buckets, _ = watch.histogram()
    below = [bound for bound, _ in buckets if bound <= seconds]
    return sum(count for _, count in buckets[len(below) :])


def test_how_long_a_turn_has_lasted_is_known_while_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(_: asyncio.AbstractEventLoop, watch: TurnWatch) -> None:
        began = time.monotonic()
        await asyncio.sleep(0)
        turn = sum(count for _, count in watch.histogram()[0]) + 1
        block(0.01)
        assert 0.01 <= watch.elapsed(turn) <= time.monotonic() - began
        await asyncio.sleep(0)
        assert watch.elapsed(turn) == watch.elapsed(turn + 5) == 0

    lines_of(scenario, caplog)


def assert_names_block(lines: list[Any]) -> None:
    assert [each.getMessage() for each in lines] == ["the event loop was held up"]
    assert "block:" in lines[0].fields["ran"].split(" < ")[0]
    assert lines[0].fields["ms"] >= BLOCKED_S * 1000


def test_a_callback_that_blocks_is_one_line_that_names_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(loop: asyncio.AbstractEventLoop, watch: TurnWatch) -> None:
        loop.call_soon(block)
        await asyncio.sleep(2 * BLOCKED_S)
        assert over(watch, LIMIT_S) == 1

    lines = lines_of(scenario, caplog)
    assert_names_block(lines)
    # The loop's own frames, and those below it, are left out.
    assert "asyncio" not in lines[0].fields["ran"] and "uvloop" not in lines[0].fields["ran"]


def test_a_timer_that_blocks_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(loop: asyncio.AbstractEventLoop, watch: TurnWatch) -> None:
        loop.call_later(0.2, block)  # the thread sleeps by then
        await asyncio.sleep(2 * BLOCKED_S)

    assert_names_block(lines_of(scenario, caplog))


def test_a_task_that_blocks_is_named_with_who_called_it(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(loop: asyncio.AbstractEventLoop, watch: TurnWatch) -> None:
        await asyncio.sleep(0)
        block()
        await asyncio.sleep(0)

    lines = lines_of(scenario, caplog)
    assert_names_block(lines)
    assert "scenario" in lines[0].fields["ran"].split(" < ")[1]


def serve_once(loop: asyncio.AbstractEventLoop, on_readable: Callable[[], None]) -> socket.socket:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    def readable() -> None:
        loop.remove_reader(ours)
        with ours:
            on_readable()

    loop.add_reader(ours, readable)
    theirs.send(b"x")
    return theirs


def test_a_turn_that_a_socket_began_is_measured_from_its_mark(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(loop: asyncio.AbstractEventLoop, watch: TurnWatch) -> None:
        turn = Turn(loop)
        turn.watch = watch
        with serve_once(loop, lambda: turn.run(block)):
            await asyncio.sleep(2 * BLOCKED_S)
        assert over(watch, LIMIT_S) == 1

    assert_names_block(lines_of(scenario, caplog))


def test_what_a_socket_began_without_a_mark_is_measured_as_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """libuv calls it before it says that it has looked; its own clock has the beginning."""

    async def scenario(loop: asyncio.AbstractEventLoop, watch: TurnWatch) -> None:
        with serve_once(loop, block):
            await asyncio.sleep(2 * BLOCKED_S)
        assert over(watch, LIMIT_S) == 1

    (line,) = lines_of(scenario, caplog)
    assert line.fields["ms"] >= BLOCKED_S * 1000 - 2


def test_what_has_no_frames_of_its_own_is_compiled_code(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(loop: asyncio.AbstractEventLoop, watch: TurnWatch) -> None:
        loop.call_soon(time.sleep, BLOCKED_S)
        await asyncio.sleep(2 * BLOCKED_S)

    (line,) = lines_of(scenario, caplog)
    assert line.fields["ran"] == COMPILED


def test_turns_that_are_short_leave_no_line(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(loop: asyncio.AbstractEventLoop, watch: TurnWatch) -> None:
        until = loop.time() + 0.4

        def work() -> None:
            """Keeps the loop at work all the time; each turn is short."""
            if loop.time() < until:
                loop.call_soon(work)

        work()
        await asyncio.sleep(2 * BLOCKED_S)

    assert not lines_of(scenario, caplog)


def test_the_sum_of_turns_is_the_time_that_the_loop_worked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sums = []
    worked_s = 0.0

    def work() -> None:
        nonlocal worked_s
        began = time.monotonic()
        block(0.02)
        worked_s += time.monotonic() - began

    async def scenario(loop: asyncio.AbstractEventLoop, watch: TurnWatch) -> None:
        _, before_s = watch.histogram()
        began = time.monotonic()
        for _ in range(3):
            loop.call_soon(work)
            await asyncio.sleep(0.1)
        sums.extend((watch.histogram()[1] - before_s, time.monotonic() - began))

    lines_of(scenario, caplog)
    # What the loop slept, at least 0.2 s, is no part of it.
    assert 0.06 <= worked_s <= sums[0] < worked_s + (sums[1] - worked_s) / 2


def test_an_idle_loop_does_not_wake_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    switches = []
    others = {each.id for each in psutil.Process().threads()}  # of pytest, which run when they like

    def switches_of_threads() -> int:
        """How often the watching threads have run."""
        total = 0
        for each in psutil.Process().threads():
            if each.id not in others:
                text = Path(f"/proc/self/task/{each.id}/status").read_text()
                total += int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0])
        return total

    async def scenario(loop: asyncio.AbstractEventLoop, watch: TurnWatch) -> None:
        await asyncio.sleep(2 * BLOCKED_S)  # until the thread sleeps
        before = switches_of_threads()
        await asyncio.sleep(1)
        switches.append(switches_of_threads() - before)

    assert not lines_of(scenario, caplog)
    assert switches[0] <= 4  # one wake-up for the turn that reads the first number


def test_a_loop_of_another_kind_is_refused_with_a_reason() -> None:
    async def watched() -> None:
        with pytest.raises(RuntimeError, match="the event loop is not a uvloop"):
            TurnWatch(asyncio.get_running_loop(), LIMIT_S)

    asyncio.run(watched())


def test_a_thread_keeps_python_from_the_loop_of_a_broker_for_less_than_a_millisecond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python's own is five: a thread that imports something would cost each turn as much."""
    seen = []

    def serve(main: Coroutine[Any, Any, None]) -> None:
        main.close()
        seen.append(sys.getswitchinterval())

    async def start(on_step: Callable[[str], None]) -> Any:
        raise AssertionError("the loop does not run")

    monkeypatch.setattr(uvloop, "run", serve)
    former = sys.getswitchinterval()
    try:
        serving.run(Config(), start, serving.StorageLine("", ""))
    finally:
        sys.setswitchinterval(former)
        gc.enable()
    assert 0 < seen[0] < 0.001
