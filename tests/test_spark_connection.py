"""How the Spark connector finds a broker, and what it does not ask of it."""

from __future__ import annotations

import pytest

from pyxbroker.spark import admission
from pyxbroker.spark.broker_connection import address_of
from pyxbroker.spark.options import STREAM, Options
from pyxbroker.spark.plan import Range
from pyxbroker.spark.positions import Position

TOPIC = "persistent://public/default/t"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("pulsar://broker:7000", ("broker", 7000)),
        ("pulsar://broker:7000/", ("broker", 7000)),
        ("pulsar://broker", ("broker", 6650)),
        ("pulsar://broker/", ("broker", 6650)),
        ("pulsar+ssl://broker/", ("broker", 6651)),
        ("pulsar://[::1]:7000/", ("::1", 7000)),
        ("pulsar://[::1]", ("::1", 6650)),
    ],
)
def test_the_address_of_a_broker(url: str, address: tuple[str, int]) -> None:
    assert address_of(url) == address


def test_no_rows_cost_no_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_reader(*_: object) -> None:
        raise AssertionError("a broker is asked")

    monkeypatch.setattr(admission, "RangeReader", no_reader)
    options = Options(STREAM, {"service.url": "pulsar://a", "topic": TOPIC})
    begin = Position(3, 7, 2)
    wanted = Range(TOPIC, begin, Position(9, 0))
    assert admission._cut(options, wanted, 0) == (0, begin)
