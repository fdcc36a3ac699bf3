"""What a hostile client can cost the others: each input alone and many times, beside a polite one.

    python -m torture.hostile [--times 1000] [--megabytes 256] [--only NAME]
        [--broker pyxbroker|apache] [--burners] [--first]

Prints one row of a markdown table for each input: how it ended, CPU of the broker for one, the
longest turn of its loop (a bound of the histogram in /metrics; Apache Pulsar has none), the polite
client's p99, how memory grew, and whether the broker serves a new client afterwards. One that does
not is started again for the next row. A p99 is marked that is more than twice what it is without
anybody else for as many receipts, or more than 20 ms. A row where that is so for few receipts is
run again until there are enough, of which the p99 is told then. --burners has the processors awake
all the time, so that it tells of the broker, and --first has the attacker wait for them as if he
had a machine of his own (for who may ask for that: root). Exit status 1 when a polite client
lost anything, the broker had to be started again, an input was not prepared, did not get its
answers, or another status than its row expects, or a turn took longer than 20 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from harness import wire
from harness.brokers import Broker, BrokerFailed
from harness.raw import ConnectionClosed, RawConnection
from harness.turns import longest_ms, turns_of

from torture.burners import burners, come_first
from torture.hostile_commands import COMMANDS, MORE_COMMANDS, Input, Scene
from torture.hostile_exchange import exchange
from torture.hostile_floods import COMMAND_FLOODS, PEERS, REQUEST_FLOODS
from torture.hostile_inputs import Request, endpoints_of
from torture.hostile_scenes import Stage
from torture.polite import NAMESPACE, TOPIC, Polite, PoliteLost, p99_ms

TURN_MS_MAX = 20
DEFECT_CHARACTERS = 6_000
P99_MS_MAX = 20
P99_RATIO_MAX = 2  # of what it is without anybody else
ROW_S_MAX = 60
LARGE_SCENE_S = 1.0
ALONE_S = 20.0
FEW = 50  # receipts
ENOUGH = 200  # receipts, for a p99 that is not just the longest
ROUNDS_MAX = 10
SETTLE_S = 1.5  # the positions of its subscriptions are written a second later
QUIET_S = 0.1
QUIET_S_MAX = 5  # when the time of a row is over
SERVES_S_MAX = 30
SERVES_SOON_S = 5  # later is told
START_S_MAX = 240  # of Apache Pulsar, on a machine that others use as well
WARM_UP_S = {"pyxbroker": 1, "apache": 30}  # until what is compiled while it runs is compiled
BUNDLE_LOOKUPS = 64  # a namespace of Apache Pulsar has four bundles, each to be looked up once
# After which nothing more is going to come. Apache Pulsar answers each when it is done.
SILENCE_S = {"pyxbroker": 0.2, "apache": 2.0}
WRITE_BYTES = 512 << 10  # at least, while there is so much
LAST_REQUEST = 0x5A5A5A5A5A
# pyxbroker answers commands in order, so the cheapest will do. Apache Pulsar closes a connection
# that asks for the statistics of a consumer that it does not have.
LAST = {
    "pyxbroker": wire.command(wire.CONSUMER_STATS, {1: LAST_REQUEST, 4: 1 << 40}),
    "apache": wire.command(wire.LOOKUP, {1: TOPIC, 2: LAST_REQUEST}),
}
STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")


class Alone:
    """How long receipts took while nobody attacked. The p99 of few of them is the longest, which
    tells of the disk; so what a row is compared with is that of as many as it had.
    """

    def __init__(self, times: Sequence[float]) -> None:
        self._times = times
        self._of_count: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._times)

    def p99_ms(self, count: int) -> float:
        """The mean p99 of so many receipts in a row."""
        if count not in self._of_count:
            found = self._p99s(count)
            self._of_count[count] = sum(found) / len(found)
        return self._of_count[count]

    def over_part(self, count: int) -> float:
        """Of so many receipts in a row, how often their p99 is over, though nobody attacks."""
        over = P99_RATIO_MAX * self.p99_ms(count)
        found = self._p99s(count)
        return sum(each > over for each in found) / len(found)

    def _p99s(self, count: int) -> list[float]:
        count = min(count, len(self._times))
        starts = range(0, len(self._times) - count + 1, count)
        return [p99_ms(self._times[at : at + count]) for at in starts]


class Cost(NamedTuple):
    """What an input cost. What cannot be told is NaN."""

    name: str
    times: int
    end: str  # "yes" and the statuses: answered to the end; else what happened
    answers: int = 0  # that came of so many; those of commands are not counted
    wrong: str = ""  # what its row does not expect of the answers
    cpu_ms: float = math.nan  # of all of them, without what the broker uses alone
    turn_ms: float = math.nan  # a bound: the longest turn took at most this
    p99_ms: float = math.nan  # infinite: no receipt came
    receipts: int = 1  # of which that is
    grown_kib: float = math.nan
    seconds: float = math.nan
    serves: str = "yes"  # a new client afterwards; else what is wrong, and what was done
    is_polite_lost: bool = False  # the polite client's connection or producer, or a receipt
    waits: tuple[float, ...] = ()  # seconds, for each of those receipts
    rounds: int = 1  # in which all that was sent

    @property
    def is_answered(self) -> bool:
        return self.end.startswith("yes")

    def is_over(self, alone: Alone) -> bool:
        """Whether the polite client waited longer than anybody may make it wait."""
        return self.p99_ms > min(P99_MS_MAX, P99_RATIO_MAX * alone.p99_ms(self.receipts))

    @property
    def each_ms(self) -> float:
        """CPU for each that was answered."""
        return self.cpu_ms / (self.answers or self.times * self.rounds)

    def and_more(self, other: Cost) -> Cost:
        """What this cost and then another round of the same."""
        waits = self.waits + other.waits
        return other._replace(
            answers=self.answers + other.answers,
            wrong=other.wrong or self.wrong,
            cpu_ms=self.cpu_ms + other.cpu_ms,
            turn_ms=max(self.turn_ms, other.turn_ms),
            p99_ms=p99_ms(waits),
            receipts=len(waits),
            grown_kib=self.grown_kib + other.grown_kib,
            seconds=self.seconds + other.seconds,
            is_polite_lost=self.is_polite_lost or other.is_polite_lost,
            waits=waits,
            rounds=self.rounds + other.rounds,
        )

    def faults(self, turn_ms_max: float) -> list[str]:
        """What may not be of a row."""
        about = f"{self.name} x {self.times}"
        found = []
        is_end = self.name in ENDS and self.end.startswith(CLOSED)
        is_end = is_end or self.end == NONE_THERE
        if not (self.is_answered or is_end):
            found.append(f"{about}: {self.end}")
        if self.wrong:
            found.append(f"{about} is answered by {self.wrong}")
        if self.is_polite_lost:
            found.append(f"{about}: the polite client lost its connection or a receipt")
        if self.serves.startswith("no"):
            found.append(f"{about}: a new client is served: {self.serves}")
        if self.turn_ms > turn_ms_max:
            found.append(f"{about}: a turn took {self.turn_ms:g} ms, {turn_ms_max:g} are allowed")
        return found

    def row(self, alone: Alone) -> str:
        """For the table; `alone` is the polite client without anybody else."""
        mark = " (over)" if self.is_over(alone) else ""
        cells = (
            self.name,
            self.times,
            self.end + (f" (not expected: {self.wrong})" if self.wrong else ""),
            figure(self.each_ms, ".3f"),
            figure(self.turn_ms, "g"),
            "lost" if self.is_polite_lost else figure(self.p99_ms, ".1f") + mark,
            figure(self.grown_kib, ".0f"),
            figure(self.seconds, ".1f"),
            self.serves,
        )
        return f"| {' | '.join(map(str, cells))} |"


HEAD = """\
| input | times | answered | CPU each, ms | turn at most, ms | p99 beside, ms | memory, KiB | s \
| serves after |
|---|---|---|---|---|---|---|---|---|"""


def figure(value: float, form: str) -> str:
    """A cell of the table; a dash for what cannot be told."""
    return "-" if math.isnan(value) else f"{value:{form}}"


DEAR_PART = 20  # one of so many is sent of requests that take so long that a row ends before
NONE_THERE = "has none"  # the other broker
CLOSED = "closed"
# Their answer is the end of the connection, as Pulsar's: a second CONNECT, an answer that nobody
# asked for. Who sends more requests ahead than there is room for may be sent away.
ENDS = {"CONNECT", "AUTH_RESPONSE", "flood of pipelined requests"}
NOT_PREPARED = "not prepared: "


class TimeIsUp(Exception):
    """A row took as long as it may."""


# What a broker can do to those who attack it. Others are faults of this program.
HURT = (TimeIsUp, ConnectionClosed, OSError, AssertionError)


class Account(NamedTuple):
    """What a broker has used so far, NaN when it is dead."""

    memory_kib: float
    cpu_s: float


class Attack:
    """One broker, a polite client, and who attacks."""

    def __init__(self, broker: Broker, share: float = 1.0, *, is_first: bool = False) -> None:
        """`share`: so much is made of what requests are about; `is_first`: broker and polite client
        have the processors before the attacker, who would have others.
        """
        self._is_first = is_first
        self.broker = broker
        self.stage = Stage(broker, share)
        self.restarts = 0
        self.alone_cpu_s = 0.0  # for each message of the polite client
        self._polites = 0
        self._welcome()

    def _welcome(self) -> None:
        """A polite client of a broker that was started, and what the broker does only once."""
        if self._is_first:
            assert self.broker.process is not None
            come_first(self.broker.process.pid)
        # 409: the broker was started again.
        assert self.broker.rest("PUT", f"/admin/v2/namespaces/{NAMESPACE}")[0] in (204, 409)
        with RawConnection(self.broker.port, timeout_s=SERVES_S_MAX) as raw:
            for n in range(BUNDLE_LOOKUPS):
                raw.lookup(f"{TOPIC}-bundle-{n}")
        self._new_polite()
        time.sleep(WARM_UP_S[self.broker.kind])

    def _new_polite(self) -> None:
        self._polites += 1
        self.polite = Polite(self.broker.port, f"{TOPIC}-{self._polites}")
        self._is_polite_lost = False
        if self._is_first:
            come_first(self.polite.pid)
        self._take()

    def alone(self, seconds: float) -> Alone:
        """The polite client while nobody attacks; what the broker uses then is no cost."""
        self.polite.take()
        cpu_s = self.broker.cpu_s()
        time.sleep(seconds)
        times = self.polite.take()
        self.alone_cpu_s = (self.broker.cpu_s() - cpu_s) / len(times)
        return Alone(times)

    def command(self, name: str, each: Input, times: int) -> Cost:
        """Commands of one connection; the answer to a last request tells that all were handled."""
        last = LAST[self.broker.kind]
        marker = wire.varint(LAST_REQUEST)

        def begin(stack: ExitStack) -> Callable[[], str]:
            scene = Scene(self.broker.port, f"{name.lower().replace(' ', '-')}-{times}")
            raw = stack.enter_context(scene.raw)
            each.prepare(scene)

            def frames() -> Iterator[bytes]:
                for n in range(times):
                    yield each.make(scene, n)
                yield last

            silence_s = SILENCE_S[self.broker.kind]
            return exchange_until(raw.socket, frames(), lambda tail, _: marker in tail, silence_s)

        return self._measured(name, times, begin)

    def endpoint(self, name: str, each: Request, times: int) -> Cost:
        """Requests on some connections, as many ahead of their answers as may wait."""
        numbers = self.stage.numbers(times)
        statuses: Counter[int] = Counter()

        def begin(stack: ExitStack) -> Callable[[], str]:
            each.prepare(self.stage, numbers)

            def run() -> str:
                requests = (each.make(self.stage, n) for n in numbers)
                answers = exchange(self.broker.web_port, requests, statuses=statuses)
                return f"{'yes' if answers.is_whole else CLOSED} {answers}"

            return run

        cost = self._measured(name, times, begin)
        wrong = sorted(status for status in statuses if not each.is_expected(name, status))
        return cost._replace(answers=statuses.total(), wrong=" ".join(map(str, wrong)))

    def pipelined(self, name: str, each: Request, times: int) -> Cost:
        """Requests on one connection, however many wait for their answers."""
        numbers = self.stage.numbers(times)
        count = 0

        def begin(stack: ExitStack) -> Callable[[], str]:
            each.prepare(self.stage, numbers)
            web = socket.create_connection(("127.0.0.1", self.broker.web_port))
            stack.enter_context(web)
            requests = (each.make(self.stage, n) for n in numbers)
            statuses: set[bytes] = set()

            def is_done(seen: bytes, answers: int) -> bool:
                nonlocal count
                count = answers
                statuses.update(STATUS.findall(seen))
                return answers >= times

            exchanged = exchange_until(web, requests, is_done, SILENCE_S["pyxbroker"])

            def run() -> str:
                end = exchanged()
                return " ".join([end, *sorted(each.decode() for each in statuses)])

            return run

        return self._measured(name, times, begin)._replace(answers=count)

    def peers(self, name: str, act: Callable[[int, int, int], int], most: int) -> Cost:
        """Peers that do something else than to ask and to read; at most so many of them."""
        done = 0

        def run() -> str:
            nonlocal done
            done = act(self.broker.port, self.broker.web_port, most)
            return "yes"

        return self._measured(name, 1, lambda _: run)._replace(times=max(done, 1))

    def _measured(
        self, name: str, times: int, begin: Callable[[ExitStack], Callable[[], str]]
    ) -> Cost:
        """What the function costs that `begin` returns; `begin` prepares it."""
        until = time.monotonic() + ROW_S_MAX
        with ExitStack() as stack:
            try:
                with time_limit(until):
                    run = begin(stack)
            except HURT as error:
                return self._unprepared(name, times, error)
            began = until - ROW_S_MAX
            if time.monotonic() > began + LARGE_SCENE_S:
                time.sleep(SETTLE_S)
            until = time.monotonic() + ROW_S_MAX  # anew: a scene may take long on a busy machine
            self._wait_quiet(until)
            turns = self._turns()  # which is work, so it comes before and after all that counts
            before = self._account()
            self._take()
            began = time.monotonic()
            try:
                with time_limit(until):
                    end = run()
            except HURT as error:
                end = told(error)
            self._wait_quiet(until)
            seconds = time.monotonic() - began
            times_beside = self._take()
            after = self._account()
            longest = longest_ms(turns, self._turns())
        used_s = after.cpu_s - before.cpu_s - self.alone_cpu_s * len(times_beside)
        return Cost(
            name,
            times,
            end,
            cpu_ms=max(used_s, 0.0) * 1000,  # NaN stays NaN
            turn_ms=longest,
            p99_ms=p99_ms(times_beside),
            receipts=len(times_beside),
            waits=tuple(times_beside),
            grown_kib=after.memory_kib - before.memory_kib,
            seconds=seconds,
            is_polite_lost=self._is_polite_lost,
            serves=self._after(),
        )

    def _unprepared(self, name: str, times: int, error: BaseException) -> Cost:
        self._take()  # so that a polite client that was lost meanwhile is known to be
        lost = self._is_polite_lost
        end = NOT_PREPARED + told(error)
        return Cost(name, times, end, is_polite_lost=lost, serves=self._after())

    def _account(self) -> Account:
        if self._is_dead():
            return Account(math.nan, math.nan)
        return Account(self.broker.distinct_memory_kib(), self.broker.cpu_s())

    def _turns(self) -> dict[float, int]:
        """None of Apache Pulsar, which has no such loop, and of one that is dead."""
        if self.broker.kind != "pyxbroker" or self._is_dead():
            return {}
        with urllib.request.urlopen(self.broker.web_url + "/metrics", timeout=60) as answer:
            text = answer.read().decode()
        return turns_of(text)

    def _is_dead(self) -> bool:
        return self.broker.process is None or self.broker.process.poll() is not None

    def _wait_quiet(self, until: float) -> None:
        """Until the broker does little more than to serve the polite client."""
        until = max(until, time.monotonic() + QUIET_S_MAX)
        while time.monotonic() < until and not self._is_dead():
            before = self.broker.cpu_s()
            time.sleep(QUIET_S)
            if self.broker.cpu_s() - before < QUIET_S * 0.5:
                return

    def _take(self) -> list[float]:
        """What the polite client's receipts took since the last call."""
        if self._is_polite_lost:
            return [math.inf]
        try:
            return self.polite.take()
        except PoliteLost:
            self._is_polite_lost = True
            return [math.inf]

    def _after(self) -> str:
        """Whether the broker serves a new client, and what had to be done for the next row."""
        serves = self._serves()
        if serves.startswith("no"):
            return f"{serves}; {self._start_again()}"
        if self._is_polite_lost:
            self.polite.close()
            self._new_polite()
        return serves

    def _serves(self) -> str:
        if self._is_dead():
            return "no: dead"
        began = time.monotonic()
        while True:
            try:
                with time_limit(began + SERVES_S_MAX), RawConnection(self.broker.port) as raw:
                    raw.producer(f"{TOPIC}-after")
                    raw.send(b"x", 0)
                    raw.expect(wire.SEND_RECEIPT)
            except HURT as error:
                if time.monotonic() > began + SERVES_S_MAX - 1:
                    return f"no: {told(error)}"
                time.sleep(0.5)
            else:
                seconds = time.monotonic() - began
                return "yes" if seconds < SERVES_SOON_S else f"after {seconds:.0f} s"

    def _start_again(self) -> str:
        self.restarts += 1
        self.stage.begin_again()
        self.polite.close()
        self.broker.kill()
        said = "started again"
        try:
            self.broker.start(START_S_MAX)
        except BrokerFailed:
            self.broker.close()
            self.broker.start(START_S_MAX)
            said = "started again, on no data, as it did not with its own"
        self._welcome()
        return said


