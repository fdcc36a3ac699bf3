"""What is asked: cases of each endpoint that Pulsar has, from the table of these."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from compat_tests.policy_cases import CASES
from pyxbroker.admin.pulsar_endpoints import endpoints

# Whole parts that a broker here does not have, what ends a broker, and what is no JSON.
LEFT_OUT = re.compile(
    r"^/admin/v3/|/functions|/worker|^/metrics$|^/status\.html$|/proxy-stats/|^/ws/"
    r"|/brokers/shutdown$|^/topics/"
)
DOMAINS = ("persistent", "non-persistent")
BUNDLE = "0x00000000_0xffffffff"

# What stands for a parameter of a path in a scene, where that is there.
GOOD = {
    "tenant": "T",
    "namespace": "ns",
    "topic": "topic",
    "subscription": "sub",
    "subName": "sub",
    "cluster": "C",
    "domainName": "C-domain",
    "policyName": "C-policy",
    "broker": "BROKER",
    "brokerId": "BROKER",
    "bundle": BUNDLE,
    "group": "group",
    "resourcegroup": "T-resources",
    "role": "role",
    "key": "key",
    "value": "1000",
    "name": "maxTenants",
    "bookie": "127.0.0.1:3181",
    "allocator": "default",
    "version": "0",
    "timestamp": "0",
    "seconds": "1",
    "numMessages": "1",
    "position": "1",
    "messagePosition": "1",
    "ledgerId": "LEDGER",
    "entryId": "0",
}
# What stands there for something that there is not; one parameter at a time.
MISSING = {
    "tenant": "no-tenant",
    "namespace": "no-namespace",
    "topic": "no-topic",
    "subscription": "no-sub",
    "subName": "no-sub",
    "cluster": "no-cluster",
    "domainName": "no-domain",
    "policyName": "no-policy",
    "broker": "no-broker:1",
    "brokerId": "no-broker:1",
    "resourcegroup": "no-resources",
    "role": "no-role",
    "key": "no-key",
    "name": "noSuchSetting",
    "bookie": "no-bookie:1",
    "allocator": "no-allocator",
    "version": "77",
    "ledgerId": "999999",
    "entryId": "999999",
    "bundle": "0x00000000_0x10000000",
}
# What no name of the kind can be.
BAD = {
    "tenant": "bad%24tenant%3A",
    "namespace": "bad%24namespace%3A",
    "cluster": "bad%24cluster%3A",
    "bundle": "not-a-bundle",
    "version": "x",
    "timestamp": "x",
    "seconds": "x",
    "numMessages": "x",
    "position": "x",
    "ledgerId": "x",
    "entryId": "x",
}

RATE = {
    "dispatchThrottlingRateInMsg": 5,
    "dispatchThrottlingRateInByte": 6,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}
ISOLATION = {
    "namespaces": ["T/ns"],
    "primary": ["a.*"],
    "secondary": ["b.*"],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "80"},
    },
}
QUOTA = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 1.0,
    "bandwidthOut": 2.0,
    "memory": 80.0,
    "dynamic": False,
}
SCHEMA = {"type": "STRING", "schema": "", "properties": {}}
FILTERS: dict[str, Any] = {"entryFilterNames": "a"}
CLUSTER = {"serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": "pulsar://127.0.0.1:1"}
TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
ONE_SCHEMA = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
ONE_CLUSTER = "/admin/v2/clusters/{cluster}"
FIRST = {"ledgerId": -1, "entryId": -1}

# The bodies that PUT and POST need, but for those of policies (policy_cases.py has them).
BODIES: dict[str, Any] = {
    f"PUT {ONE_CLUSTER}": CLUSTER,
    f"POST {ONE_CLUSTER}": CLUSTER,
    f"POST {ONE_CLUSTER}/failureDomains/{{domainName}}": {"brokers": ["b1"]},
    f"POST {ONE_CLUSTER}/namespaceIsolationPolicies/{{policyName}}": ISOLATION,
    f"POST {ONE_CLUSTER}/migrate": CLUSTER,
    f"POST {ONE_CLUSTER}/peers": [],
    "PUT /admin/v2/tenants/{tenant}": {"adminRoles": ["a"], "allowedClusters": ["standalone"]},
    "POST /admin/v2/tenants/{tenant}": {"adminRoles": ["a"], "allowedClusters": ["standalone"]},
    "POST /admin/v2/namespaces/grantPermissionsOnTopics": [
        {"topic": "persistent://T/ns/topic", "role": "role", "actions": ["produce"]}
    ],
    "POST /admin/v2/namespaces/revokePermissionsOnTopics": [
        {"topic": "persistent://T/ns/topic", "role": "role"}
    ],
    f"PUT {NAMESPACE}": {"bundles": {"numBundles": 1}},
    f"POST {NAMESPACE}/allowedClusters": ["standalone"],
    f"POST {NAMESPACE}/allowedTopicPropertyKeysForMetrics": ["a"],
    f"POST {NAMESPACE}/antiAffinity": "group",
    f"POST {NAMESPACE}/entryFilters": FILTERS,
    f"POST {NAMESPACE}/migration": False,
    f"PUT {NAMESPACE}/offloadDeletionLagMs": 1,
    f"POST {NAMESPACE}/offloadPolicies": {
        "managedLedgerOffloadDriver": "filesystem",
        "fileSystemURI": "x",
        "fileSystemProfilePath": "x",
    },
    f"PUT {NAMESPACE}/offloadThreshold": 1,
    f"PUT {NAMESPACE}/offloadThresholdInSeconds": 1,
    f"POST {NAMESPACE}/permissions/subscription/{{subscription}}": ["role"],
    f"POST {NAMESPACE}/permissions/{{role}}": ["produce"],
    f"POST {NAMESPACE}/persistence/bookieAffinity": {
        "bookkeeperAffinityGroupPrimary": "a",
        "bookkeeperAffinityGroupSecondary": "b",
    },
    f"PUT {NAMESPACE}/properties": {"a": "b"},
    f"POST {NAMESPACE}/replication": ["standalone"],
    f"POST {NAMESPACE}/isAllowAutoUpdateSchema": True,
    f"PUT {NAMESPACE}/schemaAutoUpdateCompatibilityStrategy": "Full",
    f"PUT {NAMESPACE}/schemaCompatibilityStrategy": "FULL",
    f"POST {NAMESPACE}/schemaValidationEnforced": True,
    f"POST {NAMESPACE}/subscriptionAuthMode": "None",
    f"PUT {NAMESPACE}/{{bundle}}/split": None,
    f"PUT {TOPIC}/backlogSize": FIRST,
    f"POST {TOPIC}/entryFilters": FILTERS,
    f"PUT {TOPIC}/offload": FIRST,
    f"POST {TOPIC}/offloadPolicies": {"managedLedgerOffloadDriver": "filesystem"},
    f"PUT {TOPIC}/partitions": 2,
    f"POST {TOPIC}/partitions": 3,
    f"POST {TOPIC}/permissions/{{role}}": ["produce"],
    f"PUT {TOPIC}/properties": {"a": "b"},
    f"POST {TOPIC}/replication": ["standalone"],
    f"PUT {TOPIC}/schemaCompatibilityStrategy": "FULL",
    f"POST {TOPIC}/schemaValidationEnforced": True,
    f"PUT {TOPIC}/shadowTopics": ["persistent://T/ns/shadow"],
    f"PUT {TOPIC}/subscription/{{subName}}": {"ledgerId": -1, "entryId": -1, "properties": {}},
    f"POST {TOPIC}/subscription/{{subName}}/analyzeBacklog": FIRST,
    f"POST {TOPIC}/subscription/{{subName}}/expireMessages": {"ledgerId": 0, "entryId": 0},
    f"PUT {TOPIC}/subscription/{{subName}}/properties": {"a": "b"},
    f"POST {TOPIC}/subscription/{{subName}}/replicatedSubscriptionStatus": True,
    f"POST {TOPIC}/subscription/{{subName}}/resetcursor": FIRST,
    f"POST {TOPIC}/trim": None,
    f"POST {TOPIC}/{{subName}}/dispatchRate": RATE,
    f"POST {ONE_SCHEMA}/compatibility": SCHEMA,
    f"POST {ONE_SCHEMA}/schema": SCHEMA,
    f"POST {ONE_SCHEMA}/version": SCHEMA,
    "POST /admin/v2/bookies/racks-info/{bookie}": {"rack": "r", "hostname": "h"},
    "POST /admin/v2/resource-quotas": QUOTA,
    "POST /admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}": QUOTA,
    "PUT /admin/v2/resourcegroups/{resourcegroup}": {"publishRateInMsgs": 1},
}
for _case in CASES:
    if _case.namespace and not _case.quota_type:
        BODIES.setdefault(f"{_case.method} {NAMESPACE}/{_case.namespace}", _case.value)
    if _case.topic and not _case.quota_type:
        BODIES.setdefault(f"POST {TOPIC}/{_case.topic}", _case.value)
    if _case.quota_type == "destination_storage":
        BODIES[f"POST {NAMESPACE}/backlogQuota"] = _case.value
        BODIES[f"POST {TOPIC}/backlogQuota"] = _case.value
# Fields of the query that an endpoint needs to do anything good.
QUERIES = {
    f"GET {TOPIC}/examinemessage": "initialPosition=earliest&messagePosition=1",
    f"GET {TOPIC}/getMessageIdByIndex": "index=0",
    f"DELETE {TOPIC}/properties": "key=a",
    f"POST {TOPIC}/messageTTL": "messageTTL=7",
    f"POST {TOPIC}/subscriptionExpirationTime": "subscriptionExpirationTime=7",
    f"GET {NAMESPACE}/{{bundle}}/topicHashPositions": "topics=topic",
    "POST /admin/v2/bookies/racks-info/{bookie}": "group=default",
    "POST /admin/v2/metadata/migration/start": "target=x",
}
# What is made, which is not there before.
CREATED = {
    f"PUT {ONE_CLUSTER}": ("cluster", "C-new"),
    "PUT /admin/v2/tenants/{tenant}": ("tenant", "T-new"),
    f"PUT {NAMESPACE}": ("namespace", "new"),
    f"PUT {TOPIC}": ("topic", "new"),
    f"PUT {TOPIC}/partitions": ("topic", "new"),
    f"PUT {TOPIC}/subscription/{{subName}}": ("subName", "new"),
}
# Endpoints whose topic must be partitioned.
OF_PARTITIONS = re.compile(
    r"/partitions$|/partitioned-stats$|/partitioned-internalStats$|/createMissedPartitions$"
)


class Case(NamedTuple):
    """One request."""

    row: str  # method and path of the endpoint, in words of the table, with its domain
    kind: str
    method: str
    path: str  # with names of a scene: T, C, BROKER, LEDGER stand for these
    body: bytes | None = None
    media: str | None = None
    group: str = ""

    @property
    def name(self) -> str:
        return f"{self.row} | {self.kind}"


def cases() -> Iterator[Case]:
    """All of them, in the order of the table."""
    served: dict[str, set[str]] = {}
    rows = []
    for endpoint in endpoints():
        if LEFT_OUT.search(endpoint.path):
            continue
        served.setdefault(endpoint.path, set()).add(endpoint.method)
        domains = DOMAINS if "{domain}" in endpoint.path else ("",)
        if endpoint.group == "non-persistent topics":
            domains = ("non-persistent",)
        rows += [(endpoint, domain) for domain in domains]
    unserved: set[tuple[str, str]] = set()
    for endpoint, domain in rows:
        yield from _of_row(endpoint.group, endpoint.method, endpoint.path, domain)
        if (endpoint.path, domain) not in unserved:
            unserved.add((endpoint.path, domain))
            path = _path(endpoint.path, domain, GOOD)
            for method in ("PATCH", *sorted({"PUT", "POST", "DELETE"} - served[endpoint.path])[:1]):
                row = f"{method} {endpoint.path.replace('{domain}', domain)}"
                yield Case(row, "wrong method", method, path, group=endpoint.group)


def _of_row(group: str, method: str, template: str, domain: str) -> Iterator[Case]:
    row = f"{method} {template}"
    shown = row.replace("{domain}", domain)
    query = QUERIES.get(row, "")
    body = BODIES.get(row)
    names = dict(GOOD)
    if OF_PARTITIONS.search(template):
        names["topic"] = "partitioned"
    there = names
    if row in CREATED:
        name, value = CREATED[row]
        names = names | {name: value}

    def case(kind: str, names: dict[str, str], sent: object = body, media: str = "") -> Case:
        path = _path(template, domain, names) + (query and f"?{query}")
        data = sent if isinstance(sent, bytes) else None if sent is None else _json(sent)
        json_media = "application/json" if data is not None else None
        return Case(shown, kind, method, path, data, media or json_media, group)

    yield case("good", names)
    if row in CREATED:
        yield case("again", there)
    parameters = [each for each in re.findall(r"\{(\w+)\}", template) if each != "domain"]
    for each in parameters:
        if each in MISSING and not (row in CREATED and CREATED[row][0] == each):
            yield case(f"no {each}", names | {each: MISSING[each]})
        if each in BAD:
            yield case(f"bad {each}", names | {each: BAD[each]})
    if template.startswith(TOPIC + "/") and "topic" in parameters:
        other = "topic" if OF_PARTITIONS.search(template) else "partitioned"
        yield case(f"of {other}", names | {"topic": other})
    if query:
        path = _path(template, domain, names)
        data = None if body is None else _json(body)
        media = None if body is None else "application/json"
        yield Case(shown, "no query", method, path, data, media, group)
    if method in ("PUT", "POST"):
        if body is not None:
            yield case("no body", names, None)
            other = b'{"a":1}' if isinstance(body, list) else b'[{"a":[]}]'
            yield case("wrong type", names, other)
        yield case("no JSON", names, b"{nope", "application/json")
        yield case("text", names, b"1", "text/plain")
        if body is not None:
            for each in ("tenant", "namespace", "topic", "cluster"):
                if each in parameters and not (row in CREATED and CREATED[row][0] == each):
                    yield case(f"no {each}, no body", names | {each: MISSING[each]}, None)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _path(template: str, domain: str, names: dict[str, str]) -> str:
    template = template.replace("{domain}", domain)
    return re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], "1"), template)
