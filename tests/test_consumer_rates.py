"""What a consumer gets and does, per second."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from one_broker import Broker, run
from pyxbroker.broker.topics import consumer

WINDOW_S = 0.1


def test_who_acknowledges_nothing_yet_has_rates_from_the_first_window_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "RATE_WINDOW_S", WINDOW_S)

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe()
        await broker.publish(*[b"x" * 100] * 10)
        messages = await client.messages(10)
        await asyncio.sleep(WINDOW_S)
        one = client.connection.consumers[1]
        rates = one.rates()
        assert rates.msg_out > 0
        assert rates.bytes_out > 100 * rates.msg_out
        assert (rates.redelivered, rates.acked) == (0, 0)
        await client.ack(*[each.position for each in messages])
        await asyncio.sleep(WINDOW_S)
        assert one.rates().acked > 0
        assert one.rates().msg_out == 0

    run(tmp_path, scenario)
