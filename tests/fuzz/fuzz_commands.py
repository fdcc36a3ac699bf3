"""The decoders of hot commands: the same answer as the plain decoders, for any bytes."""

from __future__ import annotations

import driver

from oracles import commands as plain
from oracles import wire
from oracles.golden import CLIENT_FRAMES
from pyxbroker import commands
from pyxbroker.proto import PulsarApi as pb

DECODERS = (
    (commands.decode_base_py, plain.decode_base),
    (commands.decode_send_py, plain.decode_send),
    (commands.decode_flow_py, plain.decode_flow),
    (commands.decode_ack_py, plain.decode_ack),
    (commands.peek_metadata_py, plain.peek_metadata),
    (commands.decode_redeliver_py, plain.decode_redeliver),
)


def seeds() -> list[bytes]:
    """A byte that chooses the decoder, and a message."""
    message_id = pb.MessageIdData(
        ledgerId=7, entryId=2**40, partition=3, batch_index=2, ack_set=[-1, 5], batch_size=70
    )
    messages = [
        (1, pb.CommandSend(producer_id=1, sequence_id=2, num_messages=300, is_chunk=True)),
        (1, pb.CommandSend(producer_id=1, sequence_id=2, txnid_least_bits=3, txnid_most_bits=4)),
        (2, pb.CommandFlow(consumer_id=1, messagePermits=1000)),
        (3, pb.CommandAck(consumer_id=1, ack_type=1, message_id=[message_id], request_id=9)),
        (3, pb.CommandAck(consumer_id=1, ack_type=0, message_id=[message_id] * 3)),
        (
            4,
            pb.MessageMetadata(
                producer_name="p",
                sequence_id=1,
                publish_time=2,
                num_messages_in_batch=10,
                partition_key="key",
                ordering_key=b"order",
                deliver_at_time=5,
                marker_type=20,
                highest_sequence_id=9,
            ),
        ),
        (
            5,
            pb.CommandRedeliverUnacknowledgedMessages(
                consumer_id=1, message_ids=[message_id] * 2, consumer_epoch=2**63
            ),
        ),
    ]
    found = [bytes([choice]) + each.SerializeToString() for choice, each in messages]
    for each in CLIENT_FRAMES.values():
        ((command, _),), _, _ = wire.scan(bytes.fromhex(each), 10_000)
        found.append(b"\x00" + command)
    return found


def one_input(data: bytes) -> None:
    if not data:
        return
    decode, oracle = DECODERS[data[0] % len(DECODERS)]
    message = bytes(data[1:])
    found, expected = decode(message), oracle(message)
    assert found == expected, f"{found} instead of {expected}"


if __name__ == "__main__":
    driver.main(seeds, one_input)
