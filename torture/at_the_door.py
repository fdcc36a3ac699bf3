"""What comes to the ports and does not say who it is, beside a client that behaves.

    python -m torture.at_the_door [--count N] [--seconds S] [--rounds R] [--burners] [--real-time]
        [SCENE ...]

Each scene holds N half-open connections (on each of the four ports at once, or more on one), or
tries passwords and tokens for S seconds, against a real process with TLS and authentication. It is
played twice in turn, R times: as a control at the door of another broker on the same machine, and
at that of the broker which the polite client uses. What the control costs the polite client is what
the machine costs it, whose cores the attacker and its victim want as well; only what is beyond is
the broker's.

Prints one row of a markdown table for each scene: how long the receipts of the polite client took,
alone, beside the control and beside the scene; both ratios; how long a first login of somebody else
took; the longest turn of the broker's loop (a bound of the histogram in /metrics), its CPU, and how
much it grew. With --burners the processors are awake all the time; with --real-time the brokers and
the polite client come before all else on the machine, the attacker included, so that others' load
is out of the figures (for who may ask for that: root). Exit status 1 when the polite client waited
more than twice as long as alone (whatever the control says) and more than 5 ms, or a first login
took more than two seconds.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import selectors
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

import bcrypt
import trustme
from harness import wire
from harness.brokers import Broker, free_ports
from harness.certificates import write_certificate
from harness.raw import RawConnection
from harness.tokens import BASIC, SECRET, TOKENS, data_url, token
from harness.turns import Turns, longest_ms, turns_of

from torture.burners import burners, threads_of
from torture.polite import Polite, p99_ms

HOST = "127.0.0.1"
COUNT = 4_000
COUNT_OF_ONE = 10_000
SECONDS = 12.0  # longer than a half-open connection may last
SETTLING_S = 2.0  # after which what a scene has left behind is over
QUIET_S = 5.0
RATIO_MAX = 2.0
P99_MS_OK = 5.0  # of a machine that others use as well: twice of nearly nothing is nothing
FIRST_LOGIN_S_MAX = 2.0
NOTHING: Mapping[int, bytes] = {}
GUESSED = 8  # of the users
REAL_TIME = 5  # a priority
GUESSERS = 60  # connections at a time, from addresses of their own
GOING_S = 1.0  # in which those that hang up in one moment are noticed


def client_hello() -> bytes:
    """What a handshake begins with."""
    sent = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return sent.read()


HELLO = client_hello()


class Half(NamedTuple):
    """One half of a round: a scene at the door of one broker, whichever the polite client uses."""

    p99_ms: float  # of the polite client
    first_login_s: float
    turn_ms: float  # a bound: the longest turn of that broker's loop took at most this
    cpu_s: float  # of that broker
    grown_mib: float
    what: str


class Seen(NamedTuple):
    """What a scene did to others: medians of its rounds, and the worst of what has a limit."""

    scene: str
    alone_ms: float  # the p99 of the polite client
    control_ms: float  # while the scene was at another broker's door
    beside_ms: float
    first_login_s: float
    turn_ms: float = 0.0
    cpu_s: float = 0.0
    grown_mib: float = 0.0
    what: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether others hardly noticed."""
        return (
            self.beside_ms <= max(RATIO_MAX * self.alone_ms, P99_MS_OK)
            and self.first_login_s <= FIRST_LOGIN_S_MAX
        )

    def row(self) -> str:
        """Of the table."""
        cells = (
            self.scene,
            f"{self.alone_ms:.2f}",
            f"{self.control_ms:.2f}",
            f"{self.beside_ms:.2f}",
            f"{self.beside_ms / self.alone_ms:.1f}",
            f"{self.beside_ms / self.control_ms:.1f}",
            f"{self.first_login_s:.2f}",
            f"{self.turn_ms:g}",
            f"{self.cpu_s:.2f}",
            f"{self.grown_mib:.0f}",
            self.what,
            "ok" if self.is_ok else "broken",
        )
        return f"| {' | '.join(cells)} |"


