"""What a streaming source answers Spark batch after batch while topics change: without Spark."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker

from compat_tests.spark_rows import error_of, given, rows_of
from compat_tests.test_chunk_limits import Chunks
from pyxbroker.spark.positions import read_offset

pytestmark = pytest.mark.spark

Offset = dict[str, str]


def publish(client: pulsar.Client, topic: str, *texts: str) -> None:
    producer = client.create_producer(topic)
    for each in texts:
        producer.send(each.encode())
    producer.close()


def path_of(topic: str) -> str:
    return "/admin/v2/" + topic.replace("://", "/")


def unload(broker: Broker, topic: str) -> None:
    """The topic goes on in another ledger."""
    assert broker.rest("PUT", f"{path_of(topic)}/unload")[0] == 204


def delete_ledgers(broker: Broker, topic: str) -> None:
    """What retention does: all goes but what is in the ledger that is written."""
    assert broker.rest("DELETE", f"{path_of(topic)}/truncate")[0] == 204
    deadline = time.monotonic() + 20
    while len(broker.rest("GET", f"{path_of(topic)}/internalStats")[1]["ledgers"]) > 1:
        assert time.monotonic() < deadline, "its ledgers are still there"
        time.sleep(0.1)


def trim(broker: Broker, topic: str, left: int) -> None:
    """Ledgers that are acknowledged to their end go, so that so many are left."""
    deadline = time.monotonic() + 60
    while len(broker.rest("GET", f"{path_of(topic)}/internalStats")[1]["ledgers"]) > left:
        assert broker.rest("POST", f"{path_of(topic)}/trim")[0] in (200, 204, 405)
        assert time.monotonic() < deadline, "its ledger is still there"
        time.sleep(0.1)


def stream_of(broker: Broker, **options: str) -> Any:
    """What Spark asks of a streaming source; a new one is what a query that starts again has."""
    from pyxbroker.spark.source import PulsarDataSource

    source = PulsarDataSource(given(broker, options))
    return source.streamReader(source.schema())


def read(stream: Any, start: Offset, end: Offset) -> list[str]:
    parts = stream.partitions(start, end)
    rows = [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]
    return [row["value"].decode() for row in rows]


# --- what was deleted -----------------------------------------------------------------------------


@pytest.mark.parametrize("with_rest", [False, True])
def test_a_batch_that_is_planned_again_is_the_same_or_says_what_was_deleted(
    broker: Broker, client: pulsar.Client, topic: str, with_rest: bool
) -> None:
    """The first batch of a topic that appeared while the query ran."""
    options = {"topicsPattern": f"{topic}-s.*", "waitingForNonExistedTopic": "true"}
    if with_rest:
        options["admin_url"] = broker.web_url
    stream = stream_of(broker, **options)
    start = stream.initialOffset()
    one = f"{topic}-s1"
    publish(client, one, "0", "1", "2")
    end = stream.latestOffset(start)
    unload(broker, one)
    publish(client, one, "3")
    assert read(stream_of(broker, **options), start, end) == ["0", "1", "2"]
    unload(broker, one)
    delete_ledgers(broker, one)
    text = error_of(lambda: stream_of(broker, **options).partitions(start, end))
    assert "were deleted, or may have been, before they were read" in text
    assert read(stream_of(broker, **options, failOnDataLoss="false"), start, end) == []


def test_a_new_topic_without_messages_has_a_place_in_an_offset(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    """So that what is deleted before the next batch is noticed."""
    options = {"topicsPattern": f"{topic}-s.*", "waitingForNonExistedTopic": "true"}
    stream = stream_of(broker, **options)
    start = stream.initialOffset()
    one = f"{topic}-s1"
    client.create_producer(one).close()
    end = stream.latestOffset(start)
    assert read(stream, start, end) == []
    publish(client, one, "0")
    unload(broker, one)
    delete_ledgers(broker, one)
    publish(client, one, "1")
    later = stream.latestOffset(end)
    assert "were deleted, or may have been" in error_of(lambda: stream.partitions(end, later))


@pytest.mark.parametrize("was", ["never written", "read", "read and not looked at since"])
def test_an_empty_ledger_that_was_replaced_took_nothing_along(
    broker: Broker, client: pulsar.Client, topic: str, was: str
) -> None:
    options = {"topic": topic, "admin_url": broker.web_url, "startingOffsets": "earliest"}
    client.create_producer(topic).close()
    stream = stream_of(broker, **options)
    start = stream.initialOffset()
    if was != "never written":
        publish(client, topic, "0")
        start = stream.latestOffset(start)
        unload(broker, topic)
    if was == "read":
        before = start
        start = stream.latestOffset(start)
        assert start != before and stream.partitions(before, start) == []
    if was != "never written":
        delete_ledgers(broker, topic)
    if was != "read and not looked at since":
        for _ in range(2):
            unload(broker, topic)
    end = stream.latestOffset(start)
    # A message that comes between is of the next batch.
    publish(client, topic, "1")
    assert stream.partitions(start, end) == []
    later = stream.latestOffset(end)
    assert read(stream, end, later) == ["1"]
    # What is repeated when the query starts again is the same.
    again = stream_of(broker, **options)
    assert again.partitions(start, end) == [] and read(again, end, later) == ["1"]


def test_a_ledger_that_was_written_and_deleted_is_lost_though_it_was_empty_before(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    options = {"topic": topic, "admin_url": broker.web_url, "startingOffsets": "earliest"}
    client.create_producer(topic).close()
    stream = stream_of(broker, **options)
    start = stream.initialOffset()
    publish(client, topic, "0")
    unload(broker, topic)
    delete_ledgers(broker, topic)
    end = stream.latestOffset(start)
    assert "were deleted, or may have been" in error_of(lambda: stream.partitions(start, end))
    patient = stream_of(broker, **options, failOnDataLoss="false")
    end = patient.latestOffset(start)
    publish(client, topic, "1")
    later = patient.latestOffset(end)
    assert read(patient, start, end) + read(patient, end, later) == ["1"]


# --- the subscription of one's own ----------------------------------------------------------------


def mark_of(broker: Broker, topic: str) -> tuple[str, int]:
    """(the last message that is acknowledged, how many are not) of the subscription `held`."""
    cursors = broker.rest("GET", f"{path_of(topic)}/internalStats")[1]["cursors"]
    stats = broker.rest("GET", f"{path_of(topic)}/stats?getPreciseBacklog=true")[1]
    return cursors["held"]["markDeletePosition"], stats["subscriptions"]["held"]["msgBacklog"]


def test_a_subscription_of_ones_own_stands_where_was_committed(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    options = {"topic": topic, "admin_url": broker.web_url, "startingOffsets": "earliest"}
    publish(client, topic, "0", "1", "2")
    stream = stream_of(broker, **options, predefinedSubscription="held")
    start = stream.initialOffset()
    assert mark_of(broker, topic)[1] == 3
    unload(broker, topic)
    # It is the beginning of a ledger: the one before is read to its end.
    end = stream.latestOffset(start)
    assert end[topic].endswith(":-1")
    assert read(stream, start, end) == ["0", "1", "2"]
    stream.commit(end)
    assert mark_of(broker, topic)[1] == 0
    publish(client, topic, "3", "4")
    assert mark_of(broker, topic)[1] == 2
    stream.commit(end)
    assert mark_of(broker, topic)[1] == 2, "what is behind the beginning of a ledger is held"
    later = stream.latestOffset(end)
    stream.commit(later)
    mark, backlog = mark_of(broker, topic)
    assert backlog == 0 and later[topic].startswith(mark)
    # Another query begins further back, with what is still there, and holds that.
    stream = stream_of(broker, **options, predefinedSubscription="held")
    start = stream.initialOffset()
    assert mark_of(broker, topic)[1] == len(read(stream, start, later)) >= 2
    stream.commit(later)
    assert mark_of(broker, topic) == (mark, 0)
    stream.commit(end)
    assert mark_of(broker, topic)[1] == 2
    stream.commit(later)
    assert mark_of(broker, topic) == (mark, 0)


def test_what_a_subscription_of_ones_own_held_is_not_lost_when_its_ledger_goes(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    """A ledger that is acknowledged to its end is deleted while the next one has messages."""
    options = {"topic": topic, "admin_url": broker.web_url, "startingOffsets": "earliest"}
    held = options | {"predefinedSubscription": "held"}
    publish(client, topic, "0", "1")
    stream = stream_of(broker, **held)
    start = stream.initialOffset()
    end = stream.latestOffset(start)
    unload(broker, topic)
    publish(client, topic, "2")
    stream.commit(end)
    assert mark_of(broker, topic)[1] == 1
    unload(broker, topic)
    trim(broker, topic, 2)
    later = stream.latestOffset(end)
    assert read(stream_of(broker, **held), end, later) == ["2"]

    # Who has no subscription, or has it no more, cannot know that.
    def plan(options: dict[str, str]) -> Any:
        stream = stream_of(broker, **options)
        later = stream.latestOffset(end)
        stream.commit(end)
        return stream.partitions(end, later)

    text = "were deleted, or may have been"
    assert text in error_of(lambda: plan(options))
    assert len(plan(held)) == 1
    assert broker.rest("DELETE", f"{path_of(topic)}/subscription/held?force=true")[0] == 204
    assert text in error_of(lambda: plan(held))


@pytest.mark.parametrize("is_committed", [False, True], ids=["planned", "committed"])
def test_a_subscription_that_was_deleted_is_not_made_again_where_messages_are_gone(
    broker: Broker, client: pulsar.Client, topic: str, is_committed: bool
) -> None:
    """Else the query that starts again would take it for a proof that nothing is."""
    options = {"topic": topic, "admin_url": broker.web_url, "startingOffsets": "earliest"}
    held = options | {"predefinedSubscription": "held"}
    publish(client, topic, "0")
    stream = stream_of(broker, **held)
    start = stream.initialOffset()
    end = stream.latestOffset(start)
    publish(client, topic, "lost")
    assert read(stream, start, end) == ["0"]
    assert broker.rest("DELETE", f"{path_of(topic)}/subscription/held?force=true")[0] == 204
    unload(broker, topic)
    publish(client, topic, "after")
    trim(broker, topic, 1)
    if is_committed:
        stream.commit(end)
    for again in (stream, stream_of(broker, **held), stream_of(broker, **held)):
        later = again.latestOffset(end)
        text = error_of(partial(again.partitions, end, later))
        assert "were deleted, or may have been" in text
    text = error_of(partial(stream_of(broker, **held).partitions, end, later))
    assert "were deleted, or may have been" in text
    # Who goes on without them has it again.
    patient = stream_of(broker, **held, failOnDataLoss="false")
    last = patient.latestOffset(end)
    assert read(patient, end, last) == ["after"]
    assert mark_of(broker, topic)[1] == 1
    patient.commit(last)
    assert mark_of(broker, topic)[1] == 0


@pytest.mark.pyxbroker  # Apache Pulsar moves marks on itself, and looks the same then
def test_what_a_subscription_passed_over_that_somebody_else_moved_is_told(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    options = {"topic": topic, "admin_url": broker.web_url, "startingOffsets": "earliest"}
    held = options | {"predefinedSubscription": "held"}
    publish(client, topic, "0", "1", "2")
    stream = stream_of(broker, **held)
    start = stream.initialOffset()
    end = stream.latestOffset(start)
    assert read(stream, start, end) == ["0", "1", "2"]
    stream.commit(end)
    publish(client, topic, "lost", "lost")
    path = f"{path_of(topic)}/subscription/held/skip_all"
    assert broker.rest("POST", path)[0] == 204
    unload(broker, topic)
    publish(client, topic, "after")
    trim(broker, topic, 1)
    for again in (stream, stream_of(broker, **held), stream_of(broker, **held)):
        later = again.latestOffset(end)
        text = error_of(partial(again.partitions, end, later))
        assert "were deleted, or may have been" in text


@pytest.mark.pyxbroker  # Apache Pulsar still had that ledger after a minute of trims
def test_chunks_that_a_subscription_let_go_before_the_last_one_came_are_told(
    broker: Broker, client: pulsar.Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a message whose first chunk was in a batch that is done."""
    options = {"topic": topic, "admin_url": broker.web_url, "startingOffsets": "earliest"}
    held = options | {"predefinedSubscription": "held"}
    with Chunks(broker, topic) as chunks:
        chunks.whole(b"one")
        chunks.chunk("x", 0)
    stream = stream_of(broker, **held)
    start = stream.initialOffset()
    end = stream.latestOffset(start)
    assert read(stream, start, end) == ["one"]
    stream.commit(end)
    unload(broker, topic)
    with Chunks(broker, topic) as chunks:
        chunks.chunk("x", 1)
        chunks.whole(b"two")
    unload(broker, topic)
    trim(broker, topic, 2)
    for again in (stream, stream_of(broker, **held)):
        later = again.latestOffset(end)
        text = error_of(partial(read, again, end, later))
        assert "cannot be assembled: earlier chunks were deleted" in text
    patient = stream_of(broker, **held, failOnDataLoss="false")
    assert read(patient, end, later) == ["two"]
    assert "is skipped" in caplog.text


