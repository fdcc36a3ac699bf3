"""How the Spark connector finds a broker, what it says to it, and what it does not ask of it."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

from one_broker import section
from pyxbroker.base import compression
from pyxbroker.entry_columns import BYTES, VARIABLE, EntryColumns
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark import admission, entry_producer
from pyxbroker.spark.entry_producer import RETRY_S, EntryProducer
from pyxbroker.spark.entry_scan import PERMITS_MAX, EntryScan
from pyxbroker.spark.errors import NotReachable, WrongOption
from pyxbroker.spark.official import client_of
from pyxbroker.spark.options import SINK, STREAM, Options
from pyxbroker.spark.plan import Range, cluster_of
from pyxbroker.spark.positions import Position
from pyxbroker.spark.topics import is_wanted, topics_of
from scripted_broker import ScriptedBroker, frame_of

NAMESPACE = "persistent://public/default"
TOPIC = f"{NAMESPACE}/t"


def test_no_rows_cost_no_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_reader(*_: object) -> None:
        raise AssertionError("a broker is asked")

    monkeypatch.setattr(admission, "RangeReader", no_reader)
    options = Options(STREAM, {"service.url": "pulsar://a", "topic": TOPIC})
    begin = Position(3, 7, 2)
    wanted = Range(TOPIC, begin, Position(9, 0))
    assert admission._cut(options, wanted, 0) == (0, begin)


# --- a broker that answers what a test says -------------------------------------------------------


def options_of(broker: ScriptedBroker, role: str = STREAM, **more: str) -> Options:
    return Options(role, {"service.url": broker.url, "topic": TOPIC} | more)


@pytest.mark.parametrize("before", ["", "public/default/", "persistent://public/default/"])
def test_a_pattern_is_of_local_names_in_a_namespace(before: str) -> None:
    def answer(command: Any) -> list[bytes]:
        assert command.getTopicsOfNamespace.namespace == "public/default"
        told = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        told.getTopicsOfNamespaceResponse.request_id = command.getTopicsOfNamespace.request_id
        names = ("b1", "a2-partition-1", "a", "a2-partition-0", "xa1", "__change_events")
        told.getTopicsOfNamespaceResponse.topics.extend(f"{NAMESPACE}/{each}" for each in names)
        return [frame_of(told)]

    with ScriptedBroker(answer) as broker:
        given = {"service.url": broker.url, "topicsPattern": f"{before}[ac_].*"}
        options = Options(STREAM, given)
        with cluster_of(options) as cluster:
            found = topics_of(options, cluster.any_broker())
    wanted = ("a", "a2-partition-0", "a2-partition-1")
    assert found == [f"{NAMESPACE}/{each}" for each in wanted]
    assert is_wanted(options, f"{NAMESPACE}/a3") and not is_wanted(options, f"{NAMESPACE}/b")


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("non-persistent://public/default/a.*", "only persistent topics can be read"),
        ("default/a.*", "the form tenant/namespace/expression"),
        ("public/default/a(", "not a regular expression"),
    ],
)
def test_what_is_no_pattern_of_topics_is_told(pattern: str, what: str) -> None:
    options = Options(STREAM, {"service.url": "pulsar://a", "topicsPattern": pattern})
    with pytest.raises(WrongOption, match=what):
        is_wanted(options, TOPIC)


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (
            pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=pb.CommandMessage(consumer_id=1)),
            "broke the protocol",
        ),
        (
            pb.BaseCommand(
                type=pb.BaseCommand.CLOSE_CONSUMER,
                close_consumer=pb.CommandCloseConsumer(consumer_id=1, request_id=1),
            ),
            "unloaded the topic",
        ),
    ],
)
def test_a_command_that_is_no_message_of_the_topic_ends_the_reading(
    command: Any, what: str
) -> None:
    columns = EntryColumns(BYTES, (VARIABLE,), compression)
    columns.set_range((3, -1, -1), (3, 5, -1))
    with (
        ScriptedBroker(lambda _: [frame_of(command)]) as broker,
        cluster_of(options_of(broker)) as cluster,
    ):
        reader = cluster.any_broker()
        reader.flow(1)
        with pytest.raises(NotReachable, match=what):
            reader.take(columns, 30)


def test_a_scan_asks_for_more_entries_before_it_has_read_all_it_asked_for() -> None:
    entries = itertools.count()
    stored = section(b"x", num_messages_in_batch=10)

    def answer(command: Any) -> list[bytes]:
        if command.type == pb.BaseCommand.SUBSCRIBE:
            made = pb.BaseCommand(type=pb.BaseCommand.SUCCESS)
            made.success.request_id = command.subscribe.request_id
            return [frame_of(made)]
        sent = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
        sent.message.consumer_id = 1
        sent.message.message_id.ledgerId = 3
        found = []
        for _ in range(command.flow.messagePermits // 10):
            sent.message.message_id.entryId = next(entries)
            found.append(frame_of(sent, stored))
        return found

    with ScriptedBroker(answer) as broker, cluster_of(options_of(broker)) as cluster:
        scan = EntryScan(cluster, TOPIC, Position(3, -1))
        for entry_id in range(3 * PERMITS_MAX // 10):
            entry = scan.next(10)
            assert entry is not None and entry.position == Position(3, entry_id)
        scan.close()
    asked = [each.flow.messagePermits for each in broker.said(pb.BaseCommand.FLOW)]
    assert asked[0] == PERMITS_MAX and sum(asked) <= 4 * PERMITS_MAX
    assert set(asked[1:]) == {PERMITS_MAX // 2}


@pytest.mark.parametrize(
    ("method", "params", "data"),
    [
        ("token", "token:secret", b"secret"),
        ("token", "file:{file}", b"from-a-file"),
        ("basic", "me:secret", b"me:secret"),
    ],
)
def test_the_official_client_says_who_it_is_as_the_reader_does(
    tmp_path: Path, method: str, params: str, data: bytes
) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"from-a-file\n")
    login = {
        "pulsar.client.authPluginClassName": method,
        "pulsar.client.authParams": params.format(file=file),
        "pulsar.client.operationTimeoutMs": "1000",
    }
    with ScriptedBroker(refused) as broker:
        options = options_of(broker, SINK, **login)
        with cluster_of(options) as cluster:
            cluster.any_broker()
        client = client_of(options)
        with pytest.raises(pulsar.PulsarException):
            client.get_topic_partitions(TOPIC)
        client.close()
    said = [each.connect for each in broker.said(pb.BaseCommand.CONNECT)]
    assert len(said) == 2
    assert {(each.auth_method_name, each.auth_data) for each in said} == {(method, data)}


def refused(command: Any) -> list[bytes]:
    answer = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA_RESPONSE)
    told = answer.partitionMetadataResponse
    told.request_id = command.partitionMetadata.request_id
    told.response, told.error, told.message = told.Failed, pb.AuthorizationError, "no"
    return [frame_of(answer)]


@pytest.mark.parametrize(("name", "names"), [("", ["", "chosen"]), ("mine", ["mine", "mine"])])
def test_a_producer_has_its_name_on_each_connection(name: str, names: list[str]) -> None:
    """By which deduplication knows what it sends once more."""

    def answer(command: Any) -> list[bytes]:
        if command.type == pb.BaseCommand.CLOSE_PRODUCER:
            closed = pb.BaseCommand(type=pb.BaseCommand.SUCCESS)
            closed.success.request_id = command.close_producer.request_id
            return [frame_of(closed)]
        made = pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS)
        made.producer_success.request_id = command.producer.request_id
        made.producer_success.producer_name = name or "chosen"
        return [frame_of(made)]

    with ScriptedBroker(answer) as broker:
        producer = EntryProducer(options_of(broker, SINK), TOPIC, None, name)
        producer.reopen()
        producer.close()
    said = [each.producer for each in broker.said(pb.BaseCommand.PRODUCER)]
    assert [each.producer_name for each in said] == names
    assert [each.HasField("producer_name") for each in said] == [bool(each) for each in names]
    assert {each.user_provided_producer_name for each in said} == {bool(name)}


def test_a_broker_that_is_busy_is_asked_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=pauses.append)
    monkeypatch.setattr(entry_producer, "time", clock)
    asked = itertools.count(1)

    def answer(command: Any) -> list[bytes]:
        if next(asked) <= 2:
            busy = pb.BaseCommand(type=pb.BaseCommand.ERROR)
            busy.error.request_id = command.producer.request_id
            busy.error.error, busy.error.message = pb.ProducerBusy, "it is connected"
            return [frame_of(busy)]
        made = pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS)
        made.producer_success.request_id = command.producer.request_id
        made.producer_success.producer_name = "mine"
        return [frame_of(made)]

    with ScriptedBroker(answer) as broker:
        EntryProducer(options_of(broker, SINK), TOPIC, None, "mine").close()
    assert len(broker.said(pb.BaseCommand.PRODUCER)) == 3
    assert pauses == [RETRY_S, RETRY_S]