HEAD = """\
| at the door | p99 alone, ms | p99, at another broker's door, ms | p99 beside, ms | x alone \
| x control | first login, s | turn at most, ms | CPU, s | grown, MiB | seen | |
|---|---|---|---|---|---|---|---|---|---|---|---|"""


class Target:
    """A broker with all four ports that asks who clients are; the polite one may be nobody. So many
    may log in there who have not yet.
    """

    def __init__(self, folder: Path, stack: ExitStack, logins: int) -> None:
        folder.mkdir()
        self.tls_port, self.web_tls_port = free_ports(2)
        certificate, key = write_certificate(trustme.CA(), folder, "broker", "localhost", HOST)
        hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(10)).decode()
        users = folder / "users"
        numbers = range(max(logins + 1, GUESSED))
        users.write_text("".join(f"user-{number}:{hashed}\n" for number in numbers))
        settings = {
            "brokerServicePortTls": str(self.tls_port),
            "webServicePortTls": str(self.web_tls_port),
            "tlsCertificateFilePath": str(certificate),
            "tlsKeyFilePath": str(key),
            "authenticationEnabled": "true",
            "authenticationProviders": f"{TOKENS},{BASIC}",
            "tokenSecretKey": data_url(SECRET),
            "basicAuthConf": users.as_uri(),
            "anonymousUserRole": "polite",
        }
        self.broker = Broker("pyxbroker", folder / "broker", settings=settings)
        stack.callback(self.broker.close)
        self.broker.start()
        with RawConnection(self.broker.port) as raw:
            raw.producer("persistent://public/default/warm-up")
        self.is_under_way = Event()  # a scene: somebody else may log in now
        self._users = iter(numbers)
        self.first_login_s()  # with it comes what the broker imports for the first one

    @property
    def ports(self) -> tuple[int, int, int, int]:
        """All of them."""
        return self.broker.port, self.tls_port, self.broker.web_port, self.web_tls_port

    def first_login_s(self) -> float:
        """How long somebody takes who logs in by a password that nobody has shown yet."""
        began = time.monotonic()
        with contextlib.closing(connect_from("127.0.9.9", self.broker.port)) as peer:
            peer.settimeout(30)
            peer.sendall(basic_connect(f"user-{next(self._users)}:right"))
            expect_connected(peer)
        return time.monotonic() - began

    def turns(self) -> Turns:
        """Of its loop so far."""
        return turns_of(self.broker.request("GET", "/metrics")[1])


class Stage:
    """The broker that the polite client uses, and another one for the control."""

    def __init__(self, folder: Path, stack: ExitStack, rounds: int) -> None:
        logins = rounds * len(SCENES)
        self.target = Target(folder / "own", stack, logins)
        self.other = Target(folder / "other", stack, logins)
        self.target.broker.rest("PUT", "/admin/v2/namespaces/public/polite")
        self.polite = Polite(self.target.broker.port)
        stack.callback(self.polite.close)

    def come_first(self) -> None:
        """The brokers, and before them the polite client, are scheduled in real time."""
        for target in (self.target, self.other):
            assert target.broker.process is not None
            _come_first(target.broker.process.pid, REAL_TIME)
        _come_first(self.polite.pid, REAL_TIME + 1)


def _come_first(pid: int, priority: int) -> None:
    """All its threads but those that it lets come last by itself."""
    for thread in threads_of(pid):
        if os.getpriority(os.PRIO_PROCESS, thread) <= os.getpriority(os.PRIO_PROCESS, pid):
            os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(priority))


def connect_from(address: str, port: int) -> socket.socket:
    """A connection from an address of this machine."""
    return socket.create_connection((HOST, port), timeout=10, source_address=(address, 0))


def expect_connected(peer: socket.socket) -> None:
    """Raises AssertionError when what a peer is answered first is anything else."""
    reader = wire.FrameReader()
    while data := peer.recv(1 << 10):
        for frame in reader.feed(data):
            assert frame.type == wire.CONNECTED, frame
            return
    raise AssertionError("closed without an answer")


def basic_connect(shown: str) -> bytes:
    """A CONNECT with user and password."""
    return wire.command(wire.CONNECT, {1: "guesser", 3: shown.encode(), 4: 21, 5: "basic"})


