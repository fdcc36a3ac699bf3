"""commands.pyx: decoding and building hot commands.

The results are upper bounds: each call creates Python objects, which the broker does not.
"""

from __future__ import annotations

from typing import Any

import pytest

from pyxbroker import commands
from pyxbroker.proto import PulsarApi as pb


def test_decode_base(benchmark: Any) -> None:
    command = pb.BaseCommand(type=pb.BaseCommand.SEND)
    command.send.producer_id = 1
    command.send.sequence_id = 10**6
    assert benchmark(commands.decode_base_py, command.SerializeToString())[0] == 6


def test_decode_send(benchmark: Any) -> None:
    encoded = pb.CommandSend(producer_id=1, sequence_id=10**6, num_messages=500).SerializeToString()
    assert benchmark(commands.decode_send_py, encoded)["num_messages"] == 500


def test_decode_flow(benchmark: Any) -> None:
    encoded = pb.CommandFlow(consumer_id=1, messagePermits=1000).SerializeToString()
    assert benchmark(commands.decode_flow_py, encoded)["permits"] == 1000


@pytest.mark.parametrize("ids", [1, 100])
def test_decode_ack(benchmark: Any, ids: int) -> None:
    acknowledged = [pb.MessageIdData(ledgerId=10, entryId=each) for each in range(ids)]
    ack = pb.CommandAck(consumer_id=1, ack_type=0, message_id=acknowledged, request_id=5)
    assert len(benchmark(commands.decode_ack_py, ack.SerializeToString())[1]) == ids


def test_peek_metadata(benchmark: Any) -> None:
    metadata = pb.MessageMetadata(
        producer_name="standalone-0-1",
        sequence_id=10**6,
        publish_time=1_700_000_000_000,
        partition_key="key",
        num_messages_in_batch=500,
        properties=[pb.KeyValue(key=f"key-{i}", value="value") for i in range(3)],
    )
    assert benchmark(commands.peek_metadata_py, metadata.SerializeToString())["is_batch"]


def test_build_receipt(benchmark: Any) -> None:
    assert len(benchmark(commands.build_receipt_py, 1, 10**6, 0, 10, 10**6)) > 20


@pytest.mark.parametrize("words", [0, 8])
def test_build_message_header(benchmark: Any, words: int) -> None:
    arguments = (1, 10, 10**6, 0, 0, [-1] * words, 0, 1024)
    assert len(benchmark(commands.build_message_header_py, *arguments)) > 20
