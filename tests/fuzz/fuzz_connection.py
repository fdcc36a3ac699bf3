"""A whole connection: what it makes of a stream is what the plain decoders make of it.

An input is a list of steps: bytes as they are, SENDs from tiny to larger than a slab, other
commands, and the moments at which the broker's side reads and its producer answers. Small limits
make the connection pause. Under ASan this also watches who owns the bytes of a run, and when.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import driver

from manual_loop import ManualLoop
from oracles import commands as plain
from oracles import wire
from oracles.golden import CLIENT_FRAMES
from pyxbroker.connection import Connections
from pyxbroker.entry import EntryRun
from pyxbroker.proto import PulsarApi as pb
from served import Consumer, Notes, Producer, connected

FRAME_BYTES_MAX = 2 << 20
SENDS_MAX = 6
STREAM_BYTES_MAX = 4 << 20
CHECKED_BYTES_MAX = 300  # the plain checksum is slow
SIZES = (0, 1, 7, 200, 1500, 8_100, 8_300, 65_000, 130_000, 460_000, 524_300, 1_100_000)
PERMITS_MAX = 2**31 - 1  # of one FLOW
PRODUCER, CONSUMER = 1, 2


class Peer:
    """A client that writes a stream, and the broker's side of its connection."""

    def __init__(self) -> None:
        self.loop = ManualLoop()
        self.notes = Notes(self.loop)
        group = Connections(
            self.loop,
            self.notes,
            frame_bytes_max=FRAME_BYTES_MAX,
            sends_max=SENDS_MAX,
            publish_bytes_max=1 << 20,
        )
        self.connection, self.far = connected(group)
        self.connection.establish()
        self.producer = Producer(self.connection, PRODUCER, self.notes)
        self.connection.producers[PRODUCER] = self.producer
        self.connection.consumers[CONSUMER] = Consumer(self.notes)
        self.entries = 0
        self.answers = b""

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.connection.closed:
            try:
                view = view[self.far.send(view) :]
            except BlockingIOError:
                if not self.loop.go_round():
                    self.answer()

    def settle(self) -> None:
        """Answers and reads until nothing is left to do."""
        while self.loop.go_round() or self.answer():
            pass

    def answer(self) -> bool:
        """Sends the receipts that are due, and takes what has come; False when nothing was due."""
        runs: list[EntryRun] = self.producer.runs
        self.producer.runs = []
        for run in runs:
            run.ledger_id, run.first_entry_id = 3, self.entries
            self.entries += run.count
            self.producer.send_receipts(run)
        while self.loop.soon:
            self.loop.go_round()
        self._take_answers()
        return bool(runs)

    def _take_answers(self) -> None:
        while True:
            try:
                got = self.far.recv(1 << 20)
            except (BlockingIOError, ConnectionResetError):
                return
            if not got:
                return
            self.answers += got

    def close(self) -> None:
        self.connection.close()
        self._take_answers()
        self.far.close()


# --- what an input says ---------------------------------------------------------------------------


def steps(data: bytes) -> Iterator[tuple[str, bytes]]:
    """("write", bytes), ("read", b"") and ("answer", b"") from the bytes of an input."""
    at = 0
    total = 0

    def take(count: int) -> bytes:
        nonlocal at
        taken = data[at : at + count]
        at += count
        return taken.ljust(count, b"\0")

    while at < len(data) and total < STREAM_BYTES_MAX:
        (kind,) = take(1)
        if kind % 8 == 6:
            yield "read", b""
            continue
        if kind % 8 == 7:
            yield "answer", b""
            continue
        if kind % 8 < 3:
            size, sequence_id, spoiled = take(3)
            step = sent(SIZES[size % len(SIZES)], sequence_id, spoiled)
        elif kind % 8 == 3:
            (size,) = take(1)
            command = take(size % 64)
            step = wire.frame(command or b"\x08", b"")
        elif kind % 8 == 4:
            (which,) = take(1)
            known = sorted(CLIENT_FRAMES)
            step = bytes.fromhex(CLIENT_FRAMES[known[which % len(known)]])
        else:
            (size,) = take(1)
            step = take(size % 64)
        total += len(step)
        yield "write", step


