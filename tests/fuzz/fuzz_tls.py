"""TLS above OpenSSL: a client whose records come in any pieces, and changed on the way.

An input is a list of steps: frames that the client writes, goodbyes, what is done to the bytes on
the wire (cut, changed, doubled, put in between), and the moments at which the broker's side reads.
Held to: the handlers are told what was written, in order, up to the first byte that was changed,
and nothing behind it; what is broken is told once, and is the end; nothing is raised; and a stream
that nobody has changed is told as a whole.
"""

from __future__ import annotations

import ssl
from contextlib import suppress

import driver

from certificates import client_context, server_context
from manual_loop import ManualLoop
from oracles import wire
from pyxbroker.connection import Connections
from pyxbroker.proto import PulsarApi as pb
from served import Notes, connected

FRAME_BYTES_MAX = 256 << 10
SIZES = (0, 1, 100, 1000, 16_300, 16_400, 65_000, 66_000, 131_000)
STEPS_MAX = 40
WIRE_BYTES_MAX = 2 << 20
GARBAGE = (b"\0" * 5, b"\x17\x03\x03\xff\xff", b"\x15\x03\x03\0\x02\x02\x28", b"GET / HTTP/1.1\r\n")


class Peer:
    """A client's end of TLS in memory, the wire, and the broker's side."""

    def __init__(self) -> None:
        self.loop = ManualLoop()
        self.notes = Notes(self.loop)
        group = Connections(
            self.loop,
            self.notes,
            frame_bytes_max=FRAME_BYTES_MAX,
            sends_max=1000,
            publish_bytes_max=1 << 30,
        )
        self.connection, self.far = connected(group, context=server_context())
        self.connection.establish()
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = client_context().wrap_bio(
            self.incoming, self.outgoing, server_hostname="localhost"
        )
        self.shaken = False
        self.written = 0  # frames
        self.is_changed = False
        self.is_over = False  # the client has said goodbye
        self.on_wire = 0

    def shake(self) -> None:
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
            self.shaken = True

    def write(self, frame: bytes) -> None:
        if self.shaken and not self.is_over:
            self.tls.write(frame)
            self.written += 1

    def say_goodbye(self) -> None:
        if self.shaken and not self.is_over:
            self.is_over = True
            with suppress(ssl.SSLError):
                self.tls.unwrap()

    def carry(self, data: bytes) -> None:
        """Puts bytes on the wire; the broker's side reads when it is full."""
        self.on_wire += len(data)
        view = memoryview(data)
        while view and not self.connection.closed:
            try:
                view = view[self.far.send(view) :]
            except BlockingIOError:
                if not self.loop.go_round():
                    return
            except (BrokenPipeError, ConnectionResetError):
                return

    def settle(self) -> None:
        """The broker's side reads all there is, and the client what it has answered."""
        while self.loop.go_round():
            pass
        with suppress(BlockingIOError, ConnectionResetError):
            while got := self.far.recv(1 << 20):
                self.incoming.write(got)

    def close(self) -> None:
        self.connection.close()
        self.far.close()


def frame_of(number: int, size: int) -> bytes:
    """A command that handlers are told as it is."""
    command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
    command.lookupTopic.CopyFrom(pb.CommandLookupTopic(topic="t" * size, request_id=number))
    return wire.frame(command.SerializeToString())


def changed(steps: driver.Steps, data: bytes) -> bytes:
    """The bytes as somebody on the way makes them."""
    kind, at = steps.byte() % 5, steps.byte() * 257 % (len(data) + 1)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[at + 1 + steps.byte() :]
    if kind == 2 and at < len(data):
        return data[:at] + bytes([data[at] ^ (1 << steps.byte() % 8)]) + data[at + 1 :]
    if kind == 3:
        return data + data
    return data[:at] + GARBAGE[steps.byte() % len(GARBAGE)] + data[at:]


def play(peer: Peer, steps: driver.Steps) -> None:
    for _ in range(STEPS_MAX):
        if not steps or peer.connection.closed or peer.on_wire > WIRE_BYTES_MAX:
            return
        kind = steps.byte() % 8
        if kind < 3:
            peer.write(frame_of(peer.written, SIZES[steps.byte() % len(SIZES)]))
        elif kind == 3:
            peer.say_goodbye()
        elif kind == 4:
            peer.settle()
            if not peer.shaken and not peer.is_changed:
                peer.shake()
        elif kind == 5:
            data = peer.outgoing.read()
            made = changed(steps, data)
            peer.is_changed = peer.is_changed or made != data
            peer.carry(made)
        else:
            # In two pieces, so that records come apart.
            data = peer.outgoing.read()
            at = steps.byte() * 64 % (len(data) + 1)
            peer.carry(data[:at])
            peer.loop.go_round()
            peer.carry(data[at:])


def finish(peer: Peer) -> None:
    """What is still to be sent comes, and everything is read."""
    peer.carry(peer.outgoing.read())
    peer.settle()


def one_input(data: bytes) -> None:
    steps = driver.Steps(data)
    peer = Peer()
    try:
        if steps.byte() & 1:
            # At once, as most do; else the input may disturb it.
            for _ in range(3):
                peer.shake()
                finish(peer)
        else:
            peer.shake()
        play(peer, steps)
        finish(peer)
        check(peer)
    finally:
        peer.close()


def check(peer: Peer) -> None:
    told = peer.notes.told
    kinds = [each[0] for each in told]
    assert "malformed" not in kinds and "internal error" not in kinds, told
    frames = [each for each in told if each[0] == "command"]
    wanted = [pb.BaseCommand.FromString(each[2]).lookupTopic.request_id for each in frames]
    assert wanted == list(range(len(wanted))) and len(wanted) <= peer.written
    assert len(wanted) == peer.written or peer.is_changed, f"{len(wanted)} of {peer.written}"
    assert kinds.count("broken tls") <= 1 and kinds.count("closed") <= 1
    if "broken tls" in kinds:
        assert peer.is_changed and "command" not in kinds[kinds.index("broken tls") :]
        assert peer.connection.closed
    assert not peer.is_over or peer.is_changed or peer.connection.closed


def seeds() -> list[bytes]:
    """Whole streams, and each kind of change at a few places."""
    found = [bytes([1, 0, n, 6, 0, 4, 0, n, 6, 99, 4]) for n in range(len(SIZES))]
    found += [bytes([1, 0, 3, 5, kind, at, 7, 4, 0, 1, 6, 0]) for kind in range(5) for at in (0, 9)]
    found += [bytes([0, 5, kind, at, 3, 4, 6, 0, 4]) for kind in range(5) for at in (0, 1)]
    found += [bytes([1, 0, 8, 0, 8, 0, 7, 6, 200, 4, 3, 6, 0, 4]), bytes([0, 6, 1, 4, 6, 0, 4])]
    return found


if __name__ == "__main__":
    driver.main(seeds, one_input)
