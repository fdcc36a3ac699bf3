"""What tests of the Spark connector share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from harness.brokers import Broker

from pyxbroker.spark.exactly_once import ExactlyOnce
from pyxbroker.spark.options import SINK, Options
from pyxbroker.spark.outgoing import Outgoing
from pyxbroker.spark.producers import AtLeastOnce
from pyxbroker.spark.sequence import Part


def given(broker: Broker, options: dict[str, str]) -> dict[str, str]:
    """Options; `admin_url` is the option admin.url."""
    named = {name.replace("_", "."): value for name, value in options.items()}
    return {"service.url": broker.url} | named


def sink_options(broker: Broker, topic: str, **more: str) -> Options:
    """Options of a sink; `a_b` is the option a.b."""
    return Options(SINK, given(broker, {"topic": topic} | more))


def sent(broker: Broker, topic: str, *messages: Outgoing, **more: str) -> None:
    """What a task does that may send a message again."""
    sender = AtLeastOnce(sink_options(broker, topic, **more), None)
    try:
        for each in messages:
            sender.send(each)
        sender.finish()
    finally:
        sender.close()


def sent_once(
    options: Options, part: Part, messages: Iterable[Outgoing], is_cut: bool = False
) -> list[str]:
    """What a task does that sends each message once; is_cut: it ends before it is done. The topics
    without deduplication.
    """
    sender = ExactlyOnce(options, None, part)
    try:
        for each in messages:
            sender.send(each)
        if is_cut:
            sender._flush()
            return []
        sender.finish()
        return sender.without_deduplication()
    finally:
        sender.close()


def error_of(do: Callable[[], Any]) -> str:
    """The text of the error that Spark shows."""
    with pytest.raises(Exception) as caught:
        do()
    return str(caught.value)


def rows_of(broker: Broker, **options: str) -> list[dict[str, Any]]:
    """What the source reads, without Spark."""
    return rows_with(given(broker, options))


def rows_with(options: dict[str, str]) -> list[dict[str, Any]]:
    """The same with options by their own names."""
    from pyxbroker.spark.source import PulsarDataSource

    source = PulsarDataSource(options)
    reader = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]