def sent(size: int, sequence_id: int, spoiled: int) -> bytes:
    """A SEND of so many bytes; spoiled says what is wrong with it, mostly nothing."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
    data = bytes([sequence_id]) * size
    section = wire.payload_section(
        metadata.SerializeToString(), data, checksum=size <= CHECKED_BYTES_MAX
    )
    command = pb.BaseCommand(type=pb.BaseCommand.SEND)
    command.send.producer_id = PRODUCER
    command.send.sequence_id = sequence_id
    if spoiled == 250:
        section = section[: len(section) // 2]
    elif spoiled == 251:
        section = section[:-1] + b"\xff"
    elif spoiled == 252:
        command.send.txnid_most_bits = 1
    elif spoiled == 253:
        command.send.producer_id = 99
    return wire.frame(command.SerializeToString(), section)


# --- what the plain decoders make of it -----------------------------------------------------------


def expected(stream: bytes) -> list[tuple[Any, ...]]:
    """What the handlers have to be told of a stream, one SEND at a time."""
    frames, _, error = wire.scan(stream, FRAME_BYTES_MAX)
    found: list[tuple[Any, ...]] = []
    for command, section in frames:
        found += told_of(command, section)
        if found and found[-1][0] == "malformed":
            return found
    return [*found, ("malformed",)] if error else found


def told_of(command: bytes, section: bytes) -> list[tuple[Any, ...]]:
    kind, message = plain.decode_base(command) or (0, b"")
    if kind == pb.BaseCommand.SEND:
        return [send_told(message, section)]
    if kind == pb.BaseCommand.ACK:
        return ack_told(message)
    if kind == pb.BaseCommand.FLOW:
        flow = plain.decode_flow(message)
        if flow is None:
            return [("malformed",)]
        if flow["consumer_id"] != CONSUMER:
            return []
        given = 0 < flow["permits"] <= PERMITS_MAX
        return [("flow", flow["permits"]) if given else ("malformed",)]
    if kind == pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES:
        redeliver = plain.decode_redeliver(message)
        if redeliver is None:
            return [("malformed",)]
        head, ids = redeliver
        if head["consumer_id"] != CONSUMER:
            return []
        epoch = wire.signed(head["consumer_epoch"], 64) if head["has_epoch"] else None
        return [("redeliver", ids, epoch)]
    # A command that stops the plain decoder half way has no kind; the connection may know it.
    return [("command", command, section)]


def send_told(message: bytes, section: bytes) -> tuple[Any, ...]:
    send = plain.decode_send(message)
    if send is None or send["producer_id"] != PRODUCER:
        return ("malformed",)
    try:
        metadata, right = checked(section)
    except wire.Malformed:
        return ("refused", send["sequence_id"], "metadata")
    if not right:
        return ("refused", send["sequence_id"], "checksum")
    peeked = plain.peek_metadata(metadata)
    if peeked is None:
        return ("refused", send["sequence_id"], "metadata")
    ids = (send["txnid_most_bits"], send["txnid_least_bits"]) if send["has_txn"] else None
    if ids is not None and peeked["transaction"] is None:
        most, least = ids
        fields = pb.MessageMetadata(txnid_most_bits=most, txnid_least_bits=least)
        at = (6 if section.startswith(b"\x0e\x01") else 0) + 4 + len(metadata)
        metadata += fields.SerializePartialToString()
        section = wire.payload_section(metadata, section[at:])
    elif peeked["transaction"] != ids:
        return ("refused", send["sequence_id"], "transaction")
    return ("send", send["sequence_id"], send["highest_sequence_id"], section)


def checked(section: bytes) -> tuple[bytes, bool]:
    """wire.check_payload, for sections of any size: large ones have no checksum."""
    if len(section) > CHECKED_BYTES_MAX and not section.startswith(b"\x0e"):
        size = int.from_bytes(section[:4], "big")
        if size > len(section) - 4:
            raise wire.Malformed("metadata runs past the end")
        return section[4 : 4 + size], True
    return wire.check_payload(section)


def ack_told(message: bytes) -> list[tuple[Any, ...]]:
    ack = plain.decode_ack(message)
    if ack is None:
        return [("malformed",)]
    head, ids = ack
    if head["consumer_id"] != CONSUMER:
        return []
    positions = [
        (ledger, entry, sum((word & 2**64 - 1).bit_count() for word in words))
        for ledger, entry, _, _, words in ids
    ]
    request_id = head["request_id"] if head["has_request_id"] else None
    txn = (head["txnid_most_bits"], head["txnid_least_bits"]) if head["has_txn"] else None
    return [("ack", positions, head["cumulative"], request_id, txn)]


def happened(told: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The notes of the handlers in the same words."""
    found: list[tuple[Any, ...]] = []
    for what, *rest in told:
        if what == "run":
            for sequence_id, highest_sequence_id, data, crc in rest[1]:
                assert len(data) > CHECKED_BYTES_MAX or crc == wire.crc32c(data)
                found.append(("send", sequence_id, highest_sequence_id, data))
        elif what == "refused" or what == "command":
            found.append((what, *rest[1:]))
        elif what == "malformed":
            found.append((what,))
        elif what != "closed":
            assert what in ("ack", "flow", "redeliver"), f"{what}: {rest}"
            found.append((what, *rest))
    return found


