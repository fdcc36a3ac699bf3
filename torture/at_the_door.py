"""What comes to the ports and does not say who it is, beside a client that behaves.

    python -m torture.at_the_door [--count N] [--seconds S] [SCENE ...]

Each scene holds N half-open connections (on each of the four ports at once, or more on one), or
tries passwords and tokens for S seconds, against a real process with TLS and authentication. Prints
one row of a markdown table for each: how long the receipts of the polite client took, alone and
beside it, how long a first login of somebody else took, and how much the broker grew. Exit status 1
when the polite client waited more than twice as long, or a first login for more than two seconds.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import selectors
import socket
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

from torture.polite import Polite, p99_ms

HOST = "127.0.0.1"
COUNT = 4_000
COUNT_OF_ONE = 10_000
SECONDS = 12.0  # longer than a half-open connection may last
QUIET_S = 5.0
RATIO_MAX = 2.0
P99_MS_OK = 5.0  # of a machine that others use as well: twice of nearly nothing is nothing
FIRST_LOGIN_S_MAX = 2.0
NOTHING: Mapping[int, bytes] = {}
GUESSERS = 60  # connections at a time, from addresses of their own
# A ClientHello whose rest never comes.
HELLO = bytes.fromhex("16030100c8010000c40303") + b"\x01" * 60


class Seen(NamedTuple):
    """What a scene did to others."""

    scene: str
    alone_ms: float  # the p99 of the polite client
    beside_ms: float
    first_login_s: float
    grown_mib: float
    what: str

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
            f"{self.beside_ms:.2f}",
            f"{self.first_login_s:.2f}",
            f"{self.grown_mib:.0f}",
            self.what,
            "ok" if self.is_ok else "broken",
        )
        return f"| {' | '.join(cells)} |"


HEAD = """\
| at the door | p99 alone, ms | p99 beside, ms | first login, s | grown, MiB | seen | |
|---|---|---|---|---|---|---|"""


class Stage:
    """A broker with all four ports that asks who clients are; the polite one may be nobody."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.tls_port, self.web_tls_port = free_ports(2)
        certificate, key = write_certificate(trustme.CA(), folder, "broker", "localhost", HOST)
        users = "".join(
            f"user-{number}:{bcrypt.hashpw(b'right', bcrypt.gensalt(10)).decode()}\n"
            for number in range(8)
        )
        settings = {
            "brokerServicePortTls": str(self.tls_port),
            "webServicePortTls": str(self.web_tls_port),
            "tlsCertificateFilePath": str(certificate),
            "tlsKeyFilePath": str(key),
            "authenticationEnabled": "true",
            "authenticationProviders": f"{TOKENS},{BASIC}",
            "tokenSecretKey": data_url(SECRET),
            "basicAuthConf": data_url(users.encode()),
            "anonymousUserRole": "polite",
        }
        self.broker = Broker("pyxbroker", folder / "broker", settings=settings)
        stack.callback(self.broker.close)
        self.broker.start()
        with RawConnection(self.broker.port) as raw:
            raw.producer("persistent://public/default/warm-up")
        self.broker.rest("PUT", "/admin/v2/namespaces/public/polite")
        self.polite = Polite(self.broker.port)
        stack.callback(self.polite.close)
        self.is_under_way = Event()  # a scene: somebody else may log in now
        self._users = iter(range(8))
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
            answer = peer.recv(1 << 10)
        assert answer[8:] and b"Failed" not in answer, answer
        return time.monotonic() - began


def connect_from(address: str, port: int) -> socket.socket:
    """A connection from an address of this machine."""
    return socket.create_connection((HOST, port), timeout=10, source_address=(address, 0))


def basic_connect(shown: str) -> bytes:
    """A CONNECT with user and password."""
    return wire.command(wire.CONNECT, {1: "guesser", 3: shown.encode(), 4: 21, 5: "basic"})


# --- scenes -----------------------------------------------------------------------------------


class HalfOpen:
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


Act = Callable[[Stage, int, float], str]


def silent(stage: Stage, count: int, seconds: float) -> str:
    """as many silent connections on each of the four ports"""
    return _held(stage, dict.fromkeys(stage.ports, count), seconds)


