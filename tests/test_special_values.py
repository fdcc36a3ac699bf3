"""Numbers and empty values that mean "off", "no limit" or "the default" in Pulsar's files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness import wire
from harness.raw import RawConnection

from command_line import standalone
from one_broker import Broker as OneBroker
from one_broker import run
from pyxbroker.broker.broker import publish_bytes_max
from pyxbroker.settings.config import SCHEMA, Config
from pyxbroker.settings.schema import LONG_MAX

# Key, value, and the value in force here; none where the key has no effect here.
TABLE = [
    line.split("\t")
    for line in (Path(__file__).parent / "data" / "special_values.tsv").read_text().splitlines()
]
LIMITS = [key for key, row in SCHEMA.items() if row.has_floor]


def test_each_value_that_pulsars_files_describe_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    for key, text, in_force in TABLE:
        path.write_text(f"{key}={text}\n")
        config = Config.load(path)
        assert not config.ignored.unknown, key
        assert not config.ignored.older, key
        if key in SCHEMA:
            value = getattr(config, key)
            assert ("None" if value is None else f"{value:g}") == in_force, key
        else:
            assert (in_force, config.changed()) == ("", {}), key


@pytest.mark.parametrize("text", ["-1", "-2", "-2147483648"])
def test_a_number_below_the_one_for_off_is_off(text: str) -> None:
    assert len(LIMITS) > 50
    for key in LIMITS:
        row = SCHEMA[key]
        assert row.parse(text) == min(row.minimum, max(int(text), row.minimum)), key


def test_a_publish_buffer_without_a_limit_never_stops_producers() -> None:
    assert publish_bytes_max(Config.load()) == 64 << 20
    unlimited = Config.load(overrides={"maxMessagePublishBufferSizeInMB": "-1"})
    assert publish_bytes_max(unlimited) == LONG_MAX


def test_an_interval_of_zero_never_looks(tmp_path: Path) -> None:
    async def scenario(broker: OneBroker) -> None:
        looks = []

        async def look() -> None:
            looks.append(1)

        broker.service.repeat("it", 0, look)
        broker.service.repeat("it", -1, look)
        await asyncio.sleep(0.05)
        assert looks == []
        broker.service.repeat("it", 0.001, look)
        await asyncio.sleep(0.05)
        assert looks

    run(tmp_path, scenario)


def test_a_broker_whose_limits_are_all_negative_serves(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("".join(f"{key}=-1\n" for key in LIMITS))
    with (
        standalone(tmp_path / "data", "--config", str(conf)) as broker,
        RawConnection(broker.broker_port) as raw,
    ):
        raw.producer("persistent://public/default/t")
        raw.send(b"x", 0)
        raw.expect(wire.SEND_RECEIPT)
