"""What tests of the Spark connector share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness.brokers import Broker


def given(broker: Broker, options: dict[str, str]) -> dict[str, str]:
    """Options; `admin_url` is the option admin.url."""
    named = {name.replace("_", "."): value for name, value in options.items()}
    return {"service.url": broker.url} | named


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