def begun(stage: Stage, count: int, seconds: float) -> str:
    """the beginning of a handshake or of a command on each of the four ports"""
    said = dict(zip(stage.ports, (b"\0\0", HELLO[:40], b"GET /adm", HELLO[:40]), strict=True))
    return _held(stage, dict.fromkeys(stage.ports, count), seconds, said)


def on_one(stage: Stage, count: int, seconds: float) -> str:
    """more of them on the port for TLS"""
    return _held(stage, {stage.tls_port: count * COUNT_OF_ONE // COUNT}, seconds)


def on_https(stage: Stage, count: int, seconds: float) -> str:
    """more of them on the port for HTTPS"""
    return _held(stage, {stage.web_tls_port: count * COUNT_OF_ONE // COUNT}, seconds)


def _held(
    stage: Stage, counts: dict[int, int], seconds: float, said: Mapping[int, bytes] = NOTHING
) -> str:
    peers = HalfOpen()
    until = time.monotonic() + seconds
    for port, count in counts.items():
        peers.open(port, count, said.get(port, b""))
    stage.is_under_way.set()
    time.sleep(max(until - time.monotonic(), 0.0))
    total = sum(counts.values())
    return f"{total:,} opened, {peers.close():,} still open after {seconds:g} s"


def guesses(stage: Stage, count: int, seconds: float) -> str:
    """passwords and tokens that are wrong, from 20 addresses, by both protocols"""
    answered = 0
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for number in range(GUESSERS):
            _guess(stage, selector, number)
        number = GUESSERS
        while time.monotonic() < until:
            for key, _ in selector.select(0.1):
                with contextlib.suppress(OSError):
                    answered += bool(key.fileobj.recv(1 << 10))  # type: ignore[union-attr]
                if answered > 2 * GUESSERS:
                    # Each address has been wrong: one that has not has its turn as others do.
                    stage.is_under_way.set()
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
                _guess(stage, selector, number)
                number += 1
        stage.is_under_way.set()
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    return f"{answered:,} guesses answered"


def _guess(stage: Stage, selector: selectors.BaseSelector, number: int) -> None:
    by_http = number % 3 == 0
    peer = connect_from(f"127.0.1.{number % 20 + 1}", stage.ports[2 if by_http else 0])
    shown = f"user-{number % 8}:wrong-{number}"
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
    "one": on_one,
    "https": on_https,
    "guesses": guesses,
}


@contextlib.contextmanager
def stage_of(folder: Path) -> Iterator[Stage]:
    """A broker that is gone at the end."""
    with ExitStack() as stack:
        yield Stage(folder, stack)


def play(stage: Stage, name: str, count: int, seconds: float) -> Seen:
    """What a scene does to others."""
    time.sleep(1)
    stage.polite.take()
    time.sleep(QUIET_S)
    alone_ms = p99_ms(stage.polite.take())
    before_kib = stage.broker.distinct_memory_kib()
    firsts: list[float] = []
    stage.is_under_way.clear()

    def log_in() -> None:
        stage.is_under_way.wait()
        firsts.append(stage.first_login_s())

    other = Thread(target=log_in)
    other.start()
    what = SCENES[name](stage, count, seconds)
    beside_ms = p99_ms(stage.polite.take())
    other.join()
    grown_mib = (stage.broker.distinct_memory_kib() - before_kib) / 1024
    return Seen(
        str(SCENES[name].__doc__),
        *(alone_ms, beside_ms, firsts[0] if firsts else float("inf"), grown_mib, what),
    )


def main(arguments: list[str] | None = None) -> int:
    """Plays the scenes that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("scene", nargs="*", choices=[*SCENES, "all"], default="all")
    chosen = parser.parse_args(arguments)
    is_ok = True
    print(HEAD, flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="at-the-door-") as folder,
        stage_of(Path(folder)) as stage,
    ):
        for name in SCENES if "all" in chosen.scene else chosen.scene:
            seen = play(stage, name, chosen.count, chosen.seconds)
            is_ok &= seen.is_ok
            print(seen.row(), flush=True)
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
