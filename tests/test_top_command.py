"""`pyxbroker top`: what it reads from /metrics, and the page."""

from __future__ import annotations

import asyncio
import json

import pytest

from pyxbroker.cli.top import page
from pyxbroker.cli.top.page import View, live_page, shown, topic_page, whole_page
from pyxbroker.cli.top.samples import Sample, Snapshot, read_metrics, snapshot
from pyxbroker.cli.top.watch import Watch
from pyxbroker.client.errors import ClientError
from pyxbroker.client.settings import ClientSettings
from test_client_admin import Web, reply

LABELS = 'cluster="c",namespace="public/default"'


def metrics(messages: int, out: int, turns: tuple[int, int]) -> str:
    return f"""
# HELP pulsar_in_messages_total Messages received since the topic was opened.
pulsar_in_messages_total{{{LABELS},topic="persistent://a/b/one"}} {messages}
pulsar_in_messages_total{{{LABELS},topic="persistent://a/b/two\\"\\\\"}} 7
pulsar_storage_backlog_age_seconds{{{LABELS},topic="persistent://a/b/one"}} -1
pulsar_out_messages_total{{{LABELS},topic="persistent://a/b/one",subscription="s"}} {out}
pulsar_out_messages_total{{{LABELS},topic="persistent://a/b/one",subscription="t"}} {out}
pulsar_subscription_back_log{{{LABELS},topic="persistent://a/b/one",subscription="s"}} 1500
pulsar_subscription_storage_backlog_age_seconds{{{LABELS},topic="persistent://a/b/one",\
subscription="s"}} 90
pulsar_broker_in_messages_total{{cluster="c"}} {messages}
bookie_disk_free_bytes{{cluster="c",directory="/x"}} 1024
bookie_disk_free_bytes{{cluster="c",directory="/y"}} 1024
pyxbroker_loop_turn_seconds_bucket{{cluster="c",le="0.001"}} {turns[0]}
pyxbroker_loop_turn_seconds_bucket{{cluster="c",le="0.1"}} {turns[1]}
pyxbroker_loop_turn_seconds_bucket{{cluster="c",le="+Inf"}} {turns[1]}
pulsar_unknown_total{{cluster="c"}} 5
"""


@pytest.fixture
def found() -> Snapshot:
    before = {"b:1": read_metrics(metrics(100, 10, (1000, 1000)), 10.0)}
    now = {"b:1": read_metrics(metrics(300, 30, (1090, 1100)), 12.0)}
    return snapshot(now, before, {"b:2": "does not answer"})


def test_rates_come_from_the_counters_of_two_samples(found: Snapshot) -> None:
    [broker] = found.brokers
    assert broker.numbers["messages_in_rate"] == 100.0
    assert broker.numbers["disk_free_bytes"] == 2048
    assert broker.numbers["loop_p99_s"] == 0.1  # 90 of 100 turns since then took less
    topics = {row.names[0]: row.numbers for row in found.topics}
    assert topics["persistent://a/b/one"]["messages_in_rate"] == 100.0
    assert topics["persistent://a/b/one"]["messages_out_rate"] == 20.0
    assert "age_s" not in topics["persistent://a/b/one"]
    assert topics['persistent://a/b/two"\\']["messages_in_rate"] == 0.0
    numbers = {row.names[1]: row.numbers for row in found.subscriptions}
    assert (numbers["s"]["backlog"], numbers["s"]["age_s"]) == (1500, 90)
    assert numbers["t"]["messages_out_rate"] == 10.0


def test_a_topic_that_was_opened_again_has_no_negative_rate() -> None:
    before = {"b": read_metrics(metrics(100, 10, (1, 1)), 0.0)}
    now = {"b": read_metrics(metrics(5, 0, (2, 2)), 1.0)}
    found = snapshot(now, before, {})
    assert found.brokers[0].numbers["messages_in_rate"] == 0.0
    assert snapshot({"b": Sample(1.0)}, before, {}).brokers[0].numbers == {}


def test_all_brokers_of_a_cluster_are_asked_and_one_that_is_down_is_named() -> None:
    async def main() -> None:
        def answer(method: str, target: str) -> bytes:
            if target == "/admin/v2/brokers":
                return reply(json.dumps(brokers).encode())
            assert target == "/metrics/"
            return reply(metrics(next(counts), 0, (1, 1)).encode())

        counts = iter(range(100, 10_000, 100))
        async with Web(answer) as one, Web(answer) as two:
            brokers = [each.url.removeprefix("http://") for each in (one, two)]
            watch = Watch(ClientSettings(one.url), all_brokers=True)
            await watch.sample()
            two._server.close()
            two.hang_up()
            found = await watch.sample()
            assert [row.names for row in found.brokers] == [(brokers[0],)]
            assert found.brokers[0].numbers["messages_in_rate"] > 0
            assert list(found.failures) == [brokers[1]]
            alone = Watch(ClientSettings(one.url), all_brokers=False)
            assert (await alone.sample()).failures == {}
            one._server.close()
            one.hang_up()
            with pytest.raises(ClientError):
                await watch.sample()
            for each in (watch, alone):
                each.close()

    asyncio.run(main())


def test_rows_are_sorted_filtered_and_scrolled_to_the_selected_one(found: Snapshot) -> None:
    text = "\n".join(whole_page(found, "", 120, 0))
    assert text.index("b/one") < text.index("b/two")
    assert "b:2: does not answer" in text
    assert [row.names[0] for row in View(sort="n", wanted="two").rows(found)] == [
        'persistent://a/b/two"\\'
    ]
    view = View(selected=99)
    lines = live_page(found, view, 100, 10)
    assert view.selected == 1 and len(lines) == 10
    [selected] = [line.text for line in lines if line.style == "selected"]
    assert "b/two" in selected
    assert all(len(line.text) <= 100 for line in lines)
    for height in range(1, 12):
        assert len(live_page(found, view, 30, height)) <= max(height, 1)


def test_names_cannot_send_sequences_to_the_terminal(found: Snapshot) -> None:
    bad = "x\x1b[2J\x9b1m\u202e\n"
    assert shown(bad).isprintable() and len(shown(bad)) == len(bad)
    found.topics[0].names = (bad, "b")
    found.subscriptions[0].names = (bad, bad, "b")
    found.failures = {bad: bad}
    view = View(wanted=bad)
    lines = [*whole_page(found, "", 120, 0), *(x.text for x in live_page(found, view, 100, 30))]
    stats = {
        "publishers": [{"producerName": bad, "address": bad}],
        "subscriptions": {bad: {"type": bad, "consumers": [{"consumerName": bad}]}},
    }
    lines += [line.text for line in topic_page(bad, stats, 100)]
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (page.count(0), "0"),
        (page.count(999.4), "999"),
        (page.count(1234), "1.2k"),
        (page.count(123_456_789), "123M"),
        (page.size(1023), "1023B"),
        (page.size(1536), "1.5K"),
        (page.size(5 << 40), "5.0T"),
        (page.age(59), "59s"),
        (page.age(61), "1m01s"),
        (page.age(7_300), "2h01m"),
        (page.age(90_000), "1d01h"),
        (page.milliseconds(0.02), "20ms"),
    ],
)
def test_numbers_are_short(text: str, shown: str) -> None:
    assert text == shown
