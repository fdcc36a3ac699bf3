"""The most expensive input that the limits allow: for each endpoint of REST.

Who adds an endpoint adds what costs most of it, with what it asks about (hostile_scenes.py);
test_hostile.py has the table's rows. Commands are in hostile_commands.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from pyxbroker.admin.endpoints import every_endpoint, load
from pyxbroker.web.endpoint import Endpoint
from torture import hostile_scenes as scenes
from torture.hostile_scenes import (
    BASE,
    CROWD,
    NAME,
    POLICIES,
    PROPERTIES,
    SCHEMA_PATH,
    Prepare,
    Stage,
    http,
    nothing_asked,
    schema_body,
    worded,
)


class Request(NamedTuple):
    """One kind of request. `make` gives the bytes of the one with that number."""

    about: str
    make: Callable[[Stage, int], bytes]
    prepare: Prepare = nothing_asked
    answers: tuple[int, ...] = ()  # that may come; else the one that its endpoint promises
    is_dear: bool = False  # a thousand of them take longer than a row may

    def is_expected(self, name: str, status: int) -> bool:
        """Whether the endpoint of that name may answer so here."""
        return status in (self.answers or (_promised()[name],))


@cache
def _promised() -> dict[str, int]:
    return {f"{row.method} {row.path}": row.answer.status for _, row in every_endpoint()}


def request(
    method: str,
    path: str,
    body: bytes = b"",
    head: str = "",
    *,
    scene: Prepare = nothing_asked,
    answers: tuple[int, ...] = (),
    is_dear: bool = False,
) -> Request:
    """A request. In its path are the words of `worded`, `{broker}`, which is the broker's name,
    `{txn}`, its transaction, and `{ledger}`, the ledger of its topic, which can be in the body as
    well.
    """
    has_ledger = b"{ledger}" in body

    def make(stage: Stage, n: int) -> bytes:
        found = worded(path, n).replace("{ledger}", str(stage.ledger(n)))
        found = found.replace("{txn}", str(stage.transaction(n)))
        if "{broker}" in found:
            found = found.replace("{broker}", stage.broker_id)
        text = body.replace(b"{ledger}", b"%d" % stage.ledger(n)) if has_ledger else body
        return http(method, found, text, head)

    about = f"{len(path)} bytes of path, {len(body)} of body"
    return Request(about, make, scene, answers, is_dear)


TOPIC_ROW = "{domain}/{tenant}/{namespace}/{topic}"
OF_TOPIC = f"/admin/v2/{TOPIC_ROW}"
OF_SUBSCRIPTION = f"{OF_TOPIC}/subscription/{{subName}}"
ONE = f"{BASE}/{NAME}"  # the big topic
OWN = f"{BASE}/hostile-own-{{n}}"  # one of many
RESET = f"{BASE}/hostile-reset"
PARTS = f"{BASE}/parts-{{n}}"
QUOTA = "/admin/v2/resource-quotas/public/default/0x00000000_0x40000000"
NESTED_ID = b'{"ledgerId":{ledger},"entryId":9' + b',"a":[{}]' * 1800 + b"}"
PLACE = b'{"ledgerId":{ledger},"entryId":0,"batchIndex":1048575,"properties":' + PROPERTIES + b"}"

# Of many that change one record, or move one subscription, at once.
AT_ONCE = (503,)

# A text of JSON that is read as well, of as many values as it may have.
LISTS_WITHIN = json.dumps(
    {"type": "STRING", "properties": {"__charset": "UTF-8"}, "unknown": [[]] * 9_900}
)
PUBLISHED = json.dumps(
    {
        "valueSchema": LISTS_WITHIN,
        "messages": [
            {
                "payload": "x" * 5_000,
                "key": "k" * 100,
                "properties": {f"k{i}": "v" * 20 for i in range(6)},
            }
        ]
        * 1_000,
    }
).encode()

# What is asked about a topic that many requests read.
OF_BIG_TOPIC: dict[str, Request] = {
    f"GET {OF_SUBSCRIPTION}/position/{{messagePosition:int}}": request(
        "GET", f"{ONE}/subscription/{NAME}/position/999"
    ),
    f"GET {OF_TOPIC}/ledger/{{ledgerId:long}}/entry/{{entryId:long}}": request(
        "GET", f"{ONE}/ledger/{{ledger}}/entry/1999"
    ),
    f"GET {OF_TOPIC}/examinemessage": request(
        "GET", f"{ONE}/examinemessage?initialPosition=earliest&messagePosition=1999"
    ),
    f"GET {OF_TOPIC}/lastMessageId": request("GET", f"{ONE}/lastMessageId"),
    f"GET {OF_TOPIC}/messageid/{{timestamp:long}}": request(
        "GET", f"{ONE}/messageid/9223372036854775807"
    ),
    # A default broker numbers no messages.
    f"GET {OF_TOPIC}/getMessageIdByIndex": request(
        "GET", f"{ONE}/getMessageIdByIndex?index=9223372036854775807", answers=(412,)
    ),
    f"POST {OF_SUBSCRIPTION}/analyzeBacklog": request(
        "POST", f"{ONE}/subscription/{NAME}/analyzeBacklog", is_dear=True
    ),
    f"PUT {OF_TOPIC}/backlogSize": request("PUT", f"{ONE}/backlogSize", NESTED_ID),
    f"GET {OF_TOPIC}/subscriptions": request("GET", f"{ONE}/subscriptions"),
    f"GET {OF_SUBSCRIPTION}/properties": request("GET", f"{ONE}/subscription/{NAME}/properties"),
    f"PUT {OF_SUBSCRIPTION}/properties": request(
        "PUT", f"{ONE}/subscription/{NAME}/properties", PROPERTIES
    ),
    f"GET {OF_SUBSCRIPTION}/replicatedSubscriptionStatus": request(
        "GET", f"{ONE}/subscription/{NAME}/replicatedSubscriptionStatus"
    ),
    f"POST {OF_SUBSCRIPTION}/replicatedSubscriptionStatus": request(
        "POST", f"{ONE}/subscription/{NAME}/replicatedSubscriptionStatus", b" " * 50 + b"true"
    ),
    f"GET {OF_TOPIC}/properties": request("GET", f"{ONE}/properties"),
    f"PUT {OF_TOPIC}/properties": request("PUT", f"{ONE}/properties", PROPERTIES),
    f"DELETE {OF_TOPIC}/properties": request("DELETE", f"{ONE}/properties?key=k1"),
    f"DELETE {OF_TOPIC}/policies": request("DELETE", f"{ONE}/policies"),
    f"GET {OF_TOPIC}/stats": request(
        "GET", f"{ONE}/stats?getPreciseBacklog=true&getEarliestTimeInBacklog=true", is_dear=True
    ),
    f"GET {OF_TOPIC}/internalStats": request(
        "GET", f"{ONE}/internalStats?metadata=true", is_dear=True
    ),
    f"GET {OF_TOPIC}/why": request("GET", f"{ONE}/why"),
    f"GET {OF_SUBSCRIPTION}/why": request("GET", f"{ONE}/subscription/{NAME}/why"),
    f"GET {OF_TOPIC}/backlog": request("GET", f"{ONE}/backlog"),
    f"GET {OF_TOPIC}/internal-info": request("GET", f"{ONE}/internal-info", is_dear=True),
    f"GET {OF_TOPIC}/compaction": request("GET", f"{ONE}/compaction"),
    f"GET {OF_TOPIC}/partitions": request("GET", f"{ONE}/partitions?checkAllowAutoCreation=true"),
    "GET /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}": request(
        "GET", f"/lookup/v2/topic/persistent/public/default/{NAME}"
    ),
    "GET /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle": request(
        "GET", f"/lookup/v2/topic/persistent/public/default/{NAME}/bundle"
    ),
    f"GET {OF_TOPIC}/permissions": request("GET", f"{ONE}/permissions"),
    f"POST {OF_TOPIC}/permissions/{{role}}": request(
        "POST", f"{ONE}/permissions/{NAME}-{{m}}", b'["produce"' + b',"produce"' * 900 + b"]"
    ),
    f"DELETE {OF_TOPIC}/permissions/{{role}}": request("DELETE", f"{ONE}/permissions/{NAME}-{{m}}"),
    f"GET {OF_TOPIC}/replication": request("GET", ONE + "/replication?applied=true"),
    f"DELETE {OF_TOPIC}/replication": request("DELETE", ONE + "/replication"),
    f"GET {OF_TOPIC}/shadowTopics": request("GET", ONE + "/shadowTopics", answers=(204,)),
    f"DELETE {OF_TOPIC}/shadowTopics": request("DELETE", ONE + "/shadowTopics"),
    f"GET {OF_TOPIC}/offload": request("GET", ONE + "/offload"),
}
# What changes the topic that it is about, so that each request has its own.
OF_OWN_TOPIC: dict[str, Request] = {
    f"DELETE {OF_TOPIC}": request("DELETE", f"{OWN}?force=true"),
    f"DELETE {OF_SUBSCRIPTION}": request("DELETE", f"{OWN}/subscription/{NAME}?force=true"),
    f"POST {OF_SUBSCRIPTION}/expireMessages": request(
        "POST", f"{OWN}/subscription/{NAME}/expireMessages", NESTED_ID
    ),
    f"POST {OF_SUBSCRIPTION}/expireMessages/{{seconds:int}}": request(
        "POST", f"{OWN}/subscription/{NAME}/expireMessages/1"
    ),
    f"POST {OF_SUBSCRIPTION}/skip/{{numMessages:int}}": request(
        "POST", f"{OWN}/subscription/{NAME}/skip/999999999"
    ),
    f"POST {OF_SUBSCRIPTION}/skip_all": request("POST", f"{OWN}/subscription/{NAME}/skip_all"),
    f"POST {OF_TOPIC}/all_subscription/expireMessages/{{seconds:int}}": request(
        "POST", f"{OWN}/all_subscription/expireMessages/1"
    ),
    f"PUT {OF_TOPIC}/compaction": request("PUT", f"{OWN}/compaction"),
    f"POST {OF_TOPIC}/trim": request("POST", f"{OWN}/trim"),
    f"DELETE {OF_TOPIC}/truncate": request("DELETE", f"{OWN}/truncate"),
    f"PUT {OF_TOPIC}/unload": request("PUT", f"{OWN}/unload"),
    f"POST {OF_TOPIC}/terminate": request("POST", f"{OWN}/terminate"),
}
OF_OWN_PARTITIONS: dict[str, Request] = {
    f"DELETE {OF_TOPIC}/partitions": request(
        "DELETE", f"{PARTS}/partitions?force=true", is_dear=True
    ),
    f"POST {OF_TOPIC}/partitions": request(
        "POST", f"{PARTS}/partitions", b" " * (60 << 10) + b"40"
    ),
    f"POST {OF_TOPIC}/terminate/partitions": request(
        "POST", f"{PARTS}/terminate/partitions", is_dear=True
    ),
    f"POST {OF_TOPIC}/createMissedPartitions": request("POST", f"{PARTS}/createMissedPartitions"),
    "POST /topics/{domain}/{tenant}/{namespace}/{topic}/partitions/{partition:int}": request(
        "POST", "/topics/persistent/public/default/parts-{n}/partitions/0", PUBLISHED
    ),
}


def with_scene(scene: Prepare, rows: dict[str, Request]) -> dict[str, Request]:
    """Requests that have their scene in common."""
    return {name: each._replace(prepare=scene) for name, each in rows.items()}


ENDPOINTS: dict[str, Request] = {
    **with_scene(scenes.big_topic, OF_BIG_TOPIC),
    **with_scene(scenes.own_topics, OF_OWN_TOPIC),
    **with_scene(scenes.own_partitioned, OF_OWN_PARTITIONS),
    f"PUT {OF_TOPIC}": request("PUT", f"{BASE}/rest-{{n}}", PROPERTIES),
    f"PUT {OF_TOPIC}/partitions": request("PUT", f"{BASE}/many-{{n}}/partitions", b"100"),
    f"PUT {OF_SUBSCRIPTION}": request(
        "PUT", f"{BASE}/{NAME}-{{n}}/subscription/{NAME}?replicated=true", PLACE
    ),
    # To the same topic again: what is behind the place is to be read again each time.
    f"POST {OF_SUBSCRIPTION}/resetcursor/{{timestamp:long}}": request(
        "POST",
        f"{RESET}/subscription/{NAME}/resetcursor/1",
        scene=scenes.reset_topic,
        answers=(204, *AT_ONCE),
    ),
    f"POST {OF_SUBSCRIPTION}/resetcursor": request(
        "POST",
        f"{RESET}/subscription/{NAME}/resetcursor",
        PLACE,
        scene=scenes.reset_topic,
        answers=(204, *AT_ONCE),
    ),
    f"GET {OF_TOPIC}/partitioned-stats": request(
        "GET",
        f"{BASE}/hostile-parts/partitioned-stats?getEarliestTimeInBacklog=true",
        scene=scenes.partitioned,
        is_dear=True,
    ),
    f"GET {OF_TOPIC}/partitioned-internalStats": request(
        "GET",
        f"{BASE}/hostile-parts/partitioned-internalStats?metadata=true",
        scene=scenes.partitioned,
        is_dear=True,
    ),
    "POST /topics/{domain}/{tenant}/{namespace}/{topic}": request(
        "POST",
        f"/topics/persistent/{scenes.VAST_NAMESPACE}/vast",
        PUBLISHED,
        scene=scenes.vast,
    ),
}

# --- transactions ---------------------------------------------------------------------------------

TXN = "/admin/v3/transactions"
OF_TXN = "{mostSigBits:long}/{leastSigBits:long}"
TXN_TOPIC = "{tenant}/{namespace}/{topic}"
ONE_TXN = f"public/default/{NAME}-txn"
ENDPOINTS |= with_scene(
    scenes.transactions,
    {
        f"GET {TXN}/coordinators": request("GET", f"{TXN}/coordinators"),
        f"GET {TXN}/coordinatorStats": request("GET", f"{TXN}/coordinatorStats"),
        f"GET {TXN}/coordinatorInternalStats/{{coordinatorId:int}}": request(
            "GET", f"{TXN}/coordinatorInternalStats/0?metadata=true"
        ),
        f"GET {TXN}/transactionMetadata/{OF_TXN}": request(
            "GET", f"{TXN}/transactionMetadata/0/{{txn}}", is_dear=True
        ),
        f"GET {TXN}/slowTransactions/{{timeout:long}}": request(
            "GET", f"{TXN}/slowTransactions/0", is_dear=True
        ),
        f"GET {TXN}/transactionBufferStats/{TXN_TOPIC}": request(
            "GET", f"{TXN}/transactionBufferStats/{ONE_TXN}?lowWaterMarks=true&segmentStats=true"
        ),
        f"GET {TXN}/transactionInBufferStats/{TXN_TOPIC}/{OF_TXN}": request(
            "GET", f"{TXN}/transactionInBufferStats/{ONE_TXN}/0/{{txn}}"
        ),
        f"GET {TXN}/transactionBufferInternalStats/{TXN_TOPIC}": request(
            "GET", f"{TXN}/transactionBufferInternalStats/{ONE_TXN}?metadata=true"
        ),
        f"GET {TXN}/pendingAckStats/{TXN_TOPIC}/{{subName}}": request(
            "GET", f"{TXN}/pendingAckStats/{ONE_TXN}/{NAME}?lowWaterMarks=true"
        ),
        f"GET {TXN}/transactionInPendingAckStats/{TXN_TOPIC}/{{subName}}/{OF_TXN}": request(
            "GET", f"{TXN}/transactionInPendingAckStats/{ONE_TXN}/{NAME}/0/{{txn}}"
        ),
        f"GET {TXN}/pendingAckInternalStats/{TXN_TOPIC}/{{subName}}": request(
            "GET", f"{TXN}/pendingAckInternalStats/{ONE_TXN}/{NAME}?metadata=true"
        ),
        f"GET {TXN}/positionStatsInPendingAck/{TXN_TOPIC}/{{subName}}"
        "/{ledgerId:long}/{entryId:long}": request(
            "GET", f"{TXN}/positionStatsInPendingAck/{ONE_TXN}/{NAME}/{{ledger}}/0?batchIndex=9"
        ),
        # It is not more than there are.
        f"POST {TXN}/transactionCoordinator/replicas": request(
            "POST", f"{TXN}/transactionCoordinator/replicas", b" " * 16_000 + b"1", answers=(406,)
        ),
    },
)
ENDPOINTS[f"POST {TXN}/abortTransaction/{OF_TXN}"] = request(
    "POST", f"{TXN}/abortTransaction/0/{{txn}}", scene=scenes.own_transactions
)

# --- the broker -----------------------------------------------------------------------------------

RACKS = "/admin/v2/bookies/racks-info"
RACK = b'{"rack":"%s"' % (b"r" * 256) + b',"a":[{}]' * 1700 + b"}"
racks = scenes.many("racks", f"{RACKS}/b-{{k}}?group={'g' * 256}", RACK, "POST")
racks_anew = scenes.many("", f"{RACKS}/b-{{k}}?group={'g' * 256}", RACK, "POST")
METRICS = scenes.both(scenes.big_topic, scenes.crowd, scenes.partitioned)

ENDPOINTS |= {
    "GET /admin/v2/brokers/health": request("GET", "/admin/v2/brokers/health"),
    "GET /admin/v2/brokers/ready": request("GET", "/admin/v2/brokers/ready"),
    "GET /admin/v2/brokers/version": request(
        "GET", "/admin/v2/brokers/version", head="X: y\r\n" * 90
    ),
    "GET /metrics": request(
        "GET", "/metrics", head="Accept-Encoding: gzip\r\n", scene=METRICS, is_dear=True
    ),
    "GET /openapi.json": request("GET", "/openapi.json"),
    "GET /admin/v2/brokers": request("GET", "/admin/v2/brokers"),
    "GET /admin/v2/brokers/{cluster}": request("GET", f"/admin/v2/brokers/{NAME}"),
    "GET /admin/v2/brokers/leaderBroker": request("GET", "/admin/v2/brokers/leaderBroker"),
    "GET /admin/v2/brokers/{cluster}/{brokerId}/ownedNamespaces": request(
        "GET", "/admin/v2/brokers/standalone/{broker}/ownedNamespaces", scene=scenes.own_namespaces
    ),
    "GET /admin/v2/brokers/internal-configuration": request(
        "GET", "/admin/v2/brokers/internal-configuration"
    ),
    "POST /admin/v2/brokers/backup/moments": request(
        "POST", "/admin/v2/brokers/backup/moments", answers=(200, 409)
    ),
    "PUT /admin/v2/brokers/backup/moments/{moment}": request(
        "PUT", f"/admin/v2/brokers/backup/moments/{NAME}", answers=(404,)
    ),
    "DELETE /admin/v2/brokers/backup/moments/{moment}": request(
        "DELETE", f"/admin/v2/brokers/backup/moments/{NAME}", answers=(404,)
    ),
    "GET /admin/v2/bookies/all": request("GET", "/admin/v2/bookies/all"),
    f"GET {RACKS}": request("GET", RACKS, scene=racks),
    f"GET {RACKS}/{{bookie}}": request("GET", RACKS + "/b-many-{m}", scene=racks),
    f"POST {RACKS}/{{bookie}}": request(
        "POST",
        f"{RACKS}/b-many-{{m}}?group={'g' * 256}",
        RACK,
        scene=racks,
        answers=(204, *AT_ONCE),
    ),
    f"DELETE {RACKS}/{{bookie}}": request(
        "DELETE", RACKS + "/b-many-{m}", scene=racks_anew, answers=(204, 404, *AT_ONCE)
    ),
    "GET /admin/v2/resource-quotas": request("GET", "/admin/v2/resource-quotas"),
    "POST /admin/v2/resource-quotas": request(
        "POST",
        "/admin/v2/resource-quotas",
        b'{"memory":1' + b',"a":[{}]' * 1700 + b"}",
        answers=(204, *AT_ONCE),
    ),
    "GET /admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}": request("GET", QUOTA),
    "POST /admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}": request(
        "POST", QUOTA, b'{"memory":1' + b',"a":[{}]' * 1700 + b"}", answers=(204, *AT_ONCE)
    ),
    "DELETE /admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}": request(
        "DELETE",
        QUOTA,
        scene=scenes.there("POST", QUOTA, b'{"memory":1}'),
        answers=(204, 404, *AT_ONCE),
    ),
    "GET /admin/v2/brokers/configuration": request("GET", "/admin/v2/brokers/configuration"),
    "GET /admin/v2/brokers/configuration/values": request(
        "GET", "/admin/v2/brokers/configuration/values"
    ),
    "GET /admin/v2/brokers/configuration/runtime": request(
        "GET", "/admin/v2/brokers/configuration/runtime"
    ),
    "POST /admin/v2/brokers/configuration/{name}/{value}": request(
        "POST", "/admin/v2/brokers/configuration/maxTenants/{m}000000", answers=(200, *AT_ONCE)
    ),
    "DELETE /admin/v2/brokers/configuration/{name}": request(
        "DELETE", "/admin/v2/brokers/configuration/maxTenants", answers=(200, *AT_ONCE)
    ),
    "GET /admin/v2/brokers/backlog-quota-check": request(
        "GET", "/admin/v2/brokers/backlog-quota-check", scene=METRICS
    ),
    **{
        f"GET /admin/v2/broker-stats/{name}": request(
            "GET",
            f"/admin/v2/broker-stats/{name}",
            scene=METRICS,
            is_dear=True,
        )
        for name in ("bookieops", "load-report", "mbeans", "metrics", "peers", "topics")
    },
    "GET /admin/v2/broker-stats/allocator-stats/{allocator}": request(
        "GET", "/admin/v2/broker-stats/allocator-stats/default"
    ),
    "GET /status.html": request("GET", "/status.html", answers=(404,)),  # without its file
}

# --- clusters, tenants and resource groups --------------------------------------------------------

NS = f"/admin/v2/namespaces/{CROWD}"
NEW = "/admin/v2/namespaces/public/hostile-{n}"
ROW = "/admin/v2/namespaces/{tenant}/{namespace}"
OF_POLICIES = f"/admin/v2/namespaces/{POLICIES}"
ALL_POLICIES = (
    b'{"bundles":{"numBundles":4096},"properties":{"a":"'
    + b"x" * 60_000
    + b'"},"unknown":['
    + b",".join([b"{}"] * 49_000)
    + b"]}"
)
ROLES = b"[" + b",".join(b'"%s%03d"' % (b"r" * 50, i) for i in range(1000)) + b"]"
TENANT = b'{"allowedClusters":["standalone"],"adminRoles":' + ROLES[:-1] + b"]}"
MANY_CLUSTERS = b"[" + b",".join(b'"hostile-many-%d"' % i for i in range(500)) + b"]"
TOO_MANY_CLUSTERS = b"[" + b",".join(b'"cluster-%d"' % i for i in range(4_000)) + b"]"

CLUSTER = "/admin/v2/clusters/standalone"
NEW_CLUSTER = "/admin/v2/clusters/hostile-{k}"
NEW_TENANT = "/admin/v2/tenants/hostile-{k}"
GROUP = "/admin/v2/resourcegroups/hostile-{k}"
BUNDLE = NS + "/0x00000000_0x40000000"
DOMAIN = f"{CLUSTER}/failureDomains/{'d' * 256}"
# Objects in lists: the most work for a reader of JSON, for the bytes that there may be.
PEERS = b'{"peerClusterNames":' + ROLES + b',"a":[' + b"{}," * 8_900 + b"1]}"
BROKERS = b'{"brokers":[' + b",".join(b'"b%03d"' % i for i in range(1000)) + b"]}"
LIMITS = b'{"publishRateInMsgs":1,"a":[' + b"{}," * 1_300 + b"1]}"
URL = b'{"serviceUrl":"http://127.0.0.1:1"}'

# Of a thousand, those that come behind the ones that there may be.
THERE, GONE = (409,), (404,)
clusters = scenes.many("clusters", NEW_CLUSTER, URL)
tenants = scenes.many("tenants", NEW_TENANT, TENANT)
groups = scenes.many("groups", GROUP, LIMITS)

ENDPOINTS |= {
    "GET /admin/v2/clusters": request("GET", "/admin/v2/clusters?" + "a=b&" * 1900, scene=clusters),
    "GET /admin/v2/clusters/{cluster}": request(
        "GET",
        "/admin/v2/clusters/hostile-large",
        scene=scenes.there("PUT", "/admin/v2/clusters/hostile-large", PEERS),
    ),
    "PUT /admin/v2/clusters/{cluster}": request("PUT", NEW_CLUSTER, PEERS, answers=(200, *THERE)),
    "POST /admin/v2/clusters/{cluster}": request(
        "POST", NEW_CLUSTER, PEERS, scene=scenes.one_each(NEW_CLUSTER, URL)
    ),
    "DELETE /admin/v2/clusters/{cluster}": request(
        "DELETE", NEW_CLUSTER, scene=scenes.one_each(NEW_CLUSTER, URL), answers=(204, *GONE)
    ),
    # Nothing has migrated.
    "GET /admin/v2/clusters/{cluster}/migrate": request(
        "GET", CLUSTER + "/migrate", answers=(404,)
    ),
    "GET /admin/v2/clusters/{cluster}/peers": request(
        "GET",
        CLUSTER + "/peers",
        scene=scenes.both(clusters, scenes.there("POST", CLUSTER + "/peers", MANY_CLUSTERS)),
    ),
    "POST /admin/v2/clusters/{cluster}/peers": request(
        "POST", CLUSTER + "/peers", MANY_CLUSTERS, scene=clusters
    ),
    "GET /admin/v2/clusters/{cluster}/failureDomains": request(
        "GET", CLUSTER + "/failureDomains", scene=scenes.there("POST", DOMAIN, BROKERS)
    ),
    "GET /admin/v2/clusters/{cluster}/failureDomains/{domainName}": request(
        "GET", DOMAIN, scene=scenes.there("POST", DOMAIN, BROKERS)
    ),
    "POST /admin/v2/clusters/{cluster}/failureDomains/{domainName}": request(
        "POST", DOMAIN, BROKERS
    ),
    "DELETE /admin/v2/clusters/{cluster}/failureDomains/{domainName}": request(
        "DELETE", DOMAIN, scene=scenes.there("POST", DOMAIN, BROKERS), answers=(200, *GONE)
    ),
    "GET /admin/v2/resourcegroups": request("GET", "/admin/v2/resourcegroups", scene=groups),
    "GET /admin/v2/resourcegroups/{resourcegroup}": request(
        "GET", "/admin/v2/resourcegroups/hostile-many-{m}", scene=groups
    ),
    "PUT /admin/v2/resourcegroups/{resourcegroup}": request("PUT", GROUP, LIMITS),
    "DELETE /admin/v2/resourcegroups/{resourcegroup}": request(
        "DELETE", GROUP, scene=scenes.one_each(GROUP, LIMITS), answers=(204, *GONE)
    ),
    "GET /admin/v2/tenants": request("GET", "/admin/v2/tenants?" + "a=b&" * 1900, scene=tenants),
    "GET /admin/v2/tenants/{tenant}": request(
        "GET", "/admin/v2/tenants/hostile-many-{m}", scene=tenants
    ),
    "PUT /admin/v2/tenants/{tenant}": request("PUT", NEW_TENANT, TENANT, answers=(204, *THERE)),
    "POST /admin/v2/tenants/{tenant}": request("POST", "/admin/v2/tenants/pulsar", TENANT),
    "DELETE /admin/v2/tenants/{tenant}": request(
        "DELETE", NEW_TENANT, scene=scenes.one_each(NEW_TENANT, TENANT), answers=(204, *GONE)
    ),
}

# --- namespaces -----------------------------------------------------------------------------------

POSITIONS = b"[" + b",".join(b"%d" % (i << 19) for i in range(2048)) + b"]"
SUBSCRIPTION_OF_ALL = NAME  # of the topics of the crowd
has_roles = scenes.roles
has_properties = scenes.namespace_properties
group_there = scenes.there("PUT", "/admin/v2/resourcegroups/hostile", LIMITS)
has_group = scenes.both(
    scenes.crowd, group_there, scenes.there("POST", NS + "/resourcegroup/hostile")
)

OF_CROWD: dict[str, Request] = {
    "GET /admin/v2/{domain}/{tenant}/{namespace}": request(
        "GET", f"/admin/v2/persistent/{CROWD}", is_dear=True
    ),
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{bundle}": request(
        "GET", f"/admin/v2/non-persistent/{CROWD}/0x00000000_0x40000000"
    ),
    f"GET {ROW}/bundles": request("GET", NS + "/bundles"),
    f"GET {ROW}/topics": request("GET", NS + "/topics?mode=ALL&includeSystemTopic=true"),
    f"PUT {ROW}/unload": request("PUT", NS + "/unload", is_dear=True),
    f"PUT {ROW}/{{bundle}}/unload": request("PUT", BUNDLE + "/unload", is_dear=True),
    f"GET {ROW}/{{bundle}}/topicHashPositions": request(
        "GET", BUNDLE + "/topicHashPositions?" + "topics=t&" * 90
    ),
    # It is not empty, which the broker has to find out.
    f"DELETE {ROW}/{{bundle}}": request("DELETE", BUNDLE, answers=(409,)),
}
OF_CLEARED_CROWD: dict[str, Request] = {
    f"POST {ROW}/clearBacklog": request("POST", NS + "/clearBacklog", is_dear=True),
    f"POST {ROW}/clearBacklog/{{subscription}}": request(
        "POST", f"{NS}/clearBacklog/{SUBSCRIPTION_OF_ALL}", is_dear=True
    ),
    f"POST {ROW}/unsubscribe/{{subscription}}": request(
        "POST", f"{NS}/unsubscribe/{SUBSCRIPTION_OF_ALL}", answers=(204, *AT_ONCE)
    ),
    f"POST {ROW}/{{bundle}}/clearBacklog": request("POST", BUNDLE + "/clearBacklog", is_dear=True),
    f"POST {ROW}/{{bundle}}/clearBacklog/{{subscription}}": request(
        "POST", f"{BUNDLE}/clearBacklog/{SUBSCRIPTION_OF_ALL}", is_dear=True
    ),
    f"POST {ROW}/{{bundle}}/unsubscribe/{{subscription}}": request(
        "POST", f"{BUNDLE}/unsubscribe/{SUBSCRIPTION_OF_ALL}", answers=(204, *AT_ONCE)
    ),
}
GRANTED = json.dumps(
    [
        {
            "topic": f"persistent://{scenes.GRANTS}/t{i % scenes.GRANTED_TOPICS}",
            "role": f"{'r' * 200}{i}",
            "actions": ["produce", "consume", "functions", "sources", "sinks", "packages"],
        }
        for i in range(1_000)
    ]
).encode()
MIGRATION = "/admin/v2/metadata/migration"
KEYS_OF_METRICS = json.dumps(["k" * 250 + str(i) for i in range(100)]).encode()

ENDPOINTS |= {
    **with_scene(scenes.crowd, OF_CROWD),
    **with_scene(scenes.crowd_anew, OF_CLEARED_CROWD),
    "GET /admin/v2/{domain}/{tenant}/{namespace}/partitioned": request(
        "GET", BASE + "/partitioned?includeSystemTopic=true", scene=scenes.own_partitioned
    ),
    f"GET {ROW}/resourcegroup": request("GET", NS + "/resourcegroup", scene=has_group),
    f"POST {ROW}/resourcegroup/{{resourcegroup}}": request(
        "POST", NS + "/resourcegroup/hostile", scene=has_group
    ),
    f"DELETE {ROW}/resourcegroup": request("DELETE", NS + "/resourcegroup", scene=has_group),
    # Each has more than two thousand bundles afterwards.
    f"PUT {ROW}/{{bundle}}/split": request(
        "PUT",
        NEW + "/0x00000000_0x40000000/split?splitAlgorithmName=specified_positions_divide",
        POSITIONS,
        scene=scenes.own_namespaces,
    ),
    "GET /admin/v2/namespaces/{tenant}": request(
        "GET", "/admin/v2/namespaces/public", scene=scenes.own_namespaces
    ),
    f"GET {ROW}": request("GET", OF_POLICIES, scene=scenes.both(has_roles, has_properties)),
    f"PUT {ROW}": request("PUT", NEW, ALL_POLICIES),
    f"DELETE {ROW}": request("DELETE", NEW, scene=scenes.own_namespaces),
    f"GET {ROW}/properties": request("GET", OF_POLICIES + "/properties", scene=has_properties),
    f"PUT {ROW}/properties": request(
        "PUT", OF_POLICIES + "/properties", PROPERTIES, scene=has_properties
    ),
    f"DELETE {ROW}/properties": request(
        "DELETE", OF_POLICIES + "/properties", scene=has_properties
    ),
    f"GET {ROW}/property/{{key}}": request(
        "GET", OF_POLICIES + "/property/k{m}", scene=has_properties
    ),
    f"DELETE {ROW}/property/{{key}}": request(
        "DELETE", OF_POLICIES + "/property/k{m}", scene=has_properties
    ),
    f"PUT {ROW}/property/{{key}}/{{value}}": request(
        "PUT", OF_POLICIES + f"/property/k1/{{n}}-{'v' * 200}", scene=has_properties
    ),
    f"POST {ROW}/migration": request(
        "POST", OF_POLICIES + "/migration", b" " * 50 + b"false", scene=has_roles
    ),
    f"GET {ROW}/replication": request("GET", OF_POLICIES + "/replication", scene=has_roles),
    f"POST {ROW}/replication": request(
        "POST", OF_POLICIES + "/replication", TOO_MANY_CLUSTERS, scene=has_roles, answers=(400,)
    ),
    f"GET {ROW}/allowedClusters": request("GET", OF_POLICIES + "/allowedClusters", scene=has_roles),
    f"POST {ROW}/allowedClusters": request(
        "POST", OF_POLICIES + "/allowedClusters", TOO_MANY_CLUSTERS, scene=has_roles, answers=(400,)
    ),
    f"GET {ROW}/permissions": request("GET", OF_POLICIES + "/permissions", scene=has_roles),
    f"POST {ROW}/permissions/{{role}}": request(
        "POST",
        f"{OF_POLICIES}/permissions/{NAME}-1",
        b'["produce"' + b',"produce"' * 900 + b"]",
        scene=has_roles,
    ),
    f"DELETE {ROW}/permissions/{{role}}": request(
        "DELETE", f"{OF_POLICIES}/permissions/{NAME}-2", scene=has_roles
    ),
    f"GET {ROW}/permissions/subscription": request(
        "GET", OF_POLICIES + "/permissions/subscription", scene=has_roles
    ),
    f"POST {ROW}/permissions/subscription/{{subscription}}": request(
        "POST", OF_POLICIES + "/permissions/subscription/s", ROLES, scene=has_roles
    ),
    f"DELETE {ROW}/permissions/{{subscription}}/{{role}}": request(
        "DELETE", f"{OF_POLICIES}/permissions/s/r2", scene=has_roles
    ),
    **{
        f"POST /admin/v2/namespaces/{verb}PermissionsOnTopics": request(
            "POST",
            f"/admin/v2/namespaces/{verb}PermissionsOnTopics",
            GRANTED,
            scene=scenes.topics_with_grants,
        )
        for verb in ("grant", "revoke")
    },
    f"GET {ROW}/allowedTopicPropertyKeysForMetrics": request(
        "GET",
        NS + "/allowedTopicPropertyKeysForMetrics",
        scene=scenes.both(
            scenes.crowd,
            scenes.there("POST", NS + "/allowedTopicPropertyKeysForMetrics", KEYS_OF_METRICS),
        ),
    ),
    f"POST {ROW}/allowedTopicPropertyKeysForMetrics": request(
        "POST", NS + "/allowedTopicPropertyKeysForMetrics", KEYS_OF_METRICS, scene=scenes.crowd
    ),
    f"DELETE {ROW}/allowedTopicPropertyKeysForMetrics": request(
        "DELETE", NS + "/allowedTopicPropertyKeysForMetrics", scene=scenes.crowd
    ),
    f"GET {MIGRATION}/status": request("GET", f"{MIGRATION}/status"),
    # There is no store to migrate to.
    f"POST {MIGRATION}/start": request("POST", f"{MIGRATION}/start?target={NAME}", answers=(400,)),
    f"POST {OF_TOPIC}/replication": request(
        "POST", ONE + "/replication", TOO_MANY_CLUSTERS, scene=scenes.big_topic, answers=(400,)
    ),
}

# --- schemas --------------------------------------------------------------------------------------

SCHEMA_ROW = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
NEXT_SCHEMA = schema_body("next")

ENDPOINTS |= {
    f"GET {SCHEMA_ROW}/schema": request("GET", SCHEMA_PATH + "/schema", scene=scenes.schemas),
    f"GET {SCHEMA_ROW}/schema/{{version:long}}": request(
        "GET", SCHEMA_PATH + "/schema/1", scene=scenes.schemas
    ),
    f"GET {SCHEMA_ROW}/schemas": request(
        "GET", SCHEMA_PATH + "/schemas", scene=scenes.schemas, is_dear=True
    ),
    f"GET {SCHEMA_ROW}/metadata": request("GET", SCHEMA_PATH + "/metadata", scene=scenes.schemas),
    f"POST {SCHEMA_ROW}/version": request(
        "POST", SCHEMA_PATH + "/version", schema_body("g0"), scene=scenes.schemas, is_dear=True
    ),
    f"POST {SCHEMA_ROW}/compatibility": request(
        "POST", SCHEMA_PATH + "/compatibility", NEXT_SCHEMA, scene=scenes.schemas, is_dear=True
    ),
    f"POST {SCHEMA_ROW}/schema": request(
        "POST", SCHEMA_PATH + "/schema", NEXT_SCHEMA, scene=scenes.schemas, is_dear=True
    ),
    f"DELETE {SCHEMA_ROW}/schema": request(
        "DELETE", SCHEMA_PATH + "/schema?force=true", scene=scenes.schemas_anew
    ),
}

# --- policies -------------------------------------------------------------------------------------

NUMBER_OF_ALL = 1_000_000
# What the schema of a value does not tell of what one may be.
VALUES: dict[str, Any] = {
    "retention": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    "persistence": {
        "bookkeeperEnsemble": 1,
        "bookkeeperWriteQuorum": 1,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": 1.0,
    },
    "subscribeRate": {"subscribeThrottlingRatePerConsumer": NUMBER_OF_ALL, "ratePeriodInSecond": 1},
    "offloadPolicies": {
        "managedLedgerOffloadDriver": "filesystem",
        "managedLedgerExtraConfigurations": {f"k{n}": "v" for n in range(500)},
    },
    # There are none to be named.
    "entryFilters": {"entryFilterNames": "f" * 1_000},
    "autoTopicCreation": {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 1,
    },
}
POLICY_BODY_BYTES_MAX = 16 << 10


def _value(schema: dict[str, Any]) -> Any:
    """A value as an endpoint's schema has it."""
    if "enum" in schema:
        return schema["enum"][-1]
    if schema["type"] == "object":
        return {name: _value(each) for name, each in schema["properties"].items()}
    if schema["type"] == "array":
        return [schema["items"]["enum"][0]]
    return {"boolean": True, "number": 1.0, "string": "", "integer": NUMBER_OF_ALL}[schema["type"]]


