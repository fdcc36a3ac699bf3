"""What a consumer gets and does, per second; and rates of counters."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from one_broker import Broker, run
from pyxbroker.base.rates import Rates
from pyxbroker.broker.subscriptions import consumer

WINDOW_S = 0.1


def test_a_rate_is_of_the_last_window_that_is_over() -> None:
    rates = Rates(100.0, 0, 7, window_s=10.0)
    assert rates.per_second(109.0, 90, 9) == (0.0, 0.0), "none is over"
    assert rates.per_second(110.0, 100, 27) == (10.0, 2.0)
    assert rates.per_second(119.0, 900, 27) == (10.0, 2.0), "the next one is not over"
    assert rates.per_second(130.0, 300, 27) == (10.0, 0.0), "nobody asked at its end"
    assert rates.per_second(140.0, 299, 127) == (0.0, 0.0), "a counter began anew"
    assert rates.per_second(150.0, 309, 137) == (1.0, 1.0)


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