@contextlib.contextmanager
def time_limit(until: float) -> Iterator[None]:
    """Raises ``TimeIsUp`` in whatever goes on at that time, in the main thread."""

    def is_up(*_: object) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, is_up)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, until - time.monotonic()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def told(error: BaseException) -> str:
    """An error as a cell of the table."""
    if isinstance(error, TimeIsUp):
        return "time is up"
    text = f"{type(error).__name__} {error}".strip()
    return " ".join(text.replace("|", "/").split())[:80]


def exchange_until(
    peer: socket.socket,
    pieces: Iterator[bytes],
    is_done: Callable[[bytes, int], bool],
    silence_s: float,
) -> Callable[[], str]:
    """Sends all pieces and reads all answers; ends when they are in, or when the peer hangs up.

    Returns "yes" when they are, and nothing more comes for `silence_s`. `is_done` gets the last
    bytes that came, and how many HTTP answers did.
    """

    def run() -> str:
        until = math.inf
        peer.setblocking(False)
        waiting = memoryview(b"")
        tail, answers, is_all_sent = b"", 0, False
        with selectors.DefaultSelector() as selector:
            selector.register(peer, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while time.monotonic() < until:
                for _, ready in selector.select(0.1):
                    try:
                        if ready & selectors.EVENT_READ:
                            data = peer.recv(1 << 20)
                            if not data:
                                return "yes" if until < math.inf else CLOSED
                            seen = tail + data
                            answers += seen.count(b"HTTP/1.1 ") - tail.count(b"HTTP/1.1 ")
                            tail = seen[-64:]
                            if until < math.inf or is_done(seen, answers):
                                # Commands that wait for something are answered after it.
                                until = time.monotonic() + silence_s
                        if ready & selectors.EVENT_WRITE and not is_all_sent:
                            if not waiting:
                                waiting = memoryview(b"".join(_some(pieces)))
                                is_all_sent = not waiting
                                if is_all_sent:
                                    selector.modify(peer, selectors.EVENT_READ)
                                    continue
                            waiting = waiting[peer.send(waiting) :]
                    except BlockingIOError:
                        continue
                    except ConnectionError:
                        return CLOSED
        return "yes"

    return run


def _some(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """What is sent in one write: many small ones come to the broker in one read."""
    size = 0
    for each in pieces:
        yield each
        size += len(each)
        if size >= WRITE_BYTES:
            return


def times_for(size: int, times: int, bytes_max: int) -> int:
    """How often: fewer of what is large."""
    return max(1, min(times, bytes_max // size))


def is_wanted(name: str, only: Sequence[str]) -> bool:
    """Whether a name has one of these in it; all have when there are none."""
    return not only or any(each in name for each in only)


Row = Callable[[], Cost]
"""Runs a row of the table; it may be run again."""


def attack_all(
    attack: Attack,
    times: int,
    bytes_max: int,
    only: Sequence[str] = (),
    is_passed_over: Callable[[str], bool] = lambda name: False,
) -> Iterator[Row]:
    """Every input, alone and many times, but for those endpoints that are passed over."""
    scene = Scene(attack.broker.port, "sizes")
    with scene.raw:
        for name, each in (COMMANDS | MORE_COMMANDS).items():
            if is_wanted(name, only):
                most = times_for(len(each.make(scene, 0)), times, bytes_max)
                for count in dict.fromkeys((1, 1 if each.ends else most)):
                    yield partial(attack.command, name, each, count)
    for name, request in endpoints_of(attack.broker.kind).items():
        if not is_wanted(name, only) or is_passed_over(name):
            continue
        if request is None:
            yield partial(Cost, name, 1, NONE_THERE, serves="-")
        else:
            most = times_for(len(request.make(attack.stage, 0)), times, bytes_max)
            if request.is_dear:
                most = min(most, max(2, most // DEAR_PART))
            for count in dict.fromkeys((1, most)):
                yield partial(attack.endpoint, name, request, count)


def flood_all(attack: Attack, times_max: int, only: Sequence[str] = ()) -> Iterator[Row]:
    """Every flood, as large as it is or as many times as there may be."""
    for name, (each, times) in COMMAND_FLOODS.items():
        if is_wanted(name, only):
            yield partial(attack.command, f"flood of {name}", each, min(times, times_max))
    for name, (request, times) in REQUEST_FLOODS.items():
        if is_wanted(name, only):
            yield partial(attack.pipelined, f"flood of {name}", request, min(times, times_max))
    for name, act in PEERS.items():
        if is_wanted(name, only):
            yield partial(attack.peers, name, act, times_max)


def with_enough(row: Row, alone: Alone) -> Cost:
    """A row; where its p99 is over and is that of few receipts, more rounds of it, together."""
    cost = row()
    if cost.is_over(alone) and cost.waits:
        # To the end, not only until it is no longer over: that would come by chance.
        while cost.receipts < ENOUGH and cost.rounds < ROUNDS_MAX and not cost.faults(math.inf):
            cost = cost.and_more(row())
    return cost


def print_all(costs: Iterable[Cost], alone: Alone) -> list[str]:
    """Prints the table; what is wrong in it."""
    faults: list[str] = []
    over: list[str] = []
    for cost in costs:
        print(cost.row(alone), flush=True)
        faults += cost.faults(TURN_MS_MAX)
        if cost.is_over(alone):
            over.append(f"{cost.name} x {cost.times}")
    print(f"\np99 over what it may be: {', '.join(over) or 'none'}")
    print("\n".join(["\nWhat may not be:", *faults]) if faults else "Nothing else is wrong.")
    return faults


def said(alone: Alone) -> str:
    """In words: of all receipts, and of as few as a short row has."""
    return (
        f"{alone.p99_ms(len(alone)):.1f} ms, {alone.p99_ms(FEW):.1f} ms of {FEW}"
        f" ({alone.over_part(FEW):.0%} of those are over)"
    )


def held_up(broker: Broker) -> list[str]:
    """What the broker's log says of turns that took longer than 100 ms: what ran in them."""
    text = (broker.directory / "output.log").read_text(errors="replace")
    return [line for line in text.splitlines() if '"the event loop was held up"' in line]


def defects(broker: Broker) -> list[str]:
    """What the broker's log says of errors that nobody has thought of: the first of them, whole."""
    text = (broker.directory / "output.log").read_text(errors="replace")
    _, found, told = text.partition("Traceback (most recent call last):")
    return [found + told[:DEFECT_CHARACTERS]] if found else []


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=256, help="of one input at most, in all")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="inputs with this in their name (repeatable)",
    )
    parser.add_argument("--broker", choices=tuple(WARM_UP_S), default="pyxbroker")
    parser.add_argument(
        "--burners", action="store_true", help="busy loops of the least priority, one for each core"
    )
    parser.add_argument(
        "--first", action="store_true", help="the broker and the polite client before the attacker"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs the suite; the exit status."""
    options = parsed(arguments)
    workspace = Path(tempfile.mkdtemp(prefix="hostile-"))
    settings = {"transactionCoordinatorEnabled": "true"}
    broker = Broker(options.broker, workspace / "broker", settings=settings)
    with burners() if options.burners else contextlib.nullcontext():
        try:
            broker.start(START_S_MAX)
            attack = Attack(broker, is_first=options.first)
            alone = attack.alone(ALONE_S)
            print(f"p99 without anybody else: {said(alone)}", end="; ")
            print(f"CPU of a message: {attack.alone_cpu_s * 1000:.3f} ms\n\n{HEAD}", flush=True)
            rows = chain(
                attack_all(attack, options.times, options.megabytes << 20, options.only),
                flood_all(attack, 20 * options.times, options.only),
            )
            faults = print_all((with_enough(row, alone) for row in rows), alone)
            for line in held_up(broker) + defects(broker):
                print(line)
            print(f"p99 without anybody else, in the end: {said(attack.alone(ALONE_S))}")
            print(f"The polite client has all of its {attack.polite.end()} messages.")
        finally:
            broker.close()
            shutil.rmtree(workspace, ignore_errors=True)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
