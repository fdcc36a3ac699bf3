"""Commands as long as a frame may be do not hold up the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from one_broker import TOPIC, Broker, command_of, run
from oracles import wire
from pyxbroker.base.errors import NotAllowed
from pyxbroker.base.limits import COMMAND_BYTES_MAX, COMMAND_FIELDS_MAX, PROPERTIES_MAX
from pyxbroker.broker.commands.command_checks import check_text, exceeded_limit
from pyxbroker.proto import PulsarApi as pb
from served import Served, ack, flow, ping, redeliver, turns

ACK_PART_BYTES = 131_072
REDELIVER_PART_IDS = 1_000


def test_too_many_properties_are_refused_before_any_is_looked_at() -> None:
    command = pb.CommandLookupTopic(topic="t", request_id=1)
    command.MergeFromString(b"\x42\x05\x0a\x01\xff\x12\x00")  # a key that is no text
    for _ in range(PROPERTIES_MAX):
        command.properties.add(key="", value="")
    with pytest.raises(NotAllowed, match="too many: 1001"):
        check_text(command)
    del command.properties[-1]
    with pytest.raises(NotAllowed, match="not UTF-8"):
        check_text(command)


# --- with many message ids ------------------------------------------------------------------------


def served(scenario: Callable[[Served], Awaitable[None]]) -> None:
    """Runs a scenario with a connection of its own."""

    async def all_of_it() -> None:
        side = Served()
        try:
            await scenario(side)
        finally:
            side.close()
        await turns()

    asyncio.run(all_of_it())


def ids(count: int, first: int = 0) -> list[Any]:
    return [pb.MessageIdData(ledgerId=7, entryId=first + i) for i in range(count)]


def positions_of(told: list[tuple[Any, ...]], what: str) -> list[list[tuple[int, ...]]]:
    return [each[1] for each in told if each[0] == what]


async def all_told(side: Served, last: str) -> list[tuple[Any, ...]]:
    """What the handlers are told until something comes of a kind."""
    told = side.told
    for _ in range(10_000):
        if any(each[0] == last for each in told):
            return told
        await asyncio.sleep(0)
        told += side.told
    raise AssertionError(f"no {last}: {told}"[:200])


async def begin_long_ack(
    side: Served, count: int
) -> tuple[asyncio.Future[None], list[tuple[Any, ...]]]:
    """Begins to write an ACK with so many ids, until the handlers are told of it: the writing, and
    what they are told."""
    side.far.setblocking(True)
    writing = asyncio.to_thread(side.far.sendall, ack(*ids(count)))
    waiting = asyncio.ensure_future(writing)
    told: list[tuple[Any, ...]] = []
    while not told:
        await asyncio.sleep(0)
        told = side.told
    return waiting, told


def test_a_long_ack_is_taken_in_parts_and_answered_once_at_its_end() -> None:
    async def scenario(side: Served) -> None:
        count = 60_000
        await side.write(ack(*ids(count), request_id=5) + ack(*ids(1, count), request_id=6))
        await side.write(flow(3))
        told = await all_told(side, "flow")
        assert [each[0] for each in told] == ["ack"] * (len(told) - 1) + ["flow"]
        parts = positions_of(told, "ack")
        assert [each for part in parts for each in part] == [(7, i, 0) for i in range(count + 1)]
        assert len(parts) > 4
        assert max(map(len, parts)) <= ACK_PART_BYTES // len(ids(1)[0].SerializeToString())
        assert [each[3] for each in told[:-1]] == [None] * (len(parts) - 2) + [5, 6]

    served(scenario)


def test_others_are_served_between_the_parts_of_a_long_ack() -> None:
    async def scenario(side: Served) -> None:
        other, far = side.accept()
        other.consumers[2] = side.connection.consumers[2]
        waiting, told = await begin_long_ack(side, 100_000)
        assert len(told) == 1
        far.send(flow(3))
        told += await all_told(side, "flow")
        before = len(positions_of(told, "ack"))
        await waiting
        await side.write(flow(4))
        told += await all_told(side, "flow")
        assert before < 6
        assert sum(map(len, positions_of(told, "ack"))) == 100_000
        other.close()
        far.close()

    served(scenario)


def test_a_long_ack_ends_with_its_connection() -> None:
    async def scenario(side: Served) -> None:
        waiting, told = await begin_long_ack(side, 100_000)
        # At once: a loop that turns while the other thread ends takes the rest.
        side.connection.close()
        await waiting
        told += side.told
        assert told[-1] == ("closed",)
        assert sum(map(len, positions_of(told, "ack"))) < 100_000
        await turns()
        assert not side.told
        assert not side.group.live

    served(scenario)


def test_a_cumulative_ack_with_many_ids_is_refused_at_once() -> None:
    async def scenario(side: Served) -> None:
        await side.write(ack(*ids(60_000), ack_type=1, request_id=5) + ping())
        told = await all_told(side, "command")
        assert [each[0] for each in told] == ["ack", "command"]
        assert told[0][2:4] == (True, 5)

    served(scenario)


def test_many_redeliveries_are_done_in_parts_and_what_follows_waits() -> None:
    async def scenario(side: Served) -> None:
        count = 20 * REDELIVER_PART_IDS + 1
        await side.write(redeliver(*ids(count)) + flow(3))
        told = await all_told(side, "flow")
        parts = positions_of(told, "redeliver")
        assert len(told) == len(parts) + 1
        assert max(map(len, parts)) == REDELIVER_PART_IDS
        assert [each for part in parts for each in part] == [(7, i) for i in range(count)]

    served(scenario)


def test_few_redeliveries_are_done_at_once() -> None:
    async def scenario(side: Served) -> None:
        await side.write(redeliver(*ids(REDELIVER_PART_IDS), consumer_epoch=2**64 - 1))
        assert side.told == [("redeliver", [(7, i) for i in range(REDELIVER_PART_IDS)], -1)]
        await side.write(redeliver())
        assert side.told == [("redeliver", [], None)]

    served(scenario)


def test_redeliveries_end_with_their_consumer() -> None:
    async def scenario(side: Served) -> None:
        consumer = side.connection.consumers[2]
        consumer.redelivers_in_parts = False  # it is in order: everything comes again
        await side.write(redeliver(*ids(3 * REDELIVER_PART_IDS)) + flow(3))
        told = await all_told(side, "flow")
        assert [each[0] for each in told] == ["redeliver", "flow"]

        class Leaves:
            def on_redeliver(self, positions: list[tuple[int, int]], epoch: int | None) -> bool:
                del side.connection.consumers[2]
                return True

        side.connection.consumers[2] = Leaves()
        await side.write(redeliver(*ids(3 * REDELIVER_PART_IDS)) + ping())
        assert [each[0] for each in await all_told(side, "command")] == ["command"]
        assert side.notes.stray == ["REDELIVER_UNACKNOWLEDGED_MESSAGES"]

    served(scenario)


def test_a_bad_id_late_in_a_long_command_closes_the_connection() -> None:
    async def scenario(side: Served) -> None:
        bad = pb.MessageIdData.FromString(b"")
        command = pb.BaseCommand(type=pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        wanted = command.redeliverUnacknowledgedMessages
        wanted.consumer_id = 2
        wanted.message_ids.extend([*ids(REDELIVER_PART_IDS), bad])
        await side.write(wire.frame(command.SerializePartialToString()))
        told = await all_told(side, "closed")
        assert [each[0] for each in told] == ["redeliver", "malformed", "closed"]

    served(scenario)


# --- with many fields -----------------------------------------------------------------------------


def full_of(message: Any, field: bytes, count: int) -> bytes:
    """A command with a field in bytes, many times, behind what its message says."""
    kind = pb.BaseCommand.FromString(command_of(message)).type
    body = message.SerializeToString() + field * count
    envelope = varint(8) + varint(kind) + varint(kind << 3 | 2) + varint(len(body))
    return wire.frame(envelope + body)


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


EMPTY_PROPERTY = b"\x42\x04\x0a\x00\x12\x00"  # of a LOOKUP; three fields
UNKNOWN = b"\xc2\x3e\x00"


def test_a_command_with_too_many_fields_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()

        async def write(data: bytes) -> None:
            await broker.loop.sock_sendall(client.far, data)

        lookup = pb.CommandLookupTopic(topic="persistent://public/default/t", request_id=77)
        too_many = COMMAND_FIELDS_MAX // 3 + 1
        await write(full_of(lookup, EMPTY_PROPERTY, too_many))
        answer = await client.receive("lookupTopicResponse")
        assert answer.request_id == 77
        assert f"more than {COMMAND_FIELDS_MAX} fields" in answer.message
        # As many as there may be are looked at.
        await write(full_of(lookup, EMPTY_PROPERTY, too_many - 100))
        answer = await client.receive("lookupTopicResponse")
        assert "properties are too many" in answer.message
        # Who waits for no answer is sent away, whatever the command.
        await write(full_of(pb.CommandPing(), UNKNOWN, COMMAND_FIELDS_MAX))
        answer = await client.receive("error")
        assert f"more than {COMMAND_FIELDS_MAX} fields" in answer.message
        await client.closed()

    run(tmp_path, scenario)


@pytest.mark.parametrize("kind", ["LOOKUP", "GET_TOPICS_OF_NAMESPACE", "PING", "SEEK"])
def test_only_a_command_with_a_schema_may_be_as_long_as_a_frame(kind: str) -> None:
    long = bytes(COMMAND_BYTES_MAX + 1)
    assert exceeded_limit(pb.BaseCommand.Type.Value(kind), long) == f"{COMMAND_BYTES_MAX} bytes"
    for other in ("PRODUCER", "SUBSCRIBE", "GET_OR_CREATE_SCHEMA"):
        field = pb.BaseCommand.DESCRIPTOR.fields_by_number[pb.BaseCommand.Type.Value(other)]
        body = b"\x72" + varint(len(long)) + long  # one field
        envelope = b"\x08" + varint(field.number) + varint(field.number << 3 | 2)
        assert exceeded_limit(field.number, envelope + varint(len(body)) + body) is None
    assert exceeded_limit(pb.BaseCommand.PRODUCER, long) == f"{COMMAND_FIELDS_MAX} fields"


def test_a_large_schema_is_no_large_number_of_fields(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        schema = pb.Schema(name="s", schema_data=bytes(3 * COMMAND_FIELDS_MAX), type=pb.Schema.Json)
        command = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=78, schema=schema)
        await broker.loop.sock_sendall(client.far, wire.frame(command_of(command)))
        answer = await client.receive("error")
        assert answer.request_id == 78
        assert "Invalid schema definition data for JSON schema" in answer.message

    run(tmp_path, scenario)
