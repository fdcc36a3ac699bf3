"""Transaction coordinators: their commands, their logs, and what a restart finds."""

from __future__ import annotations

from pathlib import Path

from one_broker import Broker
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.proto import PulsarApi as pb
from transactions import add_partition, add_subscription, end, new, run, with_buffer


def test_a_transaction_ends_at_its_participants_before_the_client_is_answered(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        name, buffer = await with_buffer(broker, "t")
        client = await broker.client()
        command = pb.CommandTcClientConnectRequest(tc_id=0)
        answer = await client.request(command, "tcClientConnectResponse")
        assert not answer.HasField("error")
        first, second = await new(client), await new(client)
        assert (first, second) == (TxnId(0, 0), TxnId(0, 1))
        for txn in (first, second):
            answer = await add_partition(client, txn, name, "t", "does-not-exist")
            assert not answer.HasField("error")
        answer = await add_subscription(client, first, (name, "does not exist"))
        assert not answer.HasField("error")
        answer = await end(client, second)
        assert not answer.HasField("error"), answer.message
        assert buffer.ended == [(second, True, -1)]
        answer = await end(client, first, is_commit=False)
        assert (answer.txnid_most_bits, answer.txnid_least_bits) == first.wire()
        assert buffer.ended[1:] == [(first, False, -1)]

    run(tmp_path, scenario)
