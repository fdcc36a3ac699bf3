"""What one client without any right can do to a broker, each as a scene against a real process.

    python -m torture.strangers [NAME ...]

Prints one row of a markdown table for each scene: what was done, what was seen, and whether that is
ok or broken. A scene has a broker of its own and at most half a minute; a broker that grows by more
than 1.5 GiB is killed, which is broken. Exit status 1 when a scene is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil
from harness import wire
from harness.brokers import Broker
from harness.raw import Answer, ConnectionClosed, RawConnection

NAMESPACE = "public/default"
TOPIC = f"persistent://{NAMESPACE}/stranger"
REST = f"/admin/v2/persistent/{NAMESPACE}/stranger"
HEALTH = "/admin/v2/brokers/health"
INT_MAX = 2**31 - 1

SCENE_S_MAX = 30.0
GROWN_MIB_MAX = 1536  # then the broker is killed
GROWN_MIB_OK = 64
WAIT_S_OK = 0.5  # of a PING, on a machine that others use as well
LOG_BYTES_OK = 32 << 10
LOOK_S = 0.05

# What a broker can do to those who try it. Others are faults of this program.
HURT = (ConnectionClosed, OSError, AssertionError)


class Seen(NamedTuple):
    """What a scene saw, and whether it may be so."""

    what: str
    is_ok: bool


class Watch:
    """Looks at a broker's memory, and ends it when it grows too much or its time is over."""

    def __init__(self, broker: Broker) -> None:
        assert broker.process is not None
        self.why_killed = ""
        self._child = broker.process
        self._process = psutil.Process(broker.process.pid)
        self._first = self._most = self._process.memory_info().rss
        self._deadline = time.monotonic() + SCENE_S_MAX
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S) and not self.why_killed:
            try:
                self._most = max(self._most, self._process.memory_info().rss)
            except psutil.NoSuchProcess:
                return  # The stage tells that it ended by itself.
            if self.grown_mib > GROWN_MIB_MAX:
                self._kill("it grew by more than 1.5 GiB")
            elif time.monotonic() > self._deadline:
                self._kill(f"the scene was not over after {SCENE_S_MAX:g} s")

    def _kill(self, why: str) -> None:
        self.why_killed = why
        self._child.kill()  # does nothing when it has ended

    @property
    def grown_mib(self) -> float:
        """By how much its memory has grown at most."""
        return (self._most - self._first) / (1 << 20)

    def stop(self) -> None:
        """Looks no more."""
        self._over.set()
        self._thread.join()


