"""The wire contract: what proto/PulsarApi.proto promises about numbers, names and defaults."""

from __future__ import annotations

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet

from oracles import wire
from oracles.golden import CLIENT_FRAMES
from pyxbroker.proto import PulsarApi as pb

COMMAND_TYPES = [*range(2, 41), *range(50, 69)]
FIELDS = pb.BaseCommand.DESCRIPTOR.fields_by_number


def test_the_protocol_has_58_commands() -> None:
    assert sorted(pb.BaseCommand.Type.values()) == COMMAND_TYPES
    assert len(COMMAND_TYPES) == 58


@pytest.mark.parametrize("name", pb.BaseCommand.Type.keys())
def test_a_commands_field_has_the_number_of_its_type(name: str) -> None:
    field = FIELDS[pb.BaseCommand.Type.Value(name)]
    # PARTITIONED_METADATA and LOOKUP are shorter or longer than their messages on the wire.
    squeezed = name.replace("_", "").lower()
    assert field.name.replace("_", "").lower() in (
        squeezed,
        squeezed.replace("partitionedmetadata", "partitionmetadata"),
        squeezed.replace("lookup", "lookuptopic"),
    )
    assert field.message_type is not None


def test_base_command_has_no_other_fields() -> None:
    assert sorted(FIELDS) == [1, *COMMAND_TYPES]
    assert FIELDS[1].name == "type"
    assert FIELDS[1].is_required


@pytest.mark.parametrize("name", CLIENT_FRAMES)
def test_the_clients_frames_hold_nothing_unknown(name: str) -> None:
    ((command, section),), _, error = wire.scan(bytes.fromhex(CLIENT_FRAMES[name]), 1000)
    base = pb.BaseCommand.FromString(command)
    assert error is None
    assert unknown_in(base) == []
    assert base.HasField(FIELDS[base.type].name)
    # Encoded again, a command is the same bytes: the numbers and the wire types are the client's.
    assert base.SerializeToString() == command
    if section:
        metadata = pb.MessageMetadata.FromString(wire.check_payload(section)[0])
        assert unknown_in(metadata) == []
        assert (metadata.partition_key, metadata.properties[0].value) == ("k", "q")


def unknown_in(message: object) -> list[str]:
    """Where a message has fields that the contract does not know."""
    found = [type(message).__name__] if len(UnknownFieldSet(message)) else []
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        if field.message_type is not None:
            for each in value if field.is_repeated else [value]:
                found += unknown_in(each)
    return found


@pytest.mark.parametrize(
    ("message", "field", "default"),
    [
        ("CommandSubscribe", "durable", True),
        ("CommandSubscribe", "force_topic_creation", True),
        ("CommandProducer", "user_provided_producer_name", True),
        ("CommandSend", "num_messages", 1),
        ("CommandProducerSuccess", "last_sequence_id", -1),
        ("CommandProducerSuccess", "producer_ready", True),
        ("CommandPartitionedTopicMetadata", "metadata_auto_creation_enabled", True),
        ("CommandGetTopicsOfNamespaceResponse", "changed", True),
        ("MessageIdData", "partition", -1),
        ("MessageIdData", "batch_index", -1),
        ("MessageMetadata", "num_messages_in_batch", 1),
        ("CommandConnect", "protocol_version", 0),
    ],
)
def test_what_is_left_out_means_what_clients_take_it_to_mean(
    message: str, field: str, default: object
) -> None:
    assert getattr(getattr(pb, message)(), field) == default


@pytest.mark.parametrize(
    ("enum", "values"),
    [
        (pb.CompressionType, ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"]),
        (pb.CommandSubscribe.SubType, ["Exclusive", "Shared", "Failover", "Key_Shared"]),
        (pb.CommandSubscribe.InitialPosition, ["Latest", "Earliest"]),
        (pb.CommandAck.AckType, ["Individual", "Cumulative"]),
        (pb.CommandLookupTopicResponse.LookupType, ["Redirect", "Connect", "Failed"]),
        (pb.CommandPartitionedTopicMetadataResponse.LookupType, ["Success", "Failed"]),
        (pb.TxnAction, ["COMMIT", "ABORT"]),
    ],
)
def test_enums_count_from_0_in_the_protocols_order(enum: object, values: list[str]) -> None:
    assert [(name, number) for name, number in enum.items()] == [  # type: ignore[attr-defined]
        (name, number) for number, name in enumerate(values)
    ]


def test_minus_one_travels_as_an_unsigned_number() -> None:
    earliest = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
    assert earliest.SerializeToString().hex() == "08ffffffffffffffffff0110ffffffffffffffffff01"