def one_input(data: bytes) -> None:
    peer = Peer()
    stream = b""
    try:
        for what, step in steps(data):
            if what == "write":
                stream += step
                peer.write(step)
            elif what == "read":
                peer.loop.go_round()
            else:
                peer.answer()
        peer.settle()
    finally:
        peer.close()
    compare(happened(peer.notes.told), expected(stream))
    frames, consumed, error = wire.scan(peer.answers, FRAME_BYTES_MAX)
    assert error is None and consumed == len(peer.answers), "the answers are not whole frames"
    # A peer that is closed for what it did may not hear of what it sent before.
    assert len(frames) <= peer.entries
    assert peer.connection.group.publish_bytes == 0


def compare(found: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]]) -> None:
    """The same in the same order, but that SENDs of one read come after its ACKs and refusals."""
    for kinds in (
        ("send", "command", "malformed"),
        ("refused", "ack", "flow", "redeliver", "malformed"),
    ):
        seen = [each for each in found if each[0] in kinds]
        hoped = [each for each in wanted if each[0] in kinds]
        assert len(seen) == len(hoped), f"{len(seen)} instead of {len(hoped)} {kinds}"
        for got, due in zip(seen, hoped, strict=True):
            assert got == due, f"{str(got)[:200]} instead of {str(due)[:200]}"


def seeds() -> list[bytes]:
    """Steps that read and answer in between, and SENDs of every size."""
    every_size = bytes(byte for n in range(len(SIZES)) for byte in (0, n, n, 0))
    large = bytes([0, 10, 1, 0, 0, 11, 2, 0, 6, 0, 9, 3, 0, 6, 7, 0, 11, 4, 0])
    spoiled = bytes(byte for n in range(250, 254) for byte in (0, 3, n, n, 6))
    known = bytes(byte for n in range(len(CLIENT_FRAMES)) for byte in (4, n, 6))
    flow = bytes([5, 16]) + bytes.fromhex("0000000c00000008080b5a0408021005")
    message_id = pb.MessageIdData(ledgerId=7, entryId=9, ack_set=[-1, 5])
    command = pb.BaseCommand(type=pb.BaseCommand.ACK)
    command.ack.consumer_id = CONSUMER
    command.ack.ack_type = pb.CommandAck.Individual
    command.ack.message_id.append(message_id)
    ack = wire.frame(command.SerializeToString())
    paused = bytes([0, 2, 1, 0] * 8 + [6, 6, 7, 6, 7])
    return [every_size, large, spoiled, known, flow, bytes([5, len(ack)]) + ack, paused, b""]


if __name__ == "__main__":
    driver.main(seeds, one_input)