# --- scenes -----------------------------------------------------------------------------------


class HalfOpenPeers:
    """Connections that say nothing, or no more than a beginning."""

    def __init__(self) -> None:
        self._peers: list[socket.socket] = []

    def open(self, port: int, count: int, says: bytes = b"") -> None:
        """Does not wait for the broker to accept them."""
        for number in range(count):
            peer = socket.socket()
            peer.setblocking(False)
            peer.bind((f"127.0.{number // 4096 + 2}.{port % 250 + 1}", 0))
            with contextlib.suppress(BlockingIOError):
                peer.connect((HOST, port))
            self._peers.append(peer)
            if number % 100 == 99:
                time.sleep(0.02)  # 5,000 in a second
        if says:
            time.sleep(0.5)
            for peer in self._peers[-count:]:
                with contextlib.suppress(OSError):
                    peer.send(says)

    def close(self) -> int:
        """Lets go of them; how many the broker has not closed by itself."""
        left = 0
        for peer in self._peers:
            with contextlib.suppress(OSError):
                try:
                    left += bool(peer.recv(1 << 10))
                except BlockingIOError:
                    left += 1
            peer.close()
        return left


Act = Callable[[Target, int, float], str]


def silent(target: Target, count: int, seconds: float) -> str:
    """as many silent connections on each of the four ports"""
    return _held(target, dict.fromkeys(target.ports, count), seconds)


def begun(target: Target, count: int, seconds: float) -> str:
    """the beginning of a handshake or of a command on each of the four ports"""
    said = dict(zip(target.ports, (b"\0\0", HELLO[:40], b"GET /adm", HELLO[:40]), strict=True))
    return _held(target, dict.fromkeys(target.ports, count), seconds, said)


def hellos(target: Target, count: int, seconds: float) -> str:
    """whole beginnings of handshakes that are not gone on with, on both ports for TLS"""
    ports = (target.tls_port, target.web_tls_port)
    return _held(target, dict.fromkeys(ports, count), seconds, dict.fromkeys(ports, HELLO))


