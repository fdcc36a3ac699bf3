"""Who is let in: CONNECT with any credentials, for oneself or through a proxy, and AUTH_RESPONSE.

An input chooses how the broker is set and which commands a client sends: credentials that are
good, old, changed in places or made up, by any method, one after another or at once, or bytes that
are no command. A plain list of who is known says what has to come of it. Held to: whoever is let in
has the role that the list has for what was shown, and nobody else is; who is refused is told one
sentence and closed; nothing that was shown is sent back; nothing is a defect of ours, and what a
login costs is given back.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import logging
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import driver

with driver.guided("pyxbroker.auth", "pyxbroker.broker.commands.handshake"):
    from pyxbroker.auth.authentication import Authentication, Verified
    from pyxbroker.auth.principal import Principal
    from pyxbroker.auth.provider import Identity
    from pyxbroker.broker.commands import handshake, login

from harness.tokens import BASIC, TOKENS, data_url, settings, token
from harness.tokens import SECRET as KEY

from one_broker import Broker, Port, command_of
from oracles import wire
from pyxbroker.base.log import defects
from pyxbroker.proto import PulsarApi as pb

STEPS_MAX = 12
TURNS_MAX = 2000
NO_REQUEST = 2**64 - 1
METHODS = ("token", "basic", "none", "", "tls", "TOKEN", "sasl")
GUEST = "guest"
# `openssl passwd -apr1 -salt abcdefgh secret`, and SHA of the word.
USERS = b"ann:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/\nben:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n"

ME, YOU = token("me"), token("you")
GOOD = {
    ("token", ME.encode()): "me",
    ("token", YOU.encode()): "you",
    ("basic", b"ann:secret"): "ann",
    ("basic", b"ben:secret"): "ben",
}
SHOWN = (
    *(shown for _, shown in GOOD),
    *(each.encode() for each in (token("me", KEY[::-1]), token("me", exp=-5), token(["me"]))),
    *(b"ann:Secret", b"ann:secret:", b"nobody:secret", b":", b"", b"a" * 20_000),
)
ORIGINALS = ("", "other", login.WEB_SOCKET_ORIGINAL, "me", "x" * 300)


class Shown(NamedTuple):
    """A method, and credentials of it."""

    method: str
    data: bytes


def role_of(shown: Shown, guests: bool) -> tuple[bool, str | None, bool]:
    """Whether somebody is let in, as which role, and whether as nobody in particular."""
    method = shown.method or "none"
    if method not in ("token", "basic"):
        return guests, GUEST, True
    for (known, data), role in GOOD.items():
        if method == known and is_same(method, shown.data, data):
            return True, role, False
    if method == "token" and is_same(method, shown.data, SHOWN[6]):
        return True, "me", False
    return False, None, False


def is_same(method: str, shown: bytes, known: bytes) -> bool:
    """Base64 has more than one way to write the signature of a token."""
    if method != "token" or shown == known:
        return shown == known
    text, _, signature = shown.rpartition(b".")
    expected, _, right = known.rpartition(b".")
    try:
        return text == expected and unpacked(signature) == unpacked(right)
    except ValueError:
        return False


def unpacked(part: bytes) -> bytes:
    return base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))


# --- the broker -----------------------------------------------------------------------------------


def start() -> tuple[asyncio.AbstractEventLoop, Broker, dict[bool, Authentication]]:
    logging.getLogger("pyxbroker").setLevel(logging.CRITICAL)
    loop = asyncio.new_event_loop()
    directory = tempfile.TemporaryDirectory()
    known = settings(
        authenticationProviders=f"{TOKENS},{BASIC}",
        basicAuthConf=data_url(USERS),
        maxFailedLoginsPerAddress=0,  # all inputs come from one
    )
    broker = Broker(Path(directory.name), **known)
    loop.run_until_complete(broker.__aenter__())
    authentications = {False: Authentication(broker.config)}
    broker.config.anonymousUserRole = GUEST
    authentications[True] = Authentication(broker.config)
    # The broker ends with the process: no thread could be asked to close it by then.
    atexit.register(directory.cleanup)
    return loop, broker, authentications


class Peer:
    """A client, and what it has been told."""

    def __init__(self, broker: Broker) -> None:
        near, self.far = socket.socketpair()
        near.setblocking(False)
        self.far.setblocking(False)
        stranger = broker.service.add_half_open(Port(broker.service), near, "", 1)
        broker.service.half_open.begin(stranger)
        self.connection = stranger.connection
        self.session = self.connection.session
        self.answers = b""

    def send(self, frame: bytes) -> None:
        with suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
            self.far.sendall(frame)  # unless it is closed, or will be for this

    async def settle(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        for _ in range(TURNS_MAX):
            if not self.session.tasks:
                break
            await asyncio.sleep(0.0005)  # a thread looks at passwords
        assert not self.session.tasks, "a login does not end"
        await asyncio.sleep(0)
        self._receive()

    def _receive(self) -> None:
        with suppress(BlockingIOError, ConnectionResetError):
            while data := self.far.recv(1 << 16):
                self.answers += data

    def told(self) -> list[Any]:
        frames, consumed, error = wire.scan(self.answers, 1 << 20)
        assert error is None and consumed == len(self.answers)
        return [pb.BaseCommand.FromString(command) for command, _ in frames]

    def close(self) -> None:
        self.connection.close()
        self.far.close()


# --- what an input says ---------------------------------------------------------------------------


def shown_of(steps: driver.Steps) -> Shown:
    method = METHODS[steps.byte() % len(METHODS)]
    data = bytearray(SHOWN[steps.byte() % len(SHOWN)])
    if data:
        for _ in range(steps.byte() % 4):
            at = steps.byte() * 7 % len(data)
            data[at] = steps.byte()
    return Shown(method, bytes(data))


def connect_of(steps: driver.Steps) -> tuple[Any, Shown, str, Shown | None]:
    """A CONNECT, what it shows, for whom, and what it shows of that one."""
    shown = shown_of(steps)
    command = pb.CommandConnect(
        client_version="fuzz", protocol_version=(21, 0, 4)[steps.byte() % 3]
    )
    command.auth_data = shown.data
    if shown.method:
        command.auth_method_name = shown.method
    command.feature_flags.supports_auth_refresh = bool(steps.byte() & 1)
    original = ORIGINALS[steps.byte() % len(ORIGINALS)]
    other = None
    if original:
        command.original_principal = original
        other = shown_of(steps)
        try:
            command.original_auth_data = other.data.decode()
        except UnicodeDecodeError:
            other = Shown(other.method, b"")
        command.original_auth_method = other.method
    return command, shown, original, other


def principal_of(
    shown: Shown, original: str, other: Shown | None, guests: bool, verify: bool
) -> Principal | None:
    """Who that is; None for who has to be refused."""
    is_in, role, _ = role_of(shown, guests)
    if not is_in:
        return None
    if not original or original == login.WEB_SOCKET_ORIGINAL or other is None:
        return Principal(role)
    if not verify:
        return Principal(role, original)
    is_in, behind, is_nobody = role_of(other, guests)
    if not is_in:
        return None
    return Principal(behind if is_nobody else role, behind)


async def play(peer: Peer, broker: Broker, steps: driver.Steps, guests: bool, verify: bool) -> None:
    kind = steps.byte()
    if kind % 8 == 0:
        await play_bytes(peer, steps)
        return
    command, shown, original, other = connect_of(steps)
    wanted = principal_of(shown, original, other, guests, verify)
    is_served = command.protocol_version >= handshake.PROTOCOL_VERSION_BATCHES
    is_served = is_served and len(original.encode()) <= 1 << 16
    frame = wire.frame(command_of(command))
    if kind % 8 == 1:
        # What comes behind a CONNECT that has no answer yet is its end.
        peer.send(frame + wire.frame(command_of(pb.CommandPing())))
        await peer.settle()
        if is_served:
            assert peer.connection.closed and not peer.connection.established
        return
    peer.send(frame)
    await peer.settle()
    check_connected(peer, wanted if is_served else None)
    if peer.connection.closed:
        return
    for _ in range(STEPS_MAX):
        if not steps or peer.connection.closed:
            return
        await play_later(peer, broker, steps, guests)


async def play_bytes(peer: Peer, steps: driver.Steps) -> None:
    """A first frame that is any bytes: nobody is in by it who is not on the list."""
    data = steps.rest(300)
    peer.send(wire.frame(data))
    await peer.settle()
    if peer.connection.established:
        connect = pb.BaseCommand.FromString(data).connect
        shown = Shown(login.method_of(connect), connect.auth_data)
        assert role_of(shown, guests=True)[0], f"{shown} was let in"


def check_connected(peer: Peer, wanted: Principal | None) -> None:
    told = peer.told()
    if wanted is None:
        assert peer.connection.closed and not peer.connection.established
        assert [each.type for each in told] == [pb.BaseCommand.ERROR], told
        error = told[0].error
        assert error.request_id == NO_REQUEST
        assert error.error != pb.AuthenticationError or error.message == handshake.NOT_AUTHENTICATED
        return
    assert not peer.connection.closed and peer.connection.established, told
    assert [each.type for each in told] == [pb.BaseCommand.CONNECTED]
    assert peer.session.memory.used == 0, "what a login costs is not given back"
    assert peer.session.principal == wanted, f"{peer.session.principal} instead of {wanted}"


async def play_later(peer: Peer, broker: Broker, steps: driver.Steps, guests: bool) -> None:
    """A challenge, an answer to one, or another CONNECT."""
    session, kind = peer.session, steps.byte() % 4
    was, before = session.login, session.principal
    if kind == 0:
        # Time passes: what was shown does not count any more.
        identity = was.verified.identity
        was.verified = Verified(Identity(identity.role, 1.0), was.verified.provider)
        may_stay = was.can_refresh and not was.is_challenged
        broker.handlers.check_credentials([peer.connection])
        await peer.settle()
        assert peer.connection.closed != may_stay
        return
    if kind == 3:
        peer.send(wire.frame(command_of(connect_of(steps)[0])))
        await peer.settle()
        assert peer.connection.closed, "a second CONNECT"
        return
    shown = shown_of(steps)
    answer = pb.CommandAuthResponse(client_version="fuzz", protocol_version=21)
    answer.response.auth_data = shown.data
    if shown.method:
        answer.response.auth_method_name = shown.method
    was_challenged = was.is_challenged
    role, provider = was.verified.identity.role, was.verified.provider
    peer.send(wire.frame(command_of(answer)))
    await peer.settle()
    is_in, again, _ = role_of(shown, guests)
    stays = was_challenged and bool(shown.method) and is_in and again == role
    assert peer.connection.closed != stays, f"{shown}, {role} by {provider}"
    assert session.principal == before


# --- the target -----------------------------------------------------------------------------------

LOOP, BROKER, AUTHENTICATIONS = start()


def one_input(data: bytes) -> None:
    LOOP.run_until_complete(run(driver.Steps(data)))


async def run(steps: driver.Steps) -> None:
    flags, found = steps.byte(), dict(defects)
    guests, verify = bool(flags & 1), bool(flags & 2)
    BROKER.service.authentication = AUTHENTICATIONS[guests]
    BROKER.config.authenticateOriginalAuthData = verify
    faults: list[Any] = []
    LOOP.set_exception_handler(lambda _, context: faults.append(context))
    peer = Peer(BROKER)
    try:
        await play(peer, BROKER, steps, guests, verify)
        for secret in (ME.encode(), YOU.encode(), b"ann:secret", b"ben:secret"):
            assert secret not in peer.answers, "what was shown is sent back"
    finally:
        peer.close()
        await asyncio.sleep(0)
    assert not faults and dict(defects) == found, f"a defect: {faults}"
    assert BROKER.service.client_memory.used == 0, "what a login costs is not given back"


def seeds() -> list[bytes]:
    """Each method with each of what can be shown, for oneself and others; then what follows."""
    own = [bytes([3, 2, m, n, 0, 0, 1, 0]) for m in range(2) for n in range(len(SHOWN))]
    behind = [
        bytes([flags, 2, 0, 0, 0, 0, 1, original, method, n, 0])
        for flags in range(4)
        for original in (1, 2, 4)
        for method, n in ((0, 1), (1, 2), (2, 0), (0, 4))
    ]
    renewed = [
        bytes([0, 2, 0, 0, 0, 0, 1, 0, 0, 1, method, n, 0, *more])
        for method, n in ((0, 0), (0, 1), (0, 4), (1, 2), (2, 0), (3, 0))
        for more in ((), (0, 0), (1, 0, 0, 0), (3, 0, 0, 0))
    ]
    changed = [bytes([0, 2, 0, 0, 1, at, 65, 0, 1, 0]) for at in range(0, 40, 3)]
    frame = command_of(pb.CommandConnect(client_version="f", protocol_version=21))
    other = [bytes([0, 1, 0, 0, 0, 0, 1, 0]), bytes([1, 0]) + frame, bytes([0, 0]) + frame[:5]]
    # Without the version of a client, which is required.
    other.append(bytes([1, 0]) + bytes.fromhex("080212022015"))
    return [*own, *behind, *renewed, *changed, *other]


if __name__ == "__main__":
    driver.main(seeds, one_input)