class Stage:
    """A broker in a folder of its own, and the clients of a scene."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.broker = Broker("pyxbroker", folder)
        stack.callback(self.broker.close)
        self.broker.start()
        self.watch = Watch(self.broker)
        stack.callback(self.watch.stop)
        self._stack = stack

    def client(self, **more: bool) -> RawConnection:
        """Another connection."""
        return self._stack.enter_context(RawConnection(self.broker.port, **more))

    def ask(
        self, method: str, path: str, body: str | None = None, timeout_s: float = 2.0
    ) -> int | None:
        """The status of a request; None when no answer came in time."""
        web = http.client.HTTPConnection("127.0.0.1", self.broker.web_port, timeout=timeout_s)
        try:
            web.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            return web.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            web.close()

    @property
    def fate(self) -> str:
        """What became of the broker, in words; empty while it runs."""
        assert self.broker.process is not None
        if self.watch.why_killed:
            return f"was killed, for {self.watch.why_killed}"
        ended = self.broker.process.poll()
        return "" if ended is None else f"ended with {ended}"

    @property
    def log_bytes(self) -> int:
        """How much it has logged."""
        return (self.broker.directory / "output.log").stat().st_size


def status(answer: int | None) -> str:
    """In words."""
    return "no answer" if answer is None else str(answer)


def longest_wait(
    other: RawConnection, asker: RawConnection, kinds: set[int]
) -> tuple[float, Answer]:
    """The longest that a PING of another client waited, in seconds, until the asker had one of
    these answers; and the answer.
    """
    longest = 0.0
    while True:
        began = time.monotonic()
        other.command(wire.PING, {})
        other.wait_for(wire.PONG, SCENE_S_MAX)
        longest = max(longest, time.monotonic() - began)
        with contextlib.suppress(TimeoutError):
            answer = asker.receive(0.0005)
            if answer.type in kinds:
                return longest, answer


def open_producer(client: RawConnection, topic: str, name: str) -> Answer:
    """The answer to a PRODUCER, which may be a refusal."""
    client.command(wire.LOOKUP, {1: topic, 2: client.request_id()})
    client.expect(wire.LOOKUP_RESPONSE)
    client.command(wire.PRODUCER, {1: topic, 2: 1, 3: client.request_id(), 4: name})
    return client.receive()


def is_stored(client: RawConnection) -> bool:
    """Whether the SEND before was stored, and not refused."""
    answer = client.receive()
    assert answer.type in (wire.SEND_RECEIPT, wire.SEND_ERROR), answer
    return answer.type == wire.SEND_RECEIPT


def longest_name(client: RawConnection, letter: str, lengths: tuple[int, ...]) -> int:
    """Opens a producer of a topic, both with names as long as they may be of these; how long."""
    for length in lengths:
        name = letter * length
        answer = open_producer(client, f"persistent://{NAMESPACE}/{name}", name)
        if answer.type == wire.PRODUCER_SUCCESS:
            return length
    raise AssertionError(f"no name was taken: {answer}")


# --- the scenes ---------------------------------------------------------------------------------


def partitions(stage: Stage) -> Seen:
    """PUT of 2,147,483,647 partitions, DELETE, PUT of 2"""
    put = stage.ask("PUT", f"{REST}/partitions", str(INT_MAX), 1.0)
    put_at = time.monotonic()
    health = stage.ask("GET", HEALTH)
    took_s = time.monotonic() - put_at
    time.sleep(max(0.0, 5.0 - took_s))
    grown = stage.watch.grown_mib
    delete = stage.ask("DELETE", f"{REST}/partitions?force=true", timeout_s=5.0)
    again = stage.ask("PUT", f"{REST}/partitions", "2", 5.0)
    return Seen(
        f"PUT {status(put)}; health {status(health)} after {took_s * 1000:.0f} ms;"
        f" {grown:.0f} MiB more after 5 s; DELETE {status(delete)}, then PUT of 2 {status(again)}",
        health == 200 and grown < GROWN_MIB_OK and again == 204,
    )


def names(stage: Stage) -> Seen:
    """A topic of as many `x` as are taken (60,000 or 1,000), and lists of `.*x.*y`"""
    stranger, other = stage.client(), stage.client()
    length = longest_name(stranger, "x", (60_000, 1_000))
    waits = []
    pattern = f"{NAMESPACE}/.*x.*y"
    for kind, answer, fields in (
        (wire.GET_TOPICS_OF_NAMESPACE, wire.GET_TOPICS_OF_NAMESPACE_RESPONSE, {2: NAMESPACE}),
        (wire.WATCH_TOPIC_LIST, wire.WATCH_TOPIC_LIST_SUCCESS, {2: 1, 3: NAMESPACE}),
    ):
        stranger.command(kind, {1: stranger.request_id(), 4: pattern} | fields)
        waits.append(longest_wait(other, stranger, {answer, wire.ERROR})[0])
    return Seen(
        f"a name of {length:,} was taken; a PING of another client waited {ms(waits[0])} ms"
        f" (list), {ms(waits[1])} ms (watch)",
        max(waits) < WAIT_S_OK,
    )


def ms(seconds: float) -> str:
    """Milliseconds, in words."""
    return f"{seconds * 1000:,.{1 if seconds < 0.01 else 0}f}"


def unknown_acks(stage: Stage) -> Seen:
    """One ACK of 60,000 positions that nobody has, of a subscription with 200 consumers"""
    stranger, other = stage.client(), stage.client()
    stranger.producer(TOPIC)
    for number in range(200):
        fields = {1: TOPIC, 2: "sub", 3: wire.SHARED, 4: number, 5: stranger.request_id()}
        stranger.command(wire.SUBSCRIBE, fields)
    for _ in range(200):
        stranger.wait_for(wire.SUCCESS)
    stranger.send(b"x", 0)
    ledger, _ = wire.position(stranger.wait_for(wire.SEND_RECEIPT).data(3))
    ids = [wire.message_id(ledger, 10_000_000 + number) for number in range(60_000)]
    frame = wire.command(wire.ACK, {1: 199, 2: wire.INDIVIDUAL, 3: ids, 8: 1})
    began = time.monotonic()
    stranger.write(frame)
    wait, answer = longest_wait(other, stranger, {wire.ACK_RESPONSE})
    took = time.monotonic() - began
    outcome = f"refused ({answer.data(5).decode()})" if 4 in answer.fields else "taken"
    return Seen(
        f"{len(frame):,} bytes; {outcome} after {ms(took)} ms; a PING of another client"
        f" waited {ms(wait)} ms",
        wait < WAIT_S_OK,
    )


def client_version(stage: Stage) -> Seen:
    """CONNECT with a client version that is not UTF-8, a consumer, REST `terminate`"""
    other, stranger = stage.client(), stage.client(handshake=False)
    other.producer(TOPIC)
    stranger.command(wire.CONNECT, {1: b"\xff\xfe\xfd", 4: 21})
    try:
        is_in = stranger.receive().type == wire.CONNECTED
        if is_in:
            stranger.subscribe(TOPIC, sub_type=wire.SHARED)
    except ConnectionClosed:
        is_in = False
    assert other.subscribe(TOPIC, sub_type=wire.SHARED).type == wire.SUCCESS
    other.flow(10)
    metrics = stage.ask("GET", "/metrics", timeout_s=5.0)
    terminate = stage.ask("POST", f"{REST}/terminate", timeout_s=5.0)
    told = heard(other)
    return Seen(
        f"{'let in' if is_in else 'sent away'}; /metrics {status(metrics)}; terminate"
        f" {status(terminate)}; another consumer: {told}",
        metrics == 200 and terminate == 200 and told == "told of the end",
    )


def heard(client: RawConnection) -> str:
    """What a consumer of a topic that was ended hears of it."""
    told = "not told"
    try:
        while True:
            if client.receive(1.0).type == wire.REACHED_END_OF_TOPIC:
                told = "told of the end"
    except TimeoutError:
        return told
    except ConnectionClosed:
        return "disconnected"


def refused_sends(stage: Stage) -> Seen:
    """20 SENDs of 32 bytes with a wrong checksum, to a topic with an odd name"""
    stranger = stage.client()
    # U+10FFFF is four bytes, nothing that can be printed, and ten characters when it is escaped.
    length = longest_name(stranger, "\U0010ffff", (2_000, 256))
    before = stage.log_bytes
    sent = b"".join(wire.send(1, n, b"", b"x" * 6, break_checksum=True) for n in range(20))
    stranger.write(sent)
    for _ in range(20):
        stranger.wait_for(wire.SEND_ERROR)
    time.sleep(1.0)
    logged = stage.log_bytes - before
    return Seen(
        f"a name of {length:,} characters was taken; {len(sent)} bytes sent, {logged:,} logged",
        logged < LOG_BYTES_OK,
    )


def batch_count(stage: Stage) -> Seen:
    """A SEND that counts 2,147,483,647 messages; a part of it acknowledged; a reconnect"""
    stranger, other = stage.client(), stage.client()
    other.producer(TOPIC)
    assert other.subscribe(TOPIC, sub_type=wire.SHARED).type == wire.SUCCESS
    other.flow(1000)
    stranger.producer(TOPIC)
    meta = wire.metadata("raw", 0, int(time.time() * 1000), fields={11: INT_MAX})
    stranger.write(wire.send(1, 0, meta, b"the counted one"))
    was_stored = is_stored(stranger)
    other.send(b"the next one", 0)
    got = delivered(other, 2)
    waited = "" if b"the next one" in got else " (not within 2 s)"
    if was_stored:
        # Four of its first ten messages, as a client acknowledges them; six are left.
        ledger, entry = got[b"the counted one"]
        part = wire.encode({1: ledger, 2: entry, 5: [0b1111110000], 6: 10})
        other.command(wire.ACK, {1: 1, 2: wire.INDIVIDUAL, 3: part, 8: other.request_id()})
        other.wait_for(wire.ACK_RESPONSE)
    other.command(wire.CLOSE_CONSUMER, {1: 1, 2: other.request_id()})
    other.wait_for(wire.SUCCESS)
    other.subscribe(TOPIC, consumer_id=2, sub_type=wire.SHARED)
    for _ in range(3):
        other.flow(INT_MAX, 2)
    again = delivered(other, 2)
    lost = {b"the next one", *([b"the counted one"] if was_stored else [])} - again.keys()
    which = ", ".join(sorted(body.decode() for body in lost)) or "nothing"
    return Seen(
        f"{'stored' if was_stored else 'refused'}; the next message of another client was"
        f" {'not ' if waited else ''}delivered{waited}; lost after the reconnect: {which}",
        not waited and not lost,
    )


def delivered(client: RawConnection, idle_s: float) -> dict[bytes, tuple[int, int]]:
    """Bodies and positions of the messages that come until nothing comes for so long."""
    got = {}
    with contextlib.suppress(TimeoutError):
        while True:
            frame = client.receive(idle_s)
            if frame.type == wire.MESSAGE:
                got[wire.parse_payload(frame.rest).body] = wire.position(frame.data(2))
    return got


def chunk_uuids(stage: Stage) -> Seen:
    """First chunks of 1,000 messages with a uuid of 5 MB each, or as many as go in 20 s"""
    stranger, taker = stage.client(), stage.client()
    stranger.producer(TOPIC)
    taker.subscribe(TOPIC, sub_type=wire.SHARED)
    taker.flow(10_000)
    uuid = b"u" * 4_999_996
    stored = count = 0
    until = time.monotonic() + 20
    try:
        while count < 1_000 and time.monotonic() < until:
            chunk = {26: uuid + count.to_bytes(4, "big").hex().encode(), 27: 2, 28: 100, 29: 0}
            meta = wire.metadata("raw", count, int(time.time() * 1000), fields=chunk)
            stranger.write(wire.send(1, count, meta, b"x"))
            count += 1
            if is_stored(stranger):
                stored += 1
                position = taker.wait_for(wire.MESSAGE).data(2)
                taker.command(wire.ACK, {1: 1, 2: wire.INDIVIDUAL, 3: position})
    except HURT:
        if not stage.fate:
            raise
    grown = stage.watch.grown_mib
    return Seen(
        f"{count:,} sent, {stored:,} stored and taken; {grown:,.0f} MiB more", grown < GROWN_MIB_OK
    )


def stray_commands(stage: Stage) -> Seen:
    """FLOW and ACK for a consumer that there is not; a topics pattern that is no text"""
    stranger = stage.client()
    stranger.flow(10, 77)
    stranger.command(wire.ACK, {1: 77, 2: wire.INDIVIDUAL, 3: wire.message_id(1, 1)})
    try:
        answer = f"command {stranger.receive(1.0).type}"
    except TimeoutError:
        answer = "silence"
    except ConnectionClosed:
        answer = "closed"
    counted = counter(stage, "pyxbroker_stray_commands_total")
    asker = stage.client()
    asker.command(wire.GET_TOPICS_OF_NAMESPACE, {1: 1, 2: NAMESPACE, 4: b"\xff"})
    text = asker.expect(wire.ERROR).data(3).decode()
    return Seen(
        f"{answer}, {counted:.0f} counted in /metrics; the refusal says: {text}".replace("|", "/"),
        (answer != "silence" or counted == 2) and not tells_insides(text),
    )


def tells_insides(text: str) -> bool:
    """Whether a sentence for clients has what Python calls an error, its bytes, or a file."""
    return (
        re.search(r"\w+(Error|Exception)\b|Traceback|\bb'|(?<![\w:/])/\w+/[\w./-]+", text)
        is not None
    )


def counter(stage: Stage, name: str) -> float:
    """The sum of a counter's series in /metrics; 0 when there is none."""
    text = stage.broker.request("GET", "/metrics")[1]
    return sum(float(found) for found in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))