def on_one(target: Target, count: int, seconds: float) -> str:
    """more of them on the port for TLS"""
    return _held(target, {target.tls_port: count * COUNT_OF_ONE // COUNT}, seconds)


def on_https(target: Target, count: int, seconds: float) -> str:
    """more of them on the port for HTTPS"""
    return _held(target, {target.web_tls_port: count * COUNT_OF_ONE // COUNT}, seconds)


def _held(
    target: Target, counts: dict[int, int], seconds: float, said: Mapping[int, bytes] = NOTHING
) -> str:
    peers = HalfOpenPeers()
    until = time.monotonic() + seconds
    for port, count in counts.items():
        peers.open(port, count, said.get(port, b""))
    target.is_under_way.set()
    time.sleep(max(until - time.monotonic(), 0.0))
    total = sum(counts.values())
    return f"{total:,} opened, {peers.close():,} still open after {seconds:g} s"


def guesses(target: Target, count: int, seconds: float) -> str:
    """passwords and tokens that are wrong, from 20 addresses, by both protocols"""
    answered = 0
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for number in range(GUESSERS):
            _guess(target, selector, number)
        number = GUESSERS
        while time.monotonic() < until:
            for key, _ in selector.select(0.1):
                with contextlib.suppress(OSError):
                    answered += bool(key.fileobj.recv(1 << 10))  # type: ignore[union-attr]
                if answered > 2 * GUESSERS:
                    # Each address has been wrong: one that has not has its turn as others do.
                    target.is_under_way.set()
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
                _guess(target, selector, number)
                number += 1
        target.is_under_way.set()
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    return f"{answered:,} guesses answered"


def _guess(target: Target, selector: selectors.BaseSelector, number: int) -> None:
    by_http = number % 3 == 0
    peer = connect_from(f"127.0.1.{number % 20 + 1}", target.ports[2 if by_http else 0])
    shown = f"user-{number % GUESSED}:wrong-{number}"
    if by_http:
        basic = base64.b64encode(shown.encode()).decode()
        peer.sendall(
            b"GET /admin/v2/clusters HTTP/1.1\r\nHost: x\r\nX-Pulsar-Auth-Method-Name: basic\r\n"
            b"Connection: close\r\nAuthorization: Basic " + basic.encode() + b"\r\n\r\n"
        )
    elif number % 3 == 1:
        peer.sendall(basic_connect(shown))
    else:
        wrong = token("me", SECRET[::-1], n=number).encode()
        peer.sendall(wire.command(wire.CONNECT, {1: "x", 3: wrong, 4: 21, 5: "token"}))
    peer.setblocking(False)
    selector.register(peer, selectors.EVENT_READ)


SCENES: dict[str, Act] = {
    "silent": silent,
    "begun": begun,
    "hellos": hellos,
    "one": on_one,
    "https": on_https,
    "guesses": guesses,
}


@contextlib.contextmanager
def stage_of(folder: Path, rounds: int = 1) -> Iterator[Stage]:
    """Brokers that are gone at the end; for so many rounds of each scene."""
    with ExitStack() as stack:
        yield Stage(folder, stack, rounds)


def play(stage: Stage, name: str, count: int, seconds: float, rounds: int = 1) -> Seen:
    """What a scene does to others: at another broker's door and at that of theirs, in turn."""
    alone_ms: list[float] = []
    controls: list[Half] = []
    halves: list[Half] = []
    for _ in range(rounds):
        for target, played in ((stage.other, controls), (stage.target, halves)):
            alone_ms.append(_alone_ms(stage.polite))
            played.append(_half(stage.polite, target, name, count, seconds))
    return Seen(
        str(SCENES[name].__doc__),
        statistics.median(alone_ms),
        statistics.median(each.p99_ms for each in controls),
        statistics.median(each.p99_ms for each in halves),
        max(each.first_login_s for each in halves),
        max(each.turn_ms for each in halves),
        statistics.median(each.cpu_s for each in halves),
        max(each.grown_mib for each in halves),
        halves[-1].what,
    )


def _alone_ms(polite: Polite) -> float:
    time.sleep(SETTLING_S)
    polite.take()
    time.sleep(QUIET_S)
    return p99_ms(polite.take())


def _half(polite: Polite, target: Target, name: str, count: int, seconds: float) -> Half:
    before_kib, turns = target.broker.distinct_memory_kib(), target.turns()
    cpu_s = target.broker.cpu_s()
    firsts: list[float] = []
    target.is_under_way.clear()

    def log_in() -> None:
        target.is_under_way.wait()
        firsts.append(target.first_login_s())

    other = Thread(target=log_in)
    other.start()
    polite.take()
    what = SCENES[name](target, count, seconds)
    time.sleep(GOING_S)
    beside_ms = p99_ms(polite.take())
    cpu_s = target.broker.cpu_s() - cpu_s
    grown_mib = (target.broker.distinct_memory_kib() - before_kib) / 1024
    other.join()
    turn_ms = longest_ms(turns, target.turns())
    first_s = firsts[0] if firsts else float("inf")
    return Half(beside_ms, first_s, turn_ms, cpu_s, grown_mib, what)


def main(arguments: list[str] | None = None) -> int:
    """Plays the scenes that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--burners", action="store_true", help="busy loops of the least priority, one for each core"
    )
    parser.add_argument(
        "--real-time", action="store_true", help="brokers and polite client before all else"
    )
    parser.add_argument("scene", nargs="*", choices=[*SCENES, "all"], default="all")
    chosen = parser.parse_args(arguments)
    is_ok = True
    with (
        burners() if chosen.burners else contextlib.nullcontext(),
        tempfile.TemporaryDirectory(prefix="at-the-door-") as folder,
        stage_of(Path(folder), chosen.rounds) as stage,
    ):
        if chosen.real_time:
            stage.come_first()
        print(HEAD, flush=True)
        for name in SCENES if "all" in chosen.scene else chosen.scene:
            seen = play(stage, name, chosen.count, chosen.seconds, chosen.rounds)
            is_ok &= seen.is_ok
            print(seen.row(), flush=True)
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
