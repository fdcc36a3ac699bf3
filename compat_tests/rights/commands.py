"""What each role is told by the protocol."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from harness import wire
from harness.brokers import Broker
from harness.raw import ConnectionClosed, RawConnection
from harness.tokens import token

from compat_tests.answers.differences import Told
from compat_tests.rights.differences import LET_IN
from compat_tests.rights.scene import ADMINS, GRANTS, OTHER_ADMINS, OTHER_TENANT, ROLES

NAMESPACE = "rights/ns"
TOPIC = f"persistent://{NAMESPACE}/topic"
ELSEWHERE = "persistent://public/default/elsewhere"
OWN = f"persistent://{NAMESPACE}/__change_events"
PREFIXED = "persistent://rights/prefix/topic"
BUNDLES = {"bundles": {"numBundles": 1}}
NOT_THERE = "not-there"  # the end of the name of a topic that does not exist
REQUEST = 7
NOT_CONNECTED = "not connected: "
# The fields of an answer with the error and with what is said of it.
ERRORS = {
    wire.ERROR: (2, 3),
    wire.LOOKUP_RESPONSE: (6, 7),
    wire.PARTITIONED_METADATA_RESPONSE: (4, 5),
    wire.GET_SCHEMA_RESPONSE: (2, 3),
    wire.GET_OR_CREATE_SCHEMA_RESPONSE: (2, 3),
}


def of_topic(topic: str) -> dict[str, tuple[int, dict[int, Any]]]:
    """Commands about a topic."""
    schema = wire.encode({1: "s", 3: b"", 4: 1})
    start = {3: wire.SHARED, 4: 1, 5: REQUEST, 13: wire.EARLIEST}
    return {
        "LOOKUP": (wire.LOOKUP, {1: topic, 2: REQUEST}),
        "PARTITIONED_METADATA": (wire.PARTITIONED_METADATA, {1: topic, 2: REQUEST}),
        "PRODUCER": (wire.PRODUCER, {1: topic, 2: 1, 3: REQUEST}),
        "PRODUCER with a subscription": (wire.PRODUCER, {1: topic, 2: 1, 3: REQUEST, 13: "first"}),
        "SUBSCRIBE": (wire.SUBSCRIBE, {1: topic, 2: "s"} | start),
        "SUBSCRIBE, others' subscription": (wire.SUBSCRIBE, {1: topic, 2: "kept"} | start),
        "SUBSCRIBE, own prefix": (wire.SUBSCRIBE, {1: topic, 2: "nc-s"} | start),
        "SUBSCRIBE by a reader": (
            wire.SUBSCRIBE,
            {1: topic, 2: "reader", 3: wire.EXCLUSIVE, 4: 1, 5: REQUEST, 8: 0},
        ),
        "GET_SCHEMA": (wire.GET_SCHEMA, {1: REQUEST, 2: topic}),
        "GET_OR_CREATE_SCHEMA": (wire.GET_OR_CREATE_SCHEMA, {1: REQUEST, 2: topic, 3: schema}),
    }


def of_namespace(namespace: str) -> dict[str, tuple[int, dict[int, Any]]]:
    """Commands about a namespace."""
    return {
        "GET_TOPICS_OF_NAMESPACE": (wire.GET_TOPICS_OF_NAMESPACE, {1: REQUEST, 2: namespace}),
        "WATCH_TOPIC_LIST": (
            wire.WATCH_TOPIC_LIST,
            {1: REQUEST, 2: 1, 3: namespace, 4: f"persistent://{namespace}/.*"},
        ),
    }


def of_open() -> dict[str, tuple[int, dict[int, Any]]]:
    """Commands about a consumer or a producer that the connection has not opened."""
    return {
        "SEEK": (wire.SEEK, {1: 1, 2: REQUEST, 4: 0}),
        "UNSUBSCRIBE": (wire.UNSUBSCRIBE, {1: 1, 2: REQUEST}),
        "GET_LAST_MESSAGE_ID": (wire.GET_LAST_MESSAGE_ID, {1: 1, 2: REQUEST}),
        "CLOSE_CONSUMER": (wire.CLOSE_CONSUMER, {1: 1, 2: REQUEST}),
        "CLOSE_PRODUCER": (wire.CLOSE_PRODUCER, {1: 1, 2: REQUEST}),
    }


COMMANDS = {
    f"{where}: {name}": command
    for where, commands in {
        "the topic": of_topic(TOPIC),
        "a topic of another tenant": of_topic(ELSEWHERE),
        "the broker's topic": of_topic(OWN),
        "a topic with prefixes": of_topic(PREFIXED),
        "a topic that is not there": of_topic(f"persistent://{NAMESPACE}/not-there"),
        "a topic without a namespace": of_topic("persistent://rights/no/topic"),
        "a topic without a tenant": of_topic("persistent://no-rights/no/topic"),
        "a topic that is not there, of another tenant": of_topic(
            f"persistent://{OTHER_TENANT}/ns/not-there"
        ),
        "a topic without a namespace, of another tenant": of_topic("persistent://public/no/topic"),
        "a partition that is not there": of_topic(
            f"persistent://{NAMESPACE}/not-there-partition-0"
        ),
        "a non-persistent topic": of_topic(f"non-persistent://{NAMESPACE}/topic"),
        "a non-persistent topic without a namespace": of_topic("non-persistent://rights/no/topic"),
        "a non-persistent topic without a tenant": of_topic("non-persistent://no-rights/no/topic"),
        "a name of no topic": of_topic("persistent://rights"),
        "a name with a bad namespace": of_topic("persistent://rights/n$s:/topic"),
        "the namespace": of_namespace(NAMESPACE),
        "a namespace of another tenant": of_namespace("public/default"),
        "a namespace that is not there": of_namespace("rights/no"),
        "a namespace that is not there, of another tenant": of_namespace("public/no"),
        "a namespace without a tenant": of_namespace("no-rights/no"),
        "a name of no namespace": of_namespace("rights"),
        "what is not open": of_open(),
    }.items()
    for name, command in commands.items()
}


def is_one(name: str) -> bool:
    """Whether "role | what is asked" asks by the protocol."""
    return name.partition(" | ")[2] in COMMANDS


def told(broker: Broker) -> Iterable[tuple[str, Told]]:
    """What each role is told of each command."""
    make_scene(broker)
    number = 0
    for title, (role, original) in ROLES.items():
        for name, (kind, fields) in COMMANDS.items():
            number += 1
            # A command that is allowed may create the topic, so each one names its own.
            own = {key: _renamed(value, number) for key, value in fields.items()}
            told = ask(broker, role, original, kind, own)
            text = told.text and told.text.replace(f"{NOT_THERE}{number}", NOT_THERE)
            yield f"{title} | {name}", told._replace(text=text)


def _renamed(value: Any, number: int) -> Any:
    return value.replace(NOT_THERE, f"{NOT_THERE}{number}") if isinstance(value, str) else value


def ask(broker: Broker, role: str, original: str, kind: int, fields: dict[int, Any]) -> Told:
    """The answer of the owner to one command, or of any where no broker owns the topic."""
    for port in broker.ports():
        told = _ask(port, role, original, kind, fields)
        if "Please redo the lookup." not in (told.text or ""):
            break
    text = told.text
    for url in broker.web_urls():
        text = text and text.replace(url.removeprefix("http://"), "BROKER")
    return told._replace(text=text)


def _ask(port: int, role: str, original: str, kind: int, fields: dict[int, Any]) -> Told:
    with RawConnection(port, handshake=False) as connection:
        who = {7: original} if original else {}
        shown = {3: token(role).encode(), 5: "token"} if role else {}
        connection.command(wire.CONNECT, {1: "rights", 4: 21} | shown | who)
        answer = connection.receive()
        if answer.type == wire.ERROR:
            return Told(answer.number(2), NOT_CONNECTED + answer.data(3).decode())
        assert answer.type == wire.CONNECTED, answer
        connection.command(kind, fields)
        try:
            answer = connection.receive()
        except ConnectionClosed:
            return Told(-1, "closed")
        error, text = ERRORS.get(answer.type, (0, 0))
        if error in answer.fields:
            return Told(answer.number(error), answer.data(text).decode())
        return LET_IN


def make_scene(broker: Broker) -> None:
    for method, path, body in (
        ("PUT", "/admin/v2/tenants/rights", json.loads(ADMINS)),
        ("PUT", f"/admin/v2/tenants/{OTHER_TENANT}", json.loads(OTHER_ADMINS)),
        ("PUT", f"/admin/v2/namespaces/{NAMESPACE}", BUNDLES),
        ("PUT", f"/admin/v2/namespaces/{OTHER_TENANT}/ns", BUNDLES),
        ("PUT", f"/admin/v2/persistent/{NAMESPACE}/topic", None),
        ("PUT", "/admin/v2/persistent/public/default/elsewhere", None),
        ("PUT", "/admin/v2/namespaces/rights/prefix", BUNDLES),
        ("PUT", "/admin/v2/persistent/rights/prefix/topic", None),
        ("POST", "/admin/v2/namespaces/rights/prefix/permissions/nc", ["consume"]),
        ("POST", "/admin/v2/namespaces/rights/prefix/subscriptionAuthMode", "Prefix"),
        *(
            (
                "POST",
                f"/admin/v2/{'namespaces' if where == 'ns' else 'persistent'}/rights/{where}"
                f"/permissions/{role}",
                [action],
            )
            for role, where, action in GRANTS
        ),
        (
            "POST",
            f"/admin/v2/namespaces/{NAMESPACE}/permissions/subscription/kept",
            ["somebody"],
        ),
    ):
        status, text = broker.request(method, path, body)
        assert status in (200, 204), (method, path, status, text)
    # Its bundle has an owner then.
    path = f"/lookup/v2/topic/persistent/{OTHER_TENANT}/ns/topic"
    assert broker.request("GET", path)[0] == 200
