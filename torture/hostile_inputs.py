"""The most expensive input that the limits allow: for each command, and for each endpoint of REST.

Who adds a command or an endpoint adds what costs most of it; test_hostile.py has the tables' rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from harness import wire
from harness.raw import RawConnection

from pyxbroker.admin.endpoints import load

MIB = 1 << 20
FRAME_BYTES_MAX = 5 * MIB
COMMAND_BYTES_MAX = MIB - 100  # of most
FIELDS_MAX = 9_900  # of a command, with those of its request
HANDSHAKE_BYTES_MAX = 100 << 10
TOPIC = "persistent://public/default/hostile"
LONG = "persistent://public/default/" + "ä" * 512  # 1,024 bytes, in a name that needs escapes
PATTERN = "|".join(f"(a{i}.*)+" for i in range(6)) + "x"  # as long as one may be
MESSAGES = 2_000
KEY_SHARED = 3


class Scene:
    """A connection with a producer (1) and a Shared consumer (1) of a topic with messages."""

    def __init__(self, port: int, name: str) -> None:
        self.port = port
        self.topic = f"{TOPIC}-{name}"
        self.raw = RawConnection(port, timeout_s=60)
        self.ledger_id = 0

    def with_messages(self, count: int = MESSAGES) -> None:
        """Opens a producer and a consumer; the consumer gets all messages, and keeps them."""
        self.raw.producer(self.topic)
        self.raw.subscribe(self.topic, sub_type=wire.SHARED)
        for first in range(0, count, 500):
            for i in range(first, first + 500):
                self.raw.send(b"x", i)
            for _ in range(500):
                receipt = self.raw.expect(wire.SEND_RECEIPT)
        self.ledger_id = wire.position(receipt.data(3))[0]
        self.raw.flow(count)
        for _ in range(count):
            self.raw.expect(wire.MESSAGE)


def nothing(scene: Scene) -> None:
    """Needs no topic."""


class Input(NamedTuple):
    """One kind of input. `make` gives the bytes of the n-th one."""

    about: str
    make: Callable[[Scene, int], bytes]
    prepare: Callable[[Scene], None] = nothing
    ends: bool = False  # its connection: it is the last input of one


def pairs(count: int, size: int) -> list[bytes]:
    """Properties with values of that many bytes."""
    return [wire.encode({1: f"k{i}", 2: "v" * size}) for i in range(count)]


def filled(one: bytes, size: int = FRAME_BYTES_MAX) -> bytes:
    """As much of it as goes into a frame."""
    return one * (size // len(one))


def with_fields(kind: int, head: dict, field: int, one: bytes, fields: int) -> bytes:
    """A command with a field repeated until it has as many as it may have (`fields` in each), and
    then one that nobody knows, until it is as long as it may be.
    """
    body = wire.encode(head) + wire.encode({field: one}) * (FIELDS_MAX // fields)
    body += wire.encode({1000: bytes(COMMAND_BYTES_MAX - len(body))})
    return framed(kind, body)


def framed(kind: int, body: bytes) -> bytes:
    base = wire.encode({1: kind, kind: body})
    return (len(base) + 4).to_bytes(4, "big") + len(base).to_bytes(4, "big") + base


def _connect(scene: Scene, n: int) -> bytes:
    return wire.command(wire.CONNECT, {1: "v" * 1024, 4: 21, 7: "p" * (60 << 10)})


def _unknown(kind: int) -> Callable[[Scene, int], bytes]:
    """Fields that nobody knows."""
    frame = with_fields(kind, {}, 1000, b"", 1)

    def make(scene: Scene, n: int) -> bytes:
        return frame

    return make


def _lookup(scene: Scene, n: int) -> bytes:
    return with_fields(wire.LOOKUP, {1: LONG, 2: n}, 8, wire.encode({1: "", 2: ""}), 3)


def _metadata(scene: Scene, n: int) -> bytes:
    return wire.command(
        wire.PARTITIONED_METADATA, {1: LONG + f"{n}", 2: n, 3: "p" * (60 << 10), 6: 0}
    )


def _producer(scene: Scene, n: int) -> bytes:
    fields = {1: scene.topic, 2: n + 10, 3: n, 6: pairs(1000, 240)}
    return wire.command(wire.PRODUCER, fields)


def _producer_with_schema(scene: Scene, n: int) -> bytes:
    body = wire.encode({1: scene.topic, 2: n + 10, 3: n})
    body += wire.encode({6: wire.encode({1: "", 2: ""})}) * (FIELDS_MAX // 3)
    schema = {1: "s", 3: bytes(FRAME_BYTES_MAX - len(body) - 4096), 4: 2}
    return framed(wire.PRODUCER, body + wire.encode({7: wire.encode(schema)}))


@cache
def _definition() -> bytes:
    """An Avro record of as many fields as there may be."""
    fields = [b'{"name":"f%d","type":"int"}' % n for n in range(3_900)]
    return b'{"type":"record","name":"R","fields":[' + b",".join(fields) + b"]}"


def _schema_of_many_fields(scene: Scene, n: int) -> bytes:
    # Another one each, of which none may follow the first.
    data = _definition().replace(b'"f0"', b'"g%d"' % n)
    schema = wire.encode({1: "s", 3: data, 4: 4})
    return wire.command(wire.GET_OR_CREATE_SCHEMA, {1: n, 2: scene.topic, 3: schema})


@cache
def _sticky_ranges() -> bytes:
    # Once: it takes the attacker longer than the broker.
    ranges = [wire.encode({1: i, 2: i}) for i in reversed(range(65_536))]
    return wire.encode({1: 1, 3: ranges})


def _subscribe(scene: Scene, n: int) -> bytes:
    policy = _sticky_ranges()
    fields = {1: scene.topic, 2: f"s{n}", 3: KEY_SHARED, 4: n + 10, 5: n}
    return wire.command(wire.SUBSCRIBE, fields | {10: pairs(1000, 240), 17: policy})


def _redeliver(scene: Scene, n: int) -> bytes:
    ids = b"".join(
        wire.encode({2: wire.message_id(scene.ledger_id, i)}) for i in reversed(range(MESSAGES))
    )
    body = wire.encode({1: 1}) + filled(ids, FRAME_BYTES_MAX - 4096)
    return framed(wire.REDELIVER, body)


def _ack_of_many(scene: Scene, n: int) -> bytes:
    ids = b"".join(wire.encode({3: wire.message_id(scene.ledger_id, i)}) for i in range(MESSAGES))
    body = wire.encode({1: 1, 2: 0, 8: n}) + filled(ids, FRAME_BYTES_MAX - 4096)
    return framed(wire.ACK, body)


def _ack(scene: Scene, n: int) -> bytes:
    words = [(1 << 64) - 1] * 60
    ids = b"".join(
        wire.encode({3: wire.encode({1: scene.ledger_id, 2: i, 5: words})})
        for i in range(0, MESSAGES, 2)
    )
    body = wire.encode({1: 1, 2: 0}) + filled(ids, FRAME_BYTES_MAX - 4096)
    return framed(wire.ACK, body)


def _send(scene: Scene, n: int) -> bytes:
    meta = wire.metadata("raw", 10**6 + n, 1, fields={4: pairs(20_000, 200)})
    return wire.send(1, 10**6 + n, meta, b"x" * 400_000)


def _simple(kind: int, *, of: int = 1) -> Callable[[Scene, int], bytes]:
    """A command with the id of what it is about, and of its request."""

    def make(scene: Scene, n: int) -> bytes:
        return wire.command(kind, {1: of, 2: n})

    return make


COMMANDS = {
    "CONNECT": Input("a second one, 60 KiB", _connect, ends=True),
    "SEND": Input("4.8 MB, 20,000 properties", _send, Scene.with_messages),
    "ACK": Input("5 MiB of ids with ack sets", _ack, Scene.with_messages),
    "FLOW": Input(
        "all permits there are",
        lambda scene, n: wire.command(wire.FLOW, {1: 1, 2: (1 << 31) - 1}),
        Scene.with_messages,
    ),
    "LOOKUP": Input("3,300 empty properties, a long name, 1 MiB", _lookup),
    "PARTITIONED_METADATA": Input("another long name each, 60 KiB", _metadata),
    "PING": Input("9,900 unknown fields, 1 MiB", _unknown(wire.PING)),
    "PONG": Input("9,900 unknown fields, 1 MiB", _unknown(wire.PONG)),
    "AUTH_RESPONSE": Input("9,900 unknown fields, 1 MiB, unasked", _unknown(wire.AUTH_RESPONSE)),
    "PRODUCER": Input("1,000 properties, 256 KiB", _producer),
    "CLOSE_PRODUCER": Input("of none", _simple(wire.CLOSE_PRODUCER, of=9)),
    "SUBSCRIBE": Input("65,536 sticky ranges backwards, 1,000 properties", _subscribe),
    "UNSUBSCRIBE": Input("of none", _simple(wire.UNSUBSCRIBE, of=9)),
    "CLOSE_CONSUMER": Input("of none", _simple(wire.CLOSE_CONSUMER, of=9)),
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": Input(
        "5 MiB of ids, backwards", _redeliver, Scene.with_messages
    ),
    "CONSUMER_STATS": Input(
        "of a consumer",
        lambda scene, n: wire.command(wire.CONSUMER_STATS, {1: n, 4: 1}),
        Scene.with_messages,
    ),
    "SEEK": Input(
        "to the beginning, by time",
        lambda scene, n: wire.command(wire.SEEK, {1: 1, 2: n, 4: 1}),
        Scene.with_messages,
    ),
    "GET_LAST_MESSAGE_ID": Input(
        "of a consumer", _simple(wire.GET_LAST_MESSAGE_ID), Scene.with_messages
    ),
    "GET_TOPICS_OF_NAMESPACE": Input(
        "3,300 properties, 1 MiB",
        lambda scene, n: with_fields(
            wire.GET_TOPICS_OF_NAMESPACE,
            {1: n, 2: "public/default", 3: 2},
            6,
            wire.encode({1: "", 2: ""}),
            3,
        ),
    ),
    "WATCH_TOPIC_LIST": Input(
        "another one each, a pattern of 6 branches",
        lambda scene, n: wire.command(
            wire.WATCH_TOPIC_LIST, {1: n, 2: n, 3: "public/default", 4: PATTERN}
        ),
    ),
    "GET_SCHEMA": Input(
        "of a topic that has none", lambda scene, n: wire.command(wire.GET_SCHEMA, {1: n, 2: LONG})
    ),
    "GET_OR_CREATE_SCHEMA": Input(
        "an Avro record of 3,900 fields", _schema_of_many_fields, Scene.with_messages
    ),
    "WATCH_TOPIC_LIST_CLOSE": Input("of none", _simple(wire.WATCH_TOPIC_LIST_CLOSE)),
}


# Further ones that cost much in another way.
MORE_COMMANDS = {
    "ACK of many": Input("400,000 ids", _ack_of_many, Scene.with_messages),
    "PRODUCER with a schema": Input("3,300 properties, 5 MiB", _producer_with_schema),
    "LOOKUP of too many fields": Input(
        "2,600,000 unknown fields",
        lambda scene, n: framed(
            wire.LOOKUP,
            wire.encode({1: TOPIC, 2: n}) + filled(wire.encode({15: b""}), FRAME_BYTES_MAX - 4096),
        ),
    ),
    "REDELIVER_UNACKNOWLEDGED_MESSAGES of all": Input(
        "20,000 messages that wait",
        lambda scene, n: wire.command(wire.REDELIVER, {1: 1}),
        lambda scene: scene.with_messages(20_000),
    ),
}


def request(method: str, path: str, body: bytes = b"", head: str = "") -> Input:
    """A request; `{n}` in the path is another number each."""

    def make(scene: Scene, n: int) -> bytes:
        kind = "Content-Type: application/json\r\n" if body else ""
        length = f"Content-Length: {len(body)}\r\n"
        line = f"{method} {path.replace('{n}', str(n))} HTTP/1.1\r\nHost: x\r\n"
        return (line + kind + length + head + "\r\n").encode() + body

    return Input(f"{len(path)} bytes of path, {len(body)} of body", make)


BASE = "/admin/v2/persistent/public/default"
NAME = "%C3%A4" * 500
PROPERTIES = (
    b'{"a":'
    + b'"'
    + b"x" * 1000
    + b'"'
    + b"".join(b',"k%d":"%s"' % (i, b"v" * 230) for i in range(999))
    + b"}"
)

ENDPOINTS = {
    "GET /admin/v2/brokers/health": request("GET", "/admin/v2/brokers/health"),
    "GET /admin/v2/brokers/ready": request("GET", "/admin/v2/brokers/ready"),
    "GET /admin/v2/brokers/version": request(
        "GET", "/admin/v2/brokers/version", head="X: y\r\n" * 90
    ),
    "GET /admin/v2/clusters": request("GET", "/admin/v2/clusters?" + "a=b&" * 1900),
    "GET /admin/v2/{domain}/{tenant}/{namespace}": request("GET", BASE),
    "GET /admin/v2/{domain}/{tenant}/{namespace}/partitioned": request(
        "GET", BASE + "/partitioned?includeSystemTopic=true"
    ),
    "DELETE /admin/v2/{domain}/{tenant}/{namespace}/{topic}": request(
        "DELETE", f"{BASE}/{NAME}?force=true"
    ),
    "PUT /admin/v2/{domain}/{tenant}/{namespace}/{topic}": request(
        "PUT", f"{BASE}/rest-{{n}}", PROPERTIES
    ),
    "DELETE /admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions": request(
        "DELETE", f"{BASE}/{NAME}/partitions?force=true"
    ),
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions": request(
        "GET", f"{BASE}/{NAME}/partitions?checkAllowAutoCreation=true"
    ),
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions": request(
        "POST", f"{BASE}/{NAME}/partitions", b" " * (60 << 10) + b"9"
    ),
    "PUT /admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions": request(
        "PUT", f"{BASE}/many-{{n}}/partitions", b"100"
    ),
    "DELETE /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subName}": request(
        "DELETE", f"{BASE}/{NAME}/subscription/{NAME}?force=true"
    ),
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subName}"
    "/expireMessages": request(
        "POST",
        f"{BASE}/{NAME}/subscription/{NAME}/expireMessages",
        b'{"ledgerId":1,"entryId":1' + b',"a":[{}]' * 1800 + b"}",
    ),
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subName}"
    "/expireMessages/{seconds:int}": request(
        "POST", f"{BASE}/{NAME}/subscription/{NAME}/expireMessages/1"
    ),
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subName}"
    "/skip/{numMessages:int}": request("POST", f"{BASE}/{NAME}/subscription/{NAME}/skip/999999999"),
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subName}/skip_all": request(
        "POST", f"{BASE}/{NAME}/subscription/{NAME}/skip_all"
    ),
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/all_subscription"
    "/expireMessages/{seconds:int}": request(
        "POST", f"{BASE}/{NAME}/all_subscription/expireMessages/1"
    ),
    "PUT /admin/v2/{domain}/{tenant}/{namespace}/{topic}/compaction": request(
        "PUT", f"{BASE}/{NAME}/compaction"
    ),
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/compaction": request(
        "GET", f"{BASE}/{NAME}/compaction"
    ),
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/trim": request(
        "POST", f"{BASE}/{NAME}/trim"
    ),
    "DELETE /admin/v2/{domain}/{tenant}/{namespace}/{topic}/truncate": request(
        "DELETE", f"{BASE}/{NAME}/truncate"
    ),
    "PUT /admin/v2/{domain}/{tenant}/{namespace}/{topic}/unload": request(
        "PUT", f"{BASE}/{NAME}/unload"
    ),
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/terminate": request(
        "POST", f"{BASE}/{NAME}/terminate"
    ),
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/terminate/partitions": request(
        "POST", f"{BASE}/{NAME}/terminate/partitions"
    ),
    "GET /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}": request(
        "GET", f"/lookup/v2/topic/persistent/public/default/{NAME}"
    ),
    "GET /metrics": request("GET", "/metrics", head="Accept-Encoding: gzip\r\n"),
    "GET /openapi.json": request("GET", "/openapi.json"),
}

TOPIC_ROW = "{domain}/{tenant}/{namespace}/{topic}"
ONE = f"{BASE}/{NAME}"
QUOTA = "/admin/v2/resource-quotas/public/default/0x00000000_0x40000000"
NESTED_ID = b'{"ledgerId":0,"entryId":0' + b',"a":[{}]' * 1800 + b"}"
PLACE = b'{"ledgerId":0,"entryId":0,"batchIndex":1048575,"properties":' + PROPERTIES + b"}"

ENDPOINTS |= {
    f"GET /admin/v2/{TOPIC_ROW}/subscription/{{subName}}/position/{{messagePosition:int}}": request(
        "GET", f"{ONE}/subscription/{NAME}/position/999999999"
    ),
    f"GET /admin/v2/{TOPIC_ROW}/ledger/{{ledgerId:int}}/entry/{{entryId:int}}": request(
        "GET", f"{ONE}/ledger/0/entry/{{n}}"
    ),
    f"GET /admin/v2/{TOPIC_ROW}/examinemessage": request(
        "GET", f"{ONE}/examinemessage?initialPosition=earliest&messagePosition=999999999"
    ),
    f"GET /admin/v2/{TOPIC_ROW}/lastMessageId": request("GET", f"{ONE}/lastMessageId"),
    f"GET /admin/v2/{TOPIC_ROW}/messageid/{{timestamp:int}}": request(
        "GET", f"{ONE}/messageid/9223372036854775807"
    ),
    f"GET /admin/v2/{TOPIC_ROW}/getMessageIdByIndex": request(
        "GET", f"{ONE}/getMessageIdByIndex?index=9223372036854775807"
    ),
    f"POST /admin/v2/{TOPIC_ROW}/subscription/{{subName}}/analyzeBacklog": request(
        "POST", f"{ONE}/subscription/{NAME}/analyzeBacklog", NESTED_ID
    ),
    f"PUT /admin/v2/{TOPIC_ROW}/backlogSize": request("PUT", f"{ONE}/backlogSize", NESTED_ID),
    f"PUT /admin/v2/{TOPIC_ROW}/subscription/{{subName}}": request(
        "PUT", f"{BASE}/{NAME}-{{n}}/subscription/{NAME}?replicated=true", PLACE
    ),
    f"GET /admin/v2/{TOPIC_ROW}/subscriptions": request("GET", f"{ONE}/subscriptions"),
    f"POST /admin/v2/{TOPIC_ROW}/subscription/{{subName}}/resetcursor/{{timestamp:int}}": request(
        "POST", f"{ONE}/subscription/{NAME}/resetcursor/1"
    ),
    f"POST /admin/v2/{TOPIC_ROW}/subscription/{{subName}}/resetcursor": request(
        "POST", f"{ONE}/subscription/{NAME}/resetcursor", PLACE
    ),
    f"GET /admin/v2/{TOPIC_ROW}/subscription/{{subName}}/properties": request(
        "GET", f"{ONE}/subscription/{NAME}/properties"
    ),
    f"PUT /admin/v2/{TOPIC_ROW}/subscription/{{subName}}/properties": request(
        "PUT", f"{ONE}/subscription/{NAME}/properties", PROPERTIES
    ),
    f"GET /admin/v2/{TOPIC_ROW}/subscription/{{subName}}/replicatedSubscriptionStatus": request(
        "GET", f"{ONE}/subscription/{NAME}/replicatedSubscriptionStatus"
    ),
    f"POST /admin/v2/{TOPIC_ROW}/subscription/{{subName}}/replicatedSubscriptionStatus": request(
        "POST", f"{ONE}/subscription/{NAME}/replicatedSubscriptionStatus", b" " * 50 + b"true"
    ),
    f"GET /admin/v2/{TOPIC_ROW}/properties": request("GET", f"{ONE}/properties"),
    f"PUT /admin/v2/{TOPIC_ROW}/properties": request("PUT", f"{ONE}/properties", PROPERTIES),
    f"DELETE /admin/v2/{TOPIC_ROW}/properties": request("DELETE", f"{ONE}/properties?key=k1"),
    f"POST /admin/v2/{TOPIC_ROW}/createMissedPartitions": request(
        "POST", f"{BASE}/many-{{n}}/createMissedPartitions"
    ),
    f"DELETE /admin/v2/{TOPIC_ROW}/policies": request("DELETE", f"{ONE}/policies"),
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{bundle}": request(
        "GET", "/admin/v2/non-persistent/public/default/0x00000000_0x40000000"
    ),
    f"GET /admin/v2/{TOPIC_ROW}/stats": request(
        "GET", f"{ONE}/stats?getPreciseBacklog=true&getEarliestTimeInBacklog=true"
    ),
    f"GET /admin/v2/{TOPIC_ROW}/partitioned-stats": request(
        "GET", f"{BASE}/many-{{n}}/partitioned-stats?getEarliestTimeInBacklog=true"
    ),
    f"GET /admin/v2/{TOPIC_ROW}/internalStats": request(
        "GET", f"{ONE}/internalStats?metadata=true"
    ),
    f"GET /admin/v2/{TOPIC_ROW}/partitioned-internalStats": request(
        "GET", f"{BASE}/many-{{n}}/partitioned-internalStats?metadata=true"
    ),
    "GET /admin/v2/brokers": request("GET", "/admin/v2/brokers"),
    "GET /admin/v2/brokers/{cluster}": request("GET", f"/admin/v2/brokers/{NAME}"),
    "GET /admin/v2/brokers/leaderBroker": request("GET", "/admin/v2/brokers/leaderBroker"),
    "GET /admin/v2/brokers/{cluster}/{brokerId}/ownedNamespaces": request(
        "GET", f"/admin/v2/brokers/standalone/{NAME}/ownedNamespaces"
    ),
    "GET /admin/v2/brokers/internal-configuration": request(
        "GET", "/admin/v2/brokers/internal-configuration"
    ),
    "GET /admin/v2/bookies/all": request("GET", "/admin/v2/bookies/all"),
    "GET /admin/v2/bookies/racks-info": request("GET", "/admin/v2/bookies/racks-info"),
    "GET /admin/v2/bookies/racks-info/{bookie}": request(
        "GET", "/admin/v2/bookies/racks-info/b-{n}"
    ),
    "POST /admin/v2/bookies/racks-info/{bookie}": request(
        "POST",
        f"/admin/v2/bookies/racks-info/b-{{n}}?group={'g' * 256}",
        b'{"rack":"%s"' % (b"r" * 256) + b',"a":[{}]' * 1700 + b"}",
    ),
    "DELETE /admin/v2/bookies/racks-info/{bookie}": request(
        "DELETE", "/admin/v2/bookies/racks-info/b-{n}"
    ),
    "GET /admin/v2/resource-quotas": request("GET", "/admin/v2/resource-quotas"),
    "POST /admin/v2/resource-quotas": request(
        "POST", "/admin/v2/resource-quotas", b'{"memory":1' + b',"a":[{}]' * 1700 + b"}"
    ),
    "GET /admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}": request("GET", QUOTA),
    "POST /admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}": request(
        "POST", QUOTA, b'{"memory":1' + b',"a":[{}]' * 1700 + b"}"
    ),
    "DELETE /admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}": request("DELETE", QUOTA),
    "GET /admin/v2/brokers/configuration": request("GET", "/admin/v2/brokers/configuration"),
    "GET /admin/v2/brokers/configuration/values": request(
        "GET", "/admin/v2/brokers/configuration/values"
    ),
    "GET /admin/v2/brokers/configuration/runtime": request(
        "GET", "/admin/v2/brokers/configuration/runtime"
    ),
    "POST /admin/v2/brokers/configuration/{name}/{value}": request(
        "POST", "/admin/v2/brokers/configuration/maxTenants/{n}000000"
    ),
    "DELETE /admin/v2/brokers/configuration/{name}": request(
        "DELETE", "/admin/v2/brokers/configuration/maxTenants"
    ),
    "GET /admin/v2/brokers/backlog-quota-check": request(
        "GET", "/admin/v2/brokers/backlog-quota-check"
    ),
    f"GET /admin/v2/{TOPIC_ROW}/backlog": request("GET", f"{ONE}/backlog"),
    f"GET /admin/v2/{TOPIC_ROW}/internal-info": request("GET", f"{ONE}/internal-info"),
    "GET /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle": request(
        "GET", f"/lookup/v2/topic/persistent/public/default/{NAME}/bundle"
    ),
}

NS = "/admin/v2/namespaces/public/default"
NEW = "/admin/v2/namespaces/public/hostile-{n}"
ROW = "/admin/v2/namespaces/{tenant}/{namespace}"
POLICIES = (
    b'{"bundles":{"numBundles":4096},"properties":{"a":"'
    + b"x" * 60_000
    + b'"},"unknown":['
    + b",".join([b"{}"] * 100_000)
    + b"]}"
)
ROLES = b"[" + b",".join(b'"%s%03d"' % (b"r" * 50, i) for i in range(1000)) + b"]"
CLUSTERS = b"[" + b",".join(b'"cluster-%d"' % i for i in range(4_000)) + b"]"
TENANT = b'{"allowedClusters":["standalone"],"adminRoles":' + ROLES[:-1] + b"]}"

CLUSTER = "/admin/v2/clusters/standalone"
NEW_CLUSTER = "/admin/v2/clusters/hostile-{n}"
GROUP = "/admin/v2/resourcegroups/hostile-{n}"
BUNDLE = NS + "/0x00000000_0x40000000"
# Objects in lists: the most work for a reader of JSON, for the bytes that there may be.
PEERS = b'{"peerClusterNames":' + ROLES + b',"a":[' + b"{}," * 60_000 + b"1]}"
BROKERS = b'{"brokers":[' + b",".join(b'"b%03d"' % i for i in range(1000)) + b"]}"
POSITIONS = b"[" + b",".join(b"%d" % (i << 18) for i in range(4096)) + b"]"

ENDPOINTS |= {
    "GET /admin/v2/clusters/{cluster}": request("GET", f"/admin/v2/clusters/{NAME}"),
    "PUT /admin/v2/clusters/{cluster}": request("PUT", NEW_CLUSTER, PEERS),
    "POST /admin/v2/clusters/{cluster}": request("POST", NEW_CLUSTER, PEERS),
    "DELETE /admin/v2/clusters/{cluster}": request("DELETE", NEW_CLUSTER),
    "GET /admin/v2/clusters/{cluster}/peers": request("GET", CLUSTER + "/peers"),
    "POST /admin/v2/clusters/{cluster}/peers": request("POST", CLUSTER + "/peers", ROLES),
    "GET /admin/v2/clusters/{cluster}/failureDomains": request("GET", CLUSTER + "/failureDomains"),
    "GET /admin/v2/clusters/{cluster}/failureDomains/{domainName}": request(
        "GET", f"{CLUSTER}/failureDomains/{NAME}"
    ),
    "POST /admin/v2/clusters/{cluster}/failureDomains/{domainName}": request(
        "POST", CLUSTER + "/failureDomains/d", BROKERS
    ),
    "DELETE /admin/v2/clusters/{cluster}/failureDomains/{domainName}": request(
        "DELETE", f"{CLUSTER}/failureDomains/{NAME}"
    ),
    "GET /admin/v2/resourcegroups": request("GET", "/admin/v2/resourcegroups"),
    "GET /admin/v2/resourcegroups/{resourcegroup}": request("GET", GROUP),
    "PUT /admin/v2/resourcegroups/{resourcegroup}": request(
        "PUT", GROUP, b'{"publishRateInMsgs":1,"a":[' + b"{}," * 1_300 + b"1]}"
    ),
    "DELETE /admin/v2/resourcegroups/{resourcegroup}": request("DELETE", GROUP),
    f"GET {ROW}/resourcegroup": request("GET", NS + "/resourcegroup"),
    f"POST {ROW}/resourcegroup/{{resourcegroup}}": request("POST", NS + "/resourcegroup/{n}"),
    f"DELETE {ROW}/resourcegroup": request("DELETE", NS + "/resourcegroup"),
    f"DELETE {ROW}/{{bundle}}": request("DELETE", BUNDLE + "?force=true"),
    f"PUT {ROW}/{{bundle}}/unload": request("PUT", BUNDLE + "/unload"),
    f"POST {ROW}/{{bundle}}/clearBacklog": request("POST", BUNDLE + "/clearBacklog"),
    f"POST {ROW}/{{bundle}}/clearBacklog/{{subscription}}": request(
        "POST", f"{BUNDLE}/clearBacklog/{NAME}"
    ),
    f"POST {ROW}/{{bundle}}/unsubscribe/{{subscription}}": request(
        "POST", f"{BUNDLE}/unsubscribe/{NAME}"
    ),
    f"GET {ROW}/{{bundle}}/topicHashPositions": request(
        "GET", BUNDLE + "/topicHashPositions?" + "topics=t&" * 90
    ),
    f"PUT {ROW}/{{bundle}}/split": request(
        "PUT", NS + "/LARGEST/split?splitAlgorithmName=specified_positions_divide", POSITIONS
    ),
    "GET /admin/v2/tenants": request("GET", "/admin/v2/tenants?" + "a=b&" * 1900),
    "GET /admin/v2/tenants/{tenant}": request("GET", "/admin/v2/tenants/public"),
    "PUT /admin/v2/tenants/{tenant}": request("PUT", "/admin/v2/tenants/hostile-{n}", TENANT),
    "POST /admin/v2/tenants/{tenant}": request("POST", "/admin/v2/tenants/pulsar", TENANT),
    "DELETE /admin/v2/tenants/{tenant}": request("DELETE", "/admin/v2/tenants/hostile-{n}"),
    "GET /admin/v2/namespaces/{tenant}": request("GET", "/admin/v2/namespaces/public"),
    f"GET {ROW}": request("GET", NS),
    f"PUT {ROW}": request("PUT", NEW, POLICIES),
    f"DELETE {ROW}": request("DELETE", NEW),
    f"GET {ROW}/bundles": request("GET", NS + "/bundles"),
    f"GET {ROW}/topics": request("GET", NS + "/topics?mode=ALL&includeSystemTopic=true"),
    f"PUT {ROW}/unload": request("PUT", NS + "/unload"),
    f"POST {ROW}/clearBacklog": request("POST", NS + "/clearBacklog"),
    f"POST {ROW}/clearBacklog/{{subscription}}": request("POST", f"{NS}/clearBacklog/{NAME}"),
    f"POST {ROW}/unsubscribe/{{subscription}}": request("POST", f"{NS}/unsubscribe/{NAME}"),
    f"GET {ROW}/properties": request("GET", NS + "/properties"),
    f"PUT {ROW}/properties": request("PUT", NS + "/properties", PROPERTIES),
    f"DELETE {ROW}/properties": request("DELETE", NS + "/properties"),
    f"GET {ROW}/property/{{key}}": request("GET", f"{NS}/property/{NAME}"),
    f"DELETE {ROW}/property/{{key}}": request("DELETE", f"{NS}/property/{NAME}"),
    f"PUT {ROW}/property/{{key}}/{{value}}": request("PUT", f"{NS}/property/k{{n}}/{NAME}"),
    f"GET {ROW}/replication": request("GET", NS + "/replication"),
    f"POST {ROW}/replication": request("POST", NS + "/replication", CLUSTERS),
    f"GET {ROW}/allowedClusters": request("GET", NS + "/allowedClusters"),
    f"POST {ROW}/allowedClusters": request("POST", NS + "/allowedClusters", CLUSTERS),
    f"GET {ROW}/permissions": request("GET", NS + "/permissions"),
    f"POST {ROW}/permissions/{{role}}": request(
        "POST", f"{NS}/permissions/{NAME}-{{n}}", b'["produce"' + b',"produce"' * 900 + b"]"
    ),
    f"DELETE {ROW}/permissions/{{role}}": request("DELETE", f"{NS}/permissions/{NAME}"),
    f"GET {ROW}/permissions/subscription": request("GET", NS + "/permissions/subscription"),
    f"POST {ROW}/permissions/subscription/{{subscription}}": request(
        "POST", NS + "/permissions/subscription/s", ROLES
    ),
    f"DELETE {ROW}/permissions/{{subscription}}/{{role}}": request(
        "DELETE", f"{NS}/permissions/s/{NAME}"
    ),
}


GRANTED = json.dumps(
    [{"topic": f"persistent://public/default/{NAME}", "role": "r", "actions": ["produce"] * 100}]
    * 100
).encode()
MIGRATION = "/admin/v2/metadata/migration"

ENDPOINTS |= {
    f"{method} /admin/v2/{TOPIC_ROW}/permissions{role}": request(
        method,
        f"{ONE}/permissions" + (f"/{NAME}-{{n}}" if role else ""),
        b'["produce"' + b',"produce"' * 900 + b"]" if method == "POST" else b"",
    )
    for method, role in (("GET", ""), ("POST", "/{role}"), ("DELETE", "/{role}"))
}
ENDPOINTS |= {
    f"POST /admin/v2/namespaces/{verb}PermissionsOnTopics": request(
        "POST", f"/admin/v2/namespaces/{verb}PermissionsOnTopics", GRANTED
    )
    for verb in ("grant", "revoke")
}
ENDPOINTS |= {
    f"{method} {ROW}/allowedTopicPropertyKeysForMetrics": request(
        method, NS + "/allowedTopicPropertyKeysForMetrics", body
    )
    for method, body in (
        ("GET", b""),
        ("POST", json.dumps(["k" * 250 + str(i) for i in range(100)]).encode()),
        ("DELETE", b""),
    )
}
ENDPOINTS |= {
    f"GET {MIGRATION}/status": request("GET", f"{MIGRATION}/status"),
    f"POST {MIGRATION}/start": request("POST", f"{MIGRATION}/start?target={NAME}"),
}

PUBLISHED = json.dumps(
    {
        "messages": [
            {
                "payload": "x" * 5_000,
                "key": "k" * 100,
                "properties": {f"k{i}": "v" * 20 for i in range(6)},
            }
        ]
        * 1_000
    }
).encode()

ENDPOINTS |= {
    "POST /topics/{domain}/{tenant}/{namespace}/{topic}": request(
        "POST", "/topics/persistent/public/default/rest-{n}", PUBLISHED
    ),
    "POST /topics/{domain}/{tenant}/{namespace}/{topic}/partitions/{partition:int}": request(
        "POST", "/topics/persistent/public/default/many-{n}/partitions/0", PUBLISHED
    ),
}

SCHEMA_ROW = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
OF_TOPIC = f"/admin/v2/schemas/public/default/{NAME}"
SCHEMA = json.dumps(
    {"type": "AVRO", "schema": _definition().decode(), "properties": json.loads(PROPERTIES)}
).encode()

ENDPOINTS |= {
    f"GET {SCHEMA_ROW}/schema": request("GET", OF_TOPIC + "/schema"),
    f"GET {SCHEMA_ROW}/schema/{{version:int}}": request("GET", OF_TOPIC + "/schema/1"),
    f"GET {SCHEMA_ROW}/schemas": request("GET", OF_TOPIC + "/schemas"),
    f"GET {SCHEMA_ROW}/metadata": request("GET", OF_TOPIC + "/metadata"),
    f"POST {SCHEMA_ROW}/version": request("POST", OF_TOPIC + "/version", SCHEMA),
    f"POST {SCHEMA_ROW}/schema": request("POST", OF_TOPIC + "/schema", SCHEMA),
    f"POST {SCHEMA_ROW}/compatibility": request("POST", OF_TOPIC + "/compatibility", SCHEMA),
    f"DELETE {SCHEMA_ROW}/schema": request("DELETE", OF_TOPIC + "/schema?force=true"),
}


def policy_request(method: str, path: str) -> Input:
    """A request for a policy: names and body as long as they may be."""
    parts = {"domain": "persistent", "tenant": "public", "namespace": "default", "topic": NAME}
    parts["subName"] = NAME
    # Objects in lists: the most work for a reader of JSON, for the bytes that there may be.
    body = b"" if method in ("GET", "DELETE") else b'{"a":' + b"[{}," * 4090 + b"1"
    return request(method, path.format(**parts) + "?applied=true&isGlobal=true", body)


ENDPOINTS |= {
    f"{row.method} {row.path}": policy_request(row.method, row.path)
    for name in ("namespace_policies", "topic_policies")
    for row in load(name)
}


# What is called otherwise there, and what is not there at all.
APACHE_ENDPOINTS: dict[str, Input | None] = {
    "GET /metrics": request("GET", "/metrics/", head="Accept-Encoding: gzip\r\n"),
    "GET /openapi.json": None,
}


def endpoints_of(kind: str) -> dict[str, Input | None]:
    """The endpoints of a kind of broker; None for those that only pyxbroker has."""
    return ENDPOINTS | (APACHE_ENDPOINTS if kind == "apache" else {})


# As many expressions as there may be, as long as they may be, that match as slowly as they may.
SLOW = b'["' + b'","'.join([(b"(a.*)+" * 42)] * 100) + b'"]'
ISOLATION = (
    b'{"namespaces":' + SLOW + b',"primary":' + SLOW + b',"secondary":[],'
    b'"auto_failover_policy":{"policy_type":"min_available",'
    b'"parameters":{"min_limit":"1","usage_threshold":"80"}}}'
)[: 64 << 10]
ISOLATIONS = CLUSTER + "/namespaceIsolationPolicies"
ISOLATION_ROW = "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies"
ANY_GROUP = b'"' + b"g" * 1_024 + b'"'
AFFINITY = b'{"bookkeeperAffinityGroupPrimary":"p","unknown":[' + b"{}," * 5_000 + b"1]}"

ENDPOINTS |= {
    f"GET /admin/v2/{TOPIC_ROW}/replication": request("GET", ONE + "/replication?applied=true"),
    f"POST /admin/v2/{TOPIC_ROW}/replication": request("POST", ONE + "/replication", CLUSTERS),
    f"DELETE /admin/v2/{TOPIC_ROW}/replication": request("DELETE", ONE + "/replication"),
}

ENDPOINTS |= {
    f"GET {ISOLATION_ROW}": request("GET", ISOLATIONS),
    f"GET {ISOLATION_ROW}/brokers": request("GET", ISOLATIONS + "/brokers"),
    f"GET {ISOLATION_ROW}/brokers/{{broker}}": request("GET", f"{ISOLATIONS}/brokers/{NAME}"),
    f"GET {ISOLATION_ROW}/{{policyName}}": request("GET", f"{ISOLATIONS}/{NAME}"),
    f"POST {ISOLATION_ROW}/{{policyName}}": request("POST", ISOLATIONS + "/p", ISOLATION),
    f"DELETE {ISOLATION_ROW}/{{policyName}}": request("DELETE", f"{ISOLATIONS}/{NAME}"),
    "GET /admin/v2/namespaces/{cluster}/antiAffinity/{group}": request(
        "GET", "/admin/v2/namespaces/standalone/antiAffinity/g?tenant=public"
    ),
    f"GET {ROW}/antiAffinity": request("GET", NS + "/antiAffinity"),
    f"POST {ROW}/antiAffinity": request("POST", NS + "/antiAffinity", ANY_GROUP),
    f"DELETE {ROW}/antiAffinity": request("DELETE", NS + "/antiAffinity"),
    f"GET {ROW}/persistence/bookieAffinity": request("GET", NS + "/persistence/bookieAffinity"),
    f"POST {ROW}/persistence/bookieAffinity": request(
        "POST", NS + "/persistence/bookieAffinity", AFFINITY
    ),
    f"DELETE {ROW}/persistence/bookieAffinity": request(
        "DELETE", NS + "/persistence/bookieAffinity"
    ),
    **{
        f"GET /admin/v2/broker-stats/{name}": request("GET", f"/admin/v2/broker-stats/{name}")
        for name in ("bookieops", "load-report", "mbeans", "metrics", "topics")
    },
    "GET /admin/v2/broker-stats/allocator-stats/{allocator}": request(
        "GET", f"/admin/v2/broker-stats/allocator-stats/{NAME}"
    ),
    "GET /status.html": request("GET", "/status.html"),
}