SCENES: dict[str, Callable[[Stage], Seen]] = {
    "partitions": partitions,
    "names": names,
    "unknown-acks": unknown_acks,
    "client-version": client_version,
    "refused-sends": refused_sends,
    "batch-count": batch_count,
    "chunk-uuids": chunk_uuids,
    "stray-commands": stray_commands,
}


@contextlib.contextmanager
def stage_of(folder: Path) -> Iterator[Stage]:
    """A broker that is gone at the end."""
    with ExitStack() as stack:
        yield Stage(folder, stack)


def play(scene: Callable[[Stage], Seen]) -> Seen:
    """What a scene saw; a broker that was killed, or did not answer at all, is broken."""
    with (
        tempfile.TemporaryDirectory(prefix="stranger-") as folder,
        stage_of(Path(folder)) as stage,
    ):
        try:
            seen = scene(stage)
        except HURT as error:
            seen = Seen(f"{type(error).__name__}: {error}", False)
        if fate := stage.fate:
            return Seen(f"{seen.what}; the broker {fate}", False)
        return seen


def main(arguments: list[str] | None = None) -> int:
    """Plays the scenes that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="*", choices=[*SCENES, "all"], default="all")
    names = parser.parse_args(arguments).name
    is_ok = True
    print("| what a stranger does | what is seen | |\n|---|---|---|", flush=True)
    for name in SCENES if "all" in names else names:
        seen = play(SCENES[name])
        is_ok &= seen.is_ok
        verdict = "ok" if seen.is_ok else "broken"
        print(f"| {SCENES[name].__doc__} | {seen.what} | {verdict} |", flush=True)
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