def _policy_body(row: Endpoint) -> bytes:
    """The value of a policy, in as many bytes as it may have."""
    if row.content is None:
        return b""
    (schema,) = row.content.schemas.values()
    segment = row.path.rpartition("/")[2]
    value = VALUES[segment] if segment in VALUES else _value(schema)
    body = json.dumps(value).encode()
    room = POLICY_BODY_BYTES_MAX - len(body)
    if isinstance(value, dict):
        # Objects in lists: the most work for a reader of JSON, for the bytes that there may be.
        return body[:-1] + b',"unknown":[' + b"{}," * ((room - 20) // 3) + b"1]}"
    return b" " * room + body


def _policy_path(row: Endpoint) -> str:
    tenant, namespace = POLICIES.split("/")
    names = {"domain": "persistent", "tenant": tenant, "namespace": namespace, "topic": NAME}
    path = row.path.format(**names, subName=NAME) + "?applied=true&isGlobal=true"
    own = [each.name for each in row.query if each.name not in ("isGlobal", "backlogQuotaType")]
    if row.method == "POST":
        path += "".join(f"&{name}={NUMBER_OF_ALL}" for name in own)
    return path


def _policies() -> list[Endpoint]:
    files = ("namespace_policies", "topic_policies", "namespace_offload", "topic_offload")
    return [row for name in files for row in load(name) if not row.path.endswith("/offload")]


def _settings() -> dict[str, Request]:
    """For each path, the request that sets its policy."""
    rows = [row for row in _policies() if row.method in ("POST", "PUT")]
    return {row.path: request(row.method, _policy_path(row), _policy_body(row)) for row in rows}


SETTINGS = _settings()
NONE_TO_SET = "entryFilters"


def every_policy(stage: Stage, numbers: range) -> None:
    """A namespace and a topic of which all policies are set."""
    stage.namespace(POLICIES)
    stage.once("topic with policies", lambda: _set_all(stage))


def _set_all(stage: Stage) -> None:
    stage.ask([http("PUT", f"/admin/v2/persistent/{POLICIES}/{NAME}")], allowed=(409,))
    can_be = (each for path, each in SETTINGS.items() if not path.endswith(NONE_TO_SET))
    stage.ask(each.make(stage, 0) for each in can_be)


def _policy_is_set(path: str) -> Prepare:
    """All are, and this one is again, which the last row may have removed."""
    set_by = {"backlogQuotaMap": "backlogQuota", "removeOffloadPolicies": "offloadPolicies"}
    *above, segment = path.split("/")
    setting = SETTINGS["/".join([*above, set_by.get(segment, segment)])]
    return scenes.both(
        every_policy, lambda stage, numbers: stage.ask([setting.make(stage, 0)]) and None
    )


def policy_request(row: Endpoint) -> Request:
    """A request for a policy that is set: names and body as long as they may be."""
    is_none = row.path.endswith(NONE_TO_SET)
    if row.method in ("POST", "PUT"):
        setting = SETTINGS[row.path]._replace(prepare=every_policy)
        return setting._replace(answers=(400,)) if is_none else setting
    scene = every_policy if is_none else _policy_is_set(row.path)
    answers = (200, 204) if is_none else ()
    return request(row.method, _policy_path(row), scene=scene, answers=answers)


ENDPOINTS |= {f"{row.method} {row.path}": policy_request(row) for row in _policies()}

# --- isolation and affinity -----------------------------------------------------------------------

# As many expressions as there may be, as long as they may be, that match as slowly as they may.
SLOW = b'["' + b'","'.join([(b"(a.*)+" * 42)] * 100) + b'"]'
ISOLATION = (
    b'{"namespaces":' + SLOW + b',"primary":' + SLOW + b',"secondary":[],'
    b'"auto_failover_policy":{"policy_type":"min_available",'
    b'"parameters":{"min_limit":"1","usage_threshold":"80"}}}'
)
ISOLATIONS = CLUSTER + "/namespaceIsolationPolicies"
ISOLATION_ROW = "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies"
ISOLATION_NAME = "p" * 256
ANY_GROUP = b'"' + b"g" * 1_022 + b'"'
AFFINITY = b'{"bookkeeperAffinityGroupPrimary":"p","unknown":[' + b"{}," * 5_000 + b"1]}"

is_isolated = scenes.there("POST", f"{ISOLATIONS}/{ISOLATION_NAME}", ISOLATION)
has_affinity = scenes.both(
    scenes.crowd, scenes.there("POST", NS + "/persistence/bookieAffinity", AFFINITY)
)
is_averse = scenes.both(scenes.crowd, scenes.there("POST", NS + "/antiAffinity", ANY_GROUP))

ENDPOINTS |= {
    f"GET {ISOLATION_ROW}": request("GET", ISOLATIONS, scene=is_isolated),
    f"GET {ISOLATION_ROW}/brokers": request("GET", ISOLATIONS + "/brokers", scene=is_isolated),
    f"GET {ISOLATION_ROW}/brokers/{{broker}}": request(
        "GET", f"{ISOLATIONS}/brokers/{{broker}}", scene=is_isolated
    ),
    f"GET {ISOLATION_ROW}/{{policyName}}": request(
        "GET", f"{ISOLATIONS}/{ISOLATION_NAME}", scene=is_isolated
    ),
    f"POST {ISOLATION_ROW}/{{policyName}}": request(
        "POST", f"{ISOLATIONS}/{ISOLATION_NAME}", ISOLATION
    ),
    f"DELETE {ISOLATION_ROW}/{{policyName}}": request(
        "DELETE", f"{ISOLATIONS}/{ISOLATION_NAME}", scene=is_isolated
    ),
    "GET /admin/v2/namespaces/{cluster}/antiAffinity/{group}": request(
        "GET",
        f"/admin/v2/namespaces/standalone/antiAffinity/{'g' * 1_022}?tenant=public",
        is_dear=True,
        scene=is_averse,
    ),
    f"GET {ROW}/antiAffinity": request("GET", NS + "/antiAffinity", scene=is_averse),
    f"POST {ROW}/antiAffinity": request(
        "POST", NS + "/antiAffinity", ANY_GROUP, scene=scenes.crowd
    ),
    f"DELETE {ROW}/antiAffinity": request("DELETE", NS + "/antiAffinity", scene=is_averse),
    f"GET {ROW}/persistence/bookieAffinity": request(
        "GET", NS + "/persistence/bookieAffinity", scene=has_affinity
    ),
    f"POST {ROW}/persistence/bookieAffinity": request(
        "POST", NS + "/persistence/bookieAffinity", AFFINITY, scene=scenes.crowd
    ),
    f"DELETE {ROW}/persistence/bookieAffinity": request(
        "DELETE", NS + "/persistence/bookieAffinity", scene=has_affinity
    ),
}


# What is called otherwise there, and what is not there at all.
APACHE_ENDPOINTS: dict[str, Request | None] = {
    "GET /metrics": request("GET", "/metrics/", head="Accept-Encoding: gzip\r\n"),
    "GET /openapi.json": None,
}


def endpoints_of(kind: str) -> dict[str, Request | None]:
    """The endpoints of a kind of broker; None for those that only pyxbroker has."""
    return ENDPOINTS | (APACHE_ENDPOINTS if kind == "apache" else {})
