"""The dashboard and the alert rules of docs/grafana find what a real Prometheus has scraped."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness import wire
from harness.brokers import ROOT, Broker
from harness.prometheus import Prometheus
from harness.raw import RawConnection

pytestmark = pytest.mark.pyxbroker

DASHBOARD = json.loads((ROOT / "docs" / "grafana" / "pyxbroker.json").read_text())
TOPIC = "persistent://public/default/watched"
MESSAGES = 50
# What Grafana puts in the place of variables when everything is chosen.
VALUES = {"cluster": ".*", "namespace": ".*", "topic": ".*", "__rate_interval": "10s"}
WAIT_S = 90.0
# Series that exist when something is wrong.
ABSENT = ("pyxbroker_subscription_stopped_by_damage", "pyxbroker_defects_total")


def panels() -> list[dict[str, Any]]:
    """Those that show something."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """The title of its panel, and each expression, as Grafana asks Prometheus."""
    return [
        (panel["title"], filled_in(target["expr"]))
        for panel in panels()
        for target in panel["targets"]
    ]


def filled_in(expression: str) -> str:
    return re.sub(r"\$(\w+)", lambda name: VALUES[name[1]], expression)


def variables() -> list[tuple[str, str]]:
    """The series of each variable that asks for some, and the label whose values it has."""
    found = []
    for each in DASHBOARD["templating"]["list"]:
        if each["type"] == "query":
            wanted = re.fullmatch(r"label_values\((.*), (\w+)\)", each["definition"])
            assert wanted, each["definition"]
            found.append((filled_in(wanted[1]), wanted[2]))
    return found


class Scraped:
    """What a Prometheus knows of a broker."""

    def __init__(
        self, prometheus: Prometheus, producer: RawConnection, consumer: RawConnection
    ) -> None:
        self._prometheus = prometheus
        self._producer = producer
        self._consumer = consumer

    def use(self) -> None:
        """One message more is sent, and received: what nobody uses has no mean of anything."""
        self._producer.send(bytes(1000), 0)
        self._producer.wait_for(wire.SEND_RECEIPT)
        self._consumer.wait_for(wire.MESSAGE)

    def values(self, expression: str) -> list[float]:
        return [float(each["value"][1]) for each in self._prometheus.query(expression)]

    def labels(self, expression: str, label: str) -> set[str]:
        return {each["metric"][label] for each in self._prometheus.query(expression)}


def until(condition: Callable[[], bool], why: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.2)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """A broker that was sent something, stopped and started, so that it reads from its disk, and is
    watched while somebody publishes and reads."""
    directory: Path = tmp_path_factory.mktemp("watched")
    broker = Broker(
        "pyxbroker", directory / "broker", settings={"managedLedgerStatsPeriodSeconds": "1"}
    )
    prometheus = Prometheus(directory / "prometheus", f"127.0.0.1:{broker.web_port}")
    try:
        broker.start()
        with RawConnection(broker.port) as one:
            assert one.subscribe(TOPIC, "s", 2).type == wire.SUCCESS
            send(one)
        assert broker.stop() == 0, broker.output()
        broker.start()
        prometheus.wait_ready()
        with RawConnection(broker.port) as producer, RawConnection(broker.port) as consumer:
            assert consumer.subscribe(TOPIC, "s", 2).type == wire.SUCCESS
            consumer.flow(1000, 2)
            send(producer)
            for _ in range(2 * MESSAGES):
                consumer.wait_for(wire.MESSAGE)
            yield Scraped(prometheus, producer, consumer)
        assert broker.stop() == 0, broker.output()
    finally:
        prometheus.close()
        broker.close()


def send(one: RawConnection) -> None:
    one.producer(TOPIC, 1)
    for number in range(MESSAGES):
        one.send(bytes(1000), number)
        one.wait_for(wire.SEND_RECEIPT)


def test_each_query_of_the_dashboard_has_data(scraped: Scraped) -> None:
    waiting = queries()
    assert len(waiting) > 70

    def all_have() -> bool:
        scraped.use()
        waiting[:] = [each for each in waiting if not has_data(scraped.values(each[1]))]
        return not waiting

    until(all_have, lambda: waiting)


def test_each_alert_rule_has_data(scraped: Scraped) -> None:
    text = (ROOT / "docs" / "grafana" / "alerts.yml").read_text()
    rules = re.findall(r"- alert: (\w+)\n(?: +#.*\n)* +expr: (.+)\n", text)
    assert len(rules) == text.count("- alert:")
    page = (ROOT / "docs" / "sizing.md").read_text()
    assert re.findall(r"^\| `(Pyx\w+)` \|", page, re.MULTILINE) == [name for name, _ in rules]
    for _, rule in rules:
        # The series alone: the condition holds in no test.
        expression = re.split(r" (?:==|<|>) ", rule)[0].replace('job="pyxbroker"', 'job="broker"')
        if not any(name in rule for name in ABSENT):
            until(partial(has_any_data, scraped, expression), partial(str, expression))
        else:
            assert scraped.values(rule) == []  # Prometheus understands it, and nothing is wrong


def has_any_data(scraped: Scraped, expression: str) -> bool:
    scraped.use()
    return has_data(scraped.values(expression))


def has_data(values: list[float]) -> bool:
    return any(value == value for value in values)  # what is no number shows nothing


def test_what_a_dashboard_shows_is_what_happened(scraped: Scraped) -> None:
    for expression, least in (
        ("sum(pulsar_broker_in_messages_total)", MESSAGES),
        (f'pulsar_subscription_back_log{{topic="{TOPIC}"}}', 2 * MESSAGES),
        ("bookie_READ_BYTES", 1000 * MESSAGES),
        ('pulsar_broker_publish_latency{quantile="1.0"}', 0.001),
    ):
        until(partial(is_at_least, scraped, expression, least), partial(scraped.values, expression))


def is_at_least(scraped: Scraped, expression: str, least: float) -> bool:
    return max(scraped.values(expression), default=0) >= least


def test_each_variable_of_the_dashboard_has_values(scraped: Scraped) -> None:
    wanted = {"cluster": "standalone", "namespace": "public/default", "topic": TOPIC}
    assert {label for _, label in variables()} == set(wanted)
    for series, label in variables():
        until(
            partial(has_label, scraped, series, label, wanted[label]),
            partial(scraped.labels, series, label),
        )


def has_label(scraped: Scraped, series: str, label: str, value: str) -> bool:
    return value in scraped.labels(series, label)


def test_panels_do_not_lie_upon_each_other() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            assert x < 24, panel["title"]
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