def test_a_broken_message_is_told_alike_however_batches_and_ranges_are_cut(
    broker: Broker, client: pulsar.Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """All is read that was there, so nothing was lost that this query could have had."""
    with Chunks(broker, topic) as chunks:
        chunks.whole(b"one")
        chunks.chunk("x", 2, 3)
        chunks.whole(b"two")
    options = {"topic": topic, "admin_url": broker.web_url}
    for each in ({}, {"bytesPerTask": "1"}):
        found = [row["value"] for row in rows_of(broker, **options, **each)]
        assert sorted(found) == [b"one", b"two"]
    assert caplog.text.count("is skipped") == 2
    stream = stream_of(
        broker, **options, startingOffsets="earliest", maxRowsPerTrigger="1", bytesPerTask="1"
    )
    batches = []
    at: Offset = {}
    end = stream.initialOffset()
    while at != end:
        at, end = end, stream.latestOffset(end, stream.getDefaultReadLimit())
        batches += [read(stream, at, end)] if at != end else []
    assert batches == [["one"], ["two"]]
    # One that began in the midst of it cannot know.
    ledger = at[topic].split(":")[0]
    given = {topic: f"{ledger}:1"}
    stream = stream_of(broker, **options, startingOffsets=json.dumps(given))
    start = stream.initialOffset()
    text = error_of(lambda: read(stream, start, stream.latestOffset(start)))
    assert "cannot be assembled" in text


def test_a_checkpoint_that_does_not_say_where_topics_began_is_read_on(
    broker: Broker, topic: str
) -> None:
    """Nobody knows of it what was there before, so a broken message is told."""
    with Chunks(broker, topic) as chunks:
        chunks.whole(b"one")
        stream = stream_of(broker, topic=topic, startingOffsets="earliest")
        start = stream.initialOffset()
        end = stream.latestOffset(start)
        chunks.whole(b"two")
        later = stream.latestOffset(end)
        chunks.chunk("x", 1)
        last = stream.latestOffset(later)
    offsets = [{topic: each[topic].split("<")[0]} for each in (start, end, later, last)]
    assert offsets[0] != start
    stream = stream_of(broker, topic=topic)
    assert read(stream, *offsets[0:2]) == ["one"] and read(stream, *offsets[1:3]) == ["two"]
    again = stream.latestOffset(offsets[2])
    assert again == offsets[3]
    assert "cannot be assembled" in error_of(lambda: read(stream, offsets[2], again))
    assert read(stream, later, last) == []


def test_a_subscription_of_ones_own_holds_topics_that_appear(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    options = {"topicsPattern": f"{topic}-s.*", "waitingForNonExistedTopic": "true"}
    stream = stream_of(broker, **options, predefinedSubscription="held")
    start = stream.initialOffset()
    one = f"{topic}-s1"
    publish(client, one, "0")
    end = stream.latestOffset(start)
    assert mark_of(broker, one)[1] == 1, "before a batch is planned that has it"
    unload(broker, one)
    publish(client, one, "1")
    assert read(stream, start, end) == ["0"]
    stream.commit(end)
    assert mark_of(broker, one)[1] == 1


# --- topics that come and go ----------------------------------------------------------------------


def test_a_topic_that_is_deleted_in_mid_stream_is_told_or_passed_over(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    one, two = f"{topic}-s1", f"{topic}-s2"
    for name in (one, two):
        publish(client, name, name[-1])
    ways = [{"topicsPattern": f"{topic}-s.*"}, {"topics": f"{one},{two}"}]
    offsets = []
    for way in ways:
        stream = stream_of(broker, **way, startingOffsets="earliest")
        start = stream.initialOffset()
        offsets.append((start, stream.latestOffset(start)))
    assert broker.rest("DELETE", f"{path_of(two)}?force=true")[0] == 204
    publish(client, one, "3")
    for way, (start, end) in zip(ways, offsets, strict=True):
        # A query that starts again has its DataFrame made without the topic.
        stream = stream_of(broker, **way, startingOffsets="earliest")
        text = error_of(partial(stream.latestOffset, end))
        reached = read_offset(end)[two]
        assert f"{two}, which was read up to {reached}, was deleted" in text
        assert "failOnDataLoss=false" in text
        text = error_of(partial(stream.partitions, start, end))
        assert f"{two}, which was to be read up to {reached}, was deleted" in text
        patient = stream_of(broker, **way, failOnDataLoss="false")
        patient.prepareForTriggerAvailableNow()
        later = patient.latestOffset(end)
        assert later[two] == end[two]
        assert read(patient, start, end) == ["1"] and read(patient, end, later) == ["3"]
    # One of that name that is made again is another one, and all of it is read.
    publish(client, two, "4")
    last = patient.latestOffset(later)
    stream = stream_of(broker, topics=f"{one},{two}", failOnDataLoss="false")
    last = stream.latestOffset(later)
    assert read(stream, later, last) == ["4"]


def test_all_topics_of_a_pattern_may_go(broker: Broker, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, "0")
    options = {"topicsPattern": topic, "failOnDataLoss": "false"}
    stream = stream_of(broker, **options, startingOffsets="earliest")
    start = stream.initialOffset()
    end = stream.latestOffset(start)
    assert broker.rest("DELETE", f"{path_of(topic)}?force=true")[0] == 204
    assert stream.latestOffset(end) == end
    assert read(stream, start, end) == []


def test_a_partition_that_is_not_there_has_nothing(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    """Brokers delete partitions that nobody uses, and make them again."""
    assert broker.rest("PUT", f"{path_of(topic)}/partitions", 3)[0] == 204
    publish(client, f"{topic}-partition-0", "0")
    for number in (1, 2):
        path = f"{path_of(topic)}-partition-{number}?force=true"
        assert broker.rest("DELETE", path)[0] == 204
    assert [row["value"] for row in rows_of(broker, topic=topic)] == [b"0"]
    stream = stream_of(broker, topic=topic, startingOffsets="earliest")
    start = stream.initialOffset()
    end = stream.latestOffset(start)
    publish(client, f"{topic}-partition-2", "1")
    later = stream.latestOffset(end)
    assert read(stream, start, end) == ["0"] and read(stream, end, later) == ["1"]
    alone = f"{topic}-partition-1"
    assert "there is no topic" in error_of(lambda: rows_of(broker, topic=alone))


def test_topics_that_options_do_not_name_any_more_stay_where_they_are(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    one, two = f"{topic}-s1", f"{topic}-s2"
    for name in (one, two):
        publish(client, name, "0")
    stream = stream_of(broker, topics=f"{one},{two}", startingOffsets="earliest")
    start = stream.initialOffset()
    end = stream.latestOffset(start)
    for name in (one, two):
        publish(client, name, "1")
    for way in ({"topic": one}, {"topicsPattern": one}):
        stream = stream_of(broker, **way)
        later = stream.latestOffset(end)
        assert later[two] == end[two]
        assert read(stream, end, later) == ["1"]


def test_offsets_without_those_before_are_the_same_batches(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    """Spark before 4.2 does not say where a batch begins when it asks for its end."""
    one, two = f"{topic}-s1", f"{topic}-s2"
    options = {"topicsPattern": f"{topic}-s.*", "startingOffsets": "earliest"}
    publish(client, one, "0")
    stream = stream_of(broker, **options, predefinedSubscription="held")
    start = stream.initialOffset()
    end = stream.latestOffset()
    publish(client, one, "1")
    publish(client, two, "2")
    assert read(stream, start, end) == ["0"]
    later = stream.latestOffset()
    stream.commit(end)
    assert mark_of(broker, one)[1] == 1
    again = stream_of(broker, **options)
    assert read(again, start, end) == ["0"]
    assert read(again, end, later) == ["1", "2"]
    assert again.latestOffset() == later, "it knows what it has planned"
    assert read(again, later, stream_of(broker, **options).latestOffset()) == []
    unload(broker, one)
    delete_ledgers(broker, one)
    last = again.latestOffset()
    text = "were deleted, or may have been"
    assert text in error_of(lambda: again.partitions(start, end))
    assert text in error_of(lambda: again.partitions(end, last))
