"""Each command needs a right, which is looked at before anything is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from one_broker import TOPIC, Broker, run
from pyxbroker.auth import authorization
from pyxbroker.auth.authorization import (
    CONSUME_TOPIC,
    GET_TOPICS,
    LOOKUP,
    PRODUCE_TO_TOPIC,
    Resource,
    Right,
    Scope,
)
from pyxbroker.auth.principal import ANONYMOUS, Principal
from pyxbroker.base.errors import AuthorizationError
from pyxbroker.base.topic_name import NamespaceName, TopicName
from pyxbroker.broker.commands.command import no_resource
from pyxbroker.proto import PulsarApi as pb

NAMESPACE = "public/default"
LOOKUP_ANSWER = "lookupTopicResponse"
PARTITIONS_ANSWER = "partitionMetadataResponse"
GUARDED = [
    (pb.CommandLookupTopic(topic=TOPIC, request_id=7), LOOKUP, LOOKUP_ANSWER),
    (pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=7), LOOKUP, PARTITIONS_ANSWER),
    (pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=7), PRODUCE_TO_TOPIC, "error"),
    (
        pb.CommandSubscribe(topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=7),
        CONSUME_TOPIC,
        "error",
    ),
    (pb.CommandGetTopicsOfNamespace(namespace=NAMESPACE, request_id=7), GET_TOPICS, "error"),
    (
        pb.CommandWatchTopicList(
            namespace=NAMESPACE, topics_pattern=".*", watcher_id=1, request_id=7
        ),
        GET_TOPICS,
        "error",
    ),
]


@pytest.mark.parametrize(
    ("command", "right", "field"), GUARDED, ids=[type(each[0]).__name__ for each in GUARDED]
)
def test_who_has_no_right_is_refused_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any, right: Right, field: str
) -> None:
    asked: list[tuple[Principal, Right, Resource]] = []
    fields = pb.BaseCommand.DESCRIPTOR.fields_by_name

    async def refuse(_: object, principal: Principal, needed: Right, resource: Resource) -> None:
        asked.append((principal, needed, resource))
        raise AuthorizationError("not you")

    monkeypatch.setattr("pyxbroker.broker.commands.handlers.authorize", refuse)

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        answer = await client.request(command, field)
        rows = broker.handlers._table.values()
        row = next(each for each in rows if fields[each.field].message_type is command.DESCRIPTOR)
        told = row.unauthorized or "not you"
        assert (answer.error, answer.message) == (pb.AuthorizationError, told)
        assert answer.request_id == command.request_id
        expected = NamespaceName.get(NAMESPACE) if right is GET_TOPICS else TopicName.get(TOPIC)
        assert asked == [(ANONYMOUS, right, expected)]
        assert list(broker.topics.registry) == []

    run(tmp_path, scenario)


def test_every_command_that_names_something_looks_at_a_right(tmp_path: Path) -> None:
    """The others are about what their connection has open already."""

    async def scenario(broker: Broker) -> None:
        fields = pb.BaseCommand.DESCRIPTOR.fields_by_name
        for row in broker.handlers._table.values():
            names = fields[row.field].message_type.fields_by_name
            is_guarded = row.resource is not no_resource
            if row.field == "endTxnOnPartition":
                # Its handler has to name the role and the transaction: test_transaction_log.py.
                assert not is_guarded
                continue
            assert is_guarded == ("topic" in names or "namespace" in names), row.field
            assert is_guarded == (row.right is not authorization.AUTHENTICATED)
            assert row.right.scope in (Scope.AUTHENTICATED, Scope.NAMESPACE, Scope.TOPIC)

    run(tmp_path, scenario)
