"""Cost of a publish rate that is not reached, per run."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.micro import material
from pyxbroker.broker.broker_limits import NO_BROKER_LIMITS, BrokerLimits
from pyxbroker.broker.topics.publish_rate import PublishLimiter, PublishRate
from pyxbroker.entry import EntryRun
from pyxbroker.policies.values import Rate
from pyxbroker.turn import Turn


def test_run_within_its_rate(benchmark: Any) -> None:
    loop = asyncio.new_event_loop()
    rate = PublishRate(Turn(loop), NO_BROKER_LIMITS)
    rate.change(Rate(10**9, 10**12))
    run = EntryRun.of(material.section())
    benchmark(rate.limit(lambda run: None), run)
    assert rate.limited == 0
    loop.close()


def test_run_within_its_rate_and_that_of_the_broker(benchmark: Any) -> None:
    loop = asyncio.new_event_loop()
    turn = Turn(loop)
    of_broker = BrokerLimits()
    of_broker.publish = PublishLimiter(turn, Rate(10**9, 10**12))
    rate = PublishRate(turn, of_broker)
    rate.change(Rate(10**9, 10**12))
    run = EntryRun.of(material.section())
    benchmark(rate.limit(lambda run: None), run)
    assert rate.limited == 0
    loop.close()
