"""Who has which right: the whole of what is asked, and what clients and REST make of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from harness.tokens import settings, token

from fake_service import FakeService
from one_bookie import until
from one_broker import TOPIC, Broker, Client, run
from pyxbroker.admin.app import Application
from pyxbroker.admin.endpoints import every_endpoint
from pyxbroker.admin.not_built import refused
from pyxbroker.admin.request import Request
from pyxbroker.auth import authorization
from pyxbroker.auth.authentication import Authentication
from pyxbroker.auth.authorization import (
    CONSUME,
    CONSUME_TOPIC,
    PRODUCE,
    SUPERUSER,
    TENANT_ADMIN,
    BrokerId,
    ClusterName,
    Right,
    Scope,
    authorize,
)
from pyxbroker.auth.permissions import (
    OF_TENANT_RECORD,
    Permissions,
    check_settings,
    refusal_of,
)
from pyxbroker.auth.principal import Principal
from pyxbroker.base.errors import AuthorizationError, MetadataStoreError
from pyxbroker.base.properties import ConfigError
from pyxbroker.base.topic_name import NamespaceName, TenantName, TopicName
from pyxbroker.broker.commands.command import no_resource
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import Unavailable
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.roles.early_parts import authentication_of
from pyxbroker.settings.config import Config
from pyxbroker.web.endpoint import Endpoint
from pyxbroker.web.request import Body
from pyxbroker.web.response import Response
from test_logins import connect, let_in
from test_metadata_away import refuse

TENANT, NAMESPACE = TenantName("public"), NamespaceName("public", "default")
T = TopicName.get(TOPIC)
OWN = "persistent://public/default/__change_events"
ON: dict[str, Any] = settings(
    authorizationEnabled=True, superUserRoles="root, other-root", proxyRoles="proxy,proxy2"
)
GRANTS = {
    "namespace_auth": {"np": ["produce"], "nc": ["consume"], "nf": ["functions"]},
    "destination_auth": {TOPIC: {"tp": ["produce"], "tc": ["consume"]}},
}
ROLES = ("root", "admin", "np", "nc", "nf", "tp", "tc", "nobody", "roo", "", None)
EVERY_RIGHT = sorted(
    {each for each in vars(authorization).values() if isinstance(each, Right)}
    | {each.right for each in (*(row for _, row in every_endpoint()), *refused())},
    key=str,
)


class Records:
    """Metadata of one tenant with one namespace."""

    def __init__(self, namespace: Any = None, tenant: Any = None) -> None:
        self.of_namespace = {"auth_policies": GRANTS} if namespace is None else namespace
        self.of_tenant = {"adminRoles": ["admin"]} if tenant is None else tenant

    async def tenant(self, name: str) -> Any:
        return self.of_tenant if name == "public" else None

    async def namespace(self, name: str) -> Any:
        return self.of_namespace if name == "public/default" else None


def may(
    role: str | Principal | None,
    right: Right,
    resource: Any = T,
    subscription: str = "",
    records: Records | None = None,
    **more: Any,
) -> bool:
    principal = role if isinstance(role, Principal) else Principal(role)
    permissions = Permissions(Config(**ON | more), records or Records())
    try:
        asyncio.run(authorize(permissions, principal, right, resource, subscription))
    except AuthorizationError as error:
        assert error.http_status in (401, 403, 404) and str(error)
        return False
    return True


def resources_of(right: Right) -> list[Any]:
    everything = (None, BrokerId("host:8080"), ClusterName("c"), TENANT, NAMESPACE, T)
    return [each for each in everything if isinstance(each, authorization._RESOURCES[right.scope])]


def expected(role: str | None, right: Right, resource: Any) -> bool:
    """What the rows of the table say, in words of the test's own."""
    if right.scope in (Scope.OPEN, Scope.AUTHENTICATED) or role == "root":
        return True
    if role == "admin":
        return resource is not None and TENANT_ADMIN in right.holders
    if not isinstance(resource, NamespaceName | TopicName):
        return False
    wanted = {"np": PRODUCE, "nc": CONSUME}.get(role or "")
    if wanted is not None:
        return wanted in right.holders
    wanted = {"tp": PRODUCE, "tc": CONSUME}.get(role or "")
    return wanted in right.holders and right.scope is Scope.TOPIC


@pytest.mark.parametrize("right", EVERY_RIGHT, ids=str)
def test_each_role_has_the_rights_that_it_was_given(right: Right) -> None:
    for resource in resources_of(right):
        for role in ROLES:
            assert may(role, right, resource) == expected(role, right, resource), (role, resource)


def test_each_right_says_who_has_it() -> None:
    for right in EVERY_RIGHT:
        if right.scope not in (Scope.OPEN, Scope.AUTHENTICATED):
            assert set(right.holders) <= {SUPERUSER, TENANT_ADMIN, PRODUCE, CONSUME}
            assert right.holders


@pytest.mark.parametrize(
    ("right", "resource", "refused"),
    [
        (
            authorization.HEALTH_CHECK,
            BrokerId("host:8080"),
            "BrokerOperation for originalPrincipal [null] and clientAppId [np] about operation"
            " [HEALTH_CHECK] on broker [host:8080]",
        ),
        (
            authorization.GET_CLUSTER,
            ClusterName("c"),
            "ClusterOperation for originalPrincipal [null] and clientAppId [np] about operation"
            " [GET_CLUSTER] on cluster [c]",
        ),
        (
            authorization.WRITE_ISOLATION_POLICIES,
            ClusterName("c"),
            "ClusterPolicyOperation for originalPrincipal [null] and clientAppId [np] about"
            " operation [WRITE] on cluster [c]",
        ),
    ],
)
def test_a_refusal_says_on_which_broker_or_cluster(
    right: Right, resource: BrokerId | ClusterName, refused: str
) -> None:
    told = str(refusal_of(Principal("np"), right, resource))
    assert told == f"Unauthorized to validateBothSuperuserAnd{refused}"


def test_elsewhere_a_role_has_no_right() -> None:
    for name in ("persistent://public/other/t", "persistent://private/default/t"):
        topic = TopicName.get(name)
        assert may("root", authorization.LOOKUP, topic)
        assert may("admin", authorization.LOOKUP, topic) == (topic.tenant == "public")
        for role in ("np", "nc", "tp", "tc"):
            assert not may(role, authorization.LOOKUP, topic)
    assert not may("tp", authorization.LOOKUP, TopicName.get(TOPIC + "x"))
    other_domain = TopicName.get("non-persistent://public/default/t")
    assert not may("tp", authorization.LOOKUP, other_domain)


@pytest.mark.parametrize("right", EVERY_RIGHT, ids=str)
def test_a_tenant_that_does_not_exist_is_told_before_the_right(right: Right) -> None:
    """Except to superusers, who have every right, and by what is about the tenant's own record."""
    permissions = Permissions(Config(**ON), Records())
    elsewhere = (
        TenantName("none"),
        NamespaceName("none", "ns"),
        TopicName.get("persistent://none/ns/t"),
    )
    is_told = TENANT_ADMIN in right.holders and right not in OF_TENANT_RECORD
    for resource in elsewhere:
        if right.scope is authorization.Scope.AUTHENTICATED or not isinstance(
            resource, authorization._RESOURCES[right.scope]
        ):
            continue
        assert may("root", right, resource)
        for role in ("admin", "np", "nobody"):
            with pytest.raises(AuthorizationError) as refused:
                asyncio.run(authorize(permissions, Principal(role), right, resource))
            assert (refused.value.http_status == 404) == is_told
            assert (str(refused.value) == "Tenant does not exist") == is_told


def test_the_brokers_own_topics_are_for_administrators() -> None:
    """Who may produce in a namespace could set policies of its topics otherwise."""
    for local_name in ("__change_events", "__change_events-partition-0"):
        topic = TopicName.get(f"persistent://public/default/{local_name}")
        grants = {"namespace_auth": {"x": ["produce", "consume"]}}
        grants["destination_auth"] = {str(topic): grants["namespace_auth"]}
        records = Records({"auth_policies": grants})
        for right in (authorization.PRODUCE_TO_TOPIC, CONSUME_TOPIC, authorization.LOOKUP):
            assert may("admin", right, topic, "", records)
            assert not may("x", right, topic, "", records)


def test_a_partition_has_the_grants_of_its_topic_and_its_own() -> None:
    one, two = TopicName.get(f"{TOPIC}-partition-1"), TopicName.get(f"{TOPIC}-partition-2")
    grants = {"destination_auth": {TOPIC: {"all": ["consume"]}, str(one): {"one": ["consume"]}}}
    records = Records({"auth_policies": grants})
    found = {
        (role, str(topic))
        for role in ("all", "one")
        for topic in (T, one, two)
        if may(role, CONSUME_TOPIC, topic, records=records)
    }
    assert found == {("all", str(each)) for each in (T, one, two)} | {("one", str(one))}


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [("app*", {"app", "app-1"}), ("*-1", {"app-1", "x-1"}), ("*", {"app", "app-1", "x-1"})],
)
def test_roles_in_grants_may_be_patterns_where_that_is_allowed(
    pattern: str, matched: set[str]
) -> None:
    for grants in (
        {"namespace_auth": {pattern: ["produce"]}},
        {"destination_auth": {TOPIC: {pattern: ["produce"]}}},
    ):
        records = Records({"auth_policies": grants}, {"adminRoles": ["*"]})
        for role in ("app", "app-1", "x-1"):
            right = authorization.PRODUCE_TO_TOPIC
            allowed = {"authorizationAllowWildcardsMatching": True, "superUserRoles": "*"}
            assert may(role, right, records=records, **allowed) == (role in matched)
            assert not may(role, right, records=records)
            assert not may(role, CONSUME_TOPIC, records=records, **allowed)


def test_a_pattern_in_the_grants_of_a_partitioned_topic_is_not_for_its_partitions() -> None:
    part = TopicName.get(f"{TOPIC}-partition-1")
    allowed: Any = {"authorizationAllowWildcardsMatching": True}
    for granted, expected in (
        ({"destination_auth": {TOPIC: {"app*": ["consume"]}}}, (True, False)),
        ({"destination_auth": {TOPIC: {"app-1": ["consume"]}}}, (True, True)),
        ({"destination_auth": {str(part): {"app*": ["consume"]}}}, (False, True)),
        ({"namespace_auth": {"app*": ["consume"]}}, (True, True)),
    ):
        records = Records({"auth_policies": granted})
        found = [may("app-1", CONSUME_TOPIC, each, "", records, **allowed) for each in (T, part)]
        assert tuple(found) == expected


# --- subscriptions ----------------------------------------------------------------------------


def test_a_subscription_may_be_for_some_roles_alone() -> None:
    grants = GRANTS | {"subscription_auth_roles": {"s": ["tc"], "empty": []}}
    records = Records({"auth_policies": grants})

    def who(subscription: str, right: Right = CONSUME_TOPIC) -> set[str | None]:
        return {each for each in ROLES if may(each, right, T, subscription, records)}

    assert who("s") == {"root", "admin", "tc"}
    assert who("empty") == who("other") == who("") == {"root", "admin", "nc", "tc"}
    assert who("s", authorization.SKIP) == who("s")
    # To look a topic up, or at its figures, is about none.
    assert who("s", authorization.GET_STATS) == {"root", "admin", "np", "nc", "tp", "tc"}


def test_a_role_of_a_subscription_still_has_to_have_the_right_to_consume() -> None:
    grants = GRANTS | {"subscription_auth_roles": {"s": ["tp", "nobody"]}}
    records = Records({"auth_policies": grants})
    assert not may("tp", CONSUME_TOPIC, T, "s", records)
    assert not may("nobody", CONSUME_TOPIC, T, "s", records)


def test_a_subscription_of_some_roles_is_for_them_in_the_whole_namespace() -> None:
    grants = {
        "namespace_auth": {"nc": ["consume"], "other": ["consume"]},
        "subscription_auth_roles": {"s": ["nc"]},
    }
    records = Records({"auth_policies": grants})
    for right in (authorization.CLEAR_BACKLOG, authorization.UNSUBSCRIBE_NAMESPACE):
        for subscription, expected in (("s", False), ("t", True), ("", True)):
            assert may("nc", right, NAMESPACE, subscription, records)
            assert may("other", right, NAMESPACE, subscription, records) == expected
            for role in ("root", "admin"):
                assert may(role, right, NAMESPACE, subscription, records)


def test_a_subscription_has_to_be_called_after_its_role_in_the_whole_namespace() -> None:
    records = Records({"auth_policies": GRANTS, "subscription_auth_mode": "Prefix"})
    permissions = Permissions(Config(**ON), records)
    for right in (authorization.CLEAR_BACKLOG, authorization.UNSUBSCRIBE_NAMESPACE):
        assert may("nc", right, NAMESPACE, "nc-1", records)
        assert may("nc", right, NAMESPACE, "", records)
        for role in ("root", "admin"):
            assert may(role, right, NAMESPACE, "s", records)
        with pytest.raises(AuthorizationError, match="like nc-xxxx for namespace: public/default"):
            asyncio.run(authorize(permissions, Principal("nc"), right, NAMESPACE, "s"))


def test_a_subscription_may_have_to_be_called_after_its_role() -> None:
    records = Records({"auth_policies": GRANTS, "subscription_auth_mode": "Prefix"})
    for role in ("root", "admin"):
        assert may(role, CONSUME_TOPIC, T, "s", records)
    assert may("tc", CONSUME_TOPIC, T, "tc-1", records)
    permissions = Permissions(Config(**ON), records)
    with pytest.raises(AuthorizationError, match=r"needs to be prefixed .* like tc-xxxx for topic"):
        asyncio.run(authorize(permissions, Principal("tc"), CONSUME_TOPIC, T, "s"))
    other = Records({"auth_policies": GRANTS, "subscription_auth_mode": "None"})
    assert may("tc", CONSUME_TOPIC, T, "s", other)


@pytest.mark.parametrize("subscription", ["__compaction", "pulsar.dedup", "pulsar.repl.other"])
def test_the_brokers_own_subscriptions_are_for_administrators(subscription: str) -> None:
    """What was compacted goes with that of compaction."""
    grants = GRANTS | {"subscription_auth_roles": {subscription: ["nc", "tc"]}}
    for records in (Records(), Records({"auth_policies": grants})):
        for right in EVERY_RIGHT:
            if CONSUME not in right.holders or PRODUCE in right.holders:
                continue
            for resource in resources_of(right):
                found = {
                    each for each in ROLES if may(each, right, resource, subscription, records)
                }
                assert found == {"root", "admin"}, right


# --- records that others have written ---------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"auth_policies": None},
        {"auth_policies": []},
        {"auth_policies": {"namespace_auth": ["np"], "destination_auth": "tp"}},
        {"auth_policies": {"namespace_auth": {"np": "produce"}}},
        {"auth_policies": {"namespace_auth": {"np": {"produce": True}}}},
        {"auth_policies": {"namespace_auth": {"np": [None, 1, ["produce"]]}}},
        {"auth_policies": {"destination_auth": {TOPIC: ["np"]}}},
        {"auth_policies": {"namespace_auth": {"np": ["PRODUCE", "all"]}}},
    ],
)
def test_what_is_no_grant_grants_nothing(record: Any) -> None:
    for tenant in ({}, {"adminRoles": "np"}, {"adminRoles": {"np": 1}}, {"adminRoles": [["np"]]}):
        assert not may("np", authorization.PRODUCE_TO_TOPIC, T, "", Records(record, tenant))


# --- behind a proxy ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("principal", "fits"),
    [
        (Principal("root"), True),
        (Principal("root", "root"), True),
        (Principal("root", "np"), False),
        (Principal("nobody", "root"), False),
        (Principal("proxy"), False),
        (Principal("proxy", ""), False),
        (Principal("proxy", "proxy"), False),
        (Principal("proxy", "proxy2"), False),
        (Principal("proxy", "root"), True),
        (Principal("proxy", "np"), False),  # it has no right by itself
        (Principal("proxy2", "root"), False),
        (Principal(None, "root"), False),
    ],
)
def test_both_a_proxy_and_who_is_behind_it_need_the_right(principal: Principal, fits: bool) -> None:
    records = Records({"auth_policies": {"namespace_auth": {"proxy": ["consume"]}}})
    assert may(principal, CONSUME_TOPIC, T, "", records) == fits


def test_roles_that_do_not_go_together_are_not_connected(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        web_socket = "__websocket_dummy_original_principle"
        for role, original, version, told in (
            ("np", None, "", None),
            ("np", web_socket, "", None),
            ("proxy", "np", "4.2", None),
            ("proxy", None, "", "Invalid roles."),
            ("proxy", web_socket, "", "Invalid roles."),
            ("proxy", "proxy2", "", "Invalid roles."),
            ("np", "np", "", "Invalid roles."),
            ("np", "root", "", "Invalid roles."),
            (
                *("np", None, "4.2"),
                "Must not set proxyVersion without connecting as a ProxyRole.",
            ),
        ):
            client = Client(broker)
            client.send(connect(token(role), original_principal=original, proxy_version=version))
            if told is None:
                await client.receive("connected")
                continue
            error = await client.receive("error")
            assert (error.error, error.message) == (pb.AuthorizationError, told)
            await client.closed()

    serve(tmp_path, scenario)


# --- the wire ---------------------------------------------------------------------------------


def serve(directory: Path, scenario: Any, grants: Any = GRANTS, **more: Any) -> None:
    async def main(broker: Broker) -> None:
        broker.service.authentication = Authentication(broker.config)
        store = broker.node.store
        await store.put(paths.tenant("public"), json.dumps({"adminRoles": ["admin"]}).encode())
        record = json.dumps({"auth_policies": grants, **more}).encode()
        await store.put(paths.namespace_policies("public/default"), record)
        await scenario(broker)

    run(directory, main, **ON)


COMMANDS: list[tuple[Any, str, set[str], str]] = [
    (
        pb.CommandLookupTopic(topic=TOPIC),
        "lookupTopicResponse",
        {"root", "admin", "np", "nc", "tp", "tc"},
        "Client is not authorized to Lookup",
    ),
    (
        pb.CommandPartitionedTopicMetadata(topic=TOPIC),
        "partitionMetadataResponse",
        {"root", "admin", "np", "nc", "tp", "tc"},
        "Client is not authorized to Get Partition Metadata",
    ),
    (
        pb.CommandProducer(topic=TOPIC, producer_id=1),
        "producer_success",
        {"root", "admin", "np", "tp"},
        "Client is not authorized to Produce",
    ),
    (
        pb.CommandProducer(topic=TOPIC, producer_id=1, initial_subscription_name="first"),
        "producer_success",
        {"root", "admin"},
        "Client is not authorized to Produce",
    ),
    (
        pb.CommandSubscribe(
            topic=TOPIC, subscription="s", subType=pb.CommandSubscribe.Shared, consumer_id=1
        ),
        "success",
        {"root", "admin", "nc", "tc"},
        "Client is not authorized to subscribe",
    ),
    (
        pb.CommandGetTopicsOfNamespace(namespace="public/default"),
        "getTopicsOfNamespaceResponse",
        {"root", "admin", "np", "nc"},
        "Client is not authorized to GetTopicsOfNamespace",
    ),
    (
        pb.CommandWatchTopicList(namespace="public/default", topics_pattern=".*", watcher_id=1),
        "watchTopicListSuccess",
        {"root", "admin", "np", "nc"},
        "Proxy Client is not authorized to watchTopicList",
    ),
    (
        pb.CommandGetSchema(topic=TOPIC),
        "getSchemaResponse",
        {"root", "admin", "np", "nc", "tp", "tc"},
        "Unauthorized to validateTopicOperation",
    ),
]


def refusal_in(answer: Any) -> tuple[int | None, str]:
    """The code and the text of an answer, in whichever fields it has them."""
    fields = {each.name: value for each, value in answer.ListFields()}
    code = fields.get("error", fields.get("error_code"))
    return code, fields.get("error_message", fields.get("message", ""))


@pytest.mark.parametrize(
    ("command", "field", "allowed", "refusal"), COMMANDS, ids=lambda each: type(each).__name__
)
def test_each_command_is_for_those_alone_who_have_its_right(
    tmp_path: Path, command: Any, field: str, allowed: set[str], refusal: str
) -> None:
    """Who is refused keeps the connection, and nothing is made."""

    async def scenario(broker: Broker) -> None:
        for role in ("nf", "nobody", "root", "admin", "np", "nc", "tp", "tc"):
            client = await let_in(broker, connect(token(role)))
            before = len(broker.topics.registry)
            answer = await client.request(command, field)
            code, text = refusal_in(answer)
            assert (code != pb.AuthorizationError) == (role in allowed), role
            if role not in allowed:
                assert refusal in text
                assert len(broker.topics.registry) == before
            assert not client.connection.closed
            client.far.close()
            await asyncio.sleep(0.01)

    serve(tmp_path, scenario)


def test_each_command_tells_that_a_tenant_does_not_exist(tmp_path: Path) -> None:
    """With the code that Apache Pulsar gives it."""
    missing = "persistent://none/ns/t"
    told = {
        "partitionMetadataResponse": "Tenant or namespace or topic does not exist: none/ns",
        "getSchemaResponse": f"Topic not found or no-schema {missing}",
    }

    async def scenario(broker: Broker) -> None:
        client = await let_in(broker, connect(token("nobody")))
        for command, field, *_ in COMMANDS:
            about = type(command)()
            about.CopyFrom(command)
            if "topic" in command.DESCRIPTOR.fields_by_name:
                about.topic = missing
            else:
                about.namespace = "none/ns"
            code, text = refusal_in(await client.request(about, field))
            if field in told:
                assert (code, text) == (pb.TopicNotFound, told[field])
            else:
                assert (code, text) == (pb.AuthorizationError, "Tenant does not exist"), field

    serve(tmp_path, scenario)


def test_every_command_with_a_right_says_in_its_own_words_who_is_refused(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        for row in broker.handlers._table.values():
            is_schema = "chema" in row.field
            assert bool(row.unauthorized) == (row.resource is not no_resource and not is_schema)

    serve(tmp_path, scenario)


def test_a_grant_counts_at_once_and_so_does_its_end(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await let_in(broker, connect(token("late")))
        asked = pb.CommandProducer(topic=TOPIC, producer_id=1)
        permissions = "/admin/v2/namespaces/public/default/permissions/late"
        assert (await client.request(asked, "producer_success")).error == pb.AuthorizationError
        assert await rest(broker, "POST", permissions, "admin", '["produce"]') == 204
        await client.request(asked, "producer_success")
        client.send(pb.CommandCloseProducer(producer_id=1, request_id=99))
        await client.receive("success")
        assert await rest(broker, "DELETE", permissions, "admin") == 204
        assert (await client.request(asked, "producer_success")).error == pb.AuthorizationError

    serve(tmp_path, scenario)


def test_a_record_that_cannot_be_read_grants_nothing(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await let_in(broker, connect(token("np")))
        await broker.node.store.put(paths.namespace_policies("public/default"), b"[1")
        answer = await client.request(
            pb.CommandProducer(topic=TOPIC, producer_id=1), "producer_success"
        )
        assert answer.error == MetadataStoreError.code

    serve(tmp_path, scenario)


def test_while_metadata_is_not_there_grants_that_were_read_before_stay_good(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await let_in(broker, connect(token("np")))
        assert not hasattr(await client.produce(1), "error")
        refuse(broker.node, "get", Unavailable("it is away"))
        assert not hasattr(await client.produce(2), "error")
        stranger = await let_in(broker, connect(token("nobody")))
        assert (await stranger.produce(1)).error == AuthorizationError.code
        other = await client.produce(3, topic="persistent://public/other/t")
        assert other.error == MetadataStoreError.code

    serve(tmp_path, scenario)


# --- REST -------------------------------------------------------------------------------------


async def rest(
    broker: Broker, method: str, target: str, role: str, body: str = "", **headers: str
) -> int:
    """The status."""
    data = body.encode()
    stream = Body(len(data), lambda: None)
    if data:
        stream.feed(data)
    stream.end()
    head = {"authorization": f"Bearer {token(role)}", **headers}
    if data:
        head["content-type"] = "application/json"
    request = Request(method, target, "", head, stream)
    return (await Application(broker.service, lambda: broker.service).answer(request)).status


LOOKS = {"root", "admin", "np", "nc", "tp", "tc"}
N, P = "/admin/v2/namespaces/public/default", "/admin/v2/persistent/public/default"
NOT_BUILT = [each for each in refused() if each.answer.status == 501 and "{namespace}" in each.path]
BUNDLE = f"{N}/0x00000000_0xffffffff"
ONE_BUNDLE = {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}
EXPIRE_ALL = f"{P}/t/all_subscription/expireMessages/1"


def test_a_superuser_cannot_take_its_own_place_away(tmp_path: Path) -> None:
    path = "/admin/v2/brokers/configuration/superUserRoles"

    async def scenario(broker: Broker) -> None:
        assert await rest(broker, "POST", f"{path}/%20", "root") == 412
        assert await rest(broker, "POST", f"{path}/other", "root") == 412
        assert await rest(broker, "POST", f"{path}/other,root", "root") == 200
        assert await rest(broker, "GET", "/admin/v2/tenants", "root") == 200

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("method", "path", "allowed", "refused"),
    [
        ("GET", "/admin/v2/clusters", set(ROLES), 401),
        ("GET", "/admin/v2/clusters/standalone", {"root"}, 401),
        ("GET", "/admin/v2/tenants", {"root"}, 401),
        ("GET", "/admin/v2/tenants/public", {"root", "admin"}, 401),
        ("GET", "/admin/v2/brokers/configuration/runtime", {"root"}, 401),
        ("GET", "/admin/v2/broker-stats/metrics", {"root"}, 401),
        ("GET", "/admin/v2/namespaces/public", {"root", "admin"}, 401),
        ("GET", N, {"root", "admin"}, 403),
        ("GET", f"{N}/topics", {"root", "admin", "np", "nc"}, 403),
        ("GET", f"{N}/permissions", {"root", "admin"}, 403),
        ("DELETE", f"{N}/permissions/x", {"root", "admin"}, 403),
        ("GET", f"{N}/retention", {"root", "admin"}, 403),
        ("GET", f"{P}/t/stats", {"root", "admin", "np", "nc", "tp", "tc"}, 401),
        ("GET", f"{P}/t/subscriptions", {"root", "admin", "nc", "tc"}, 401),
        ("DELETE", f"{P}/u", {"root", "admin"}, 403),
        (
            "GET",
            "/lookup/v2/topic/persistent/public/default/t",
            set("root admin np tp tc nc".split()),
            401,
        ),
        ("POST", "/admin/v2/namespaces/grantPermissionsOnTopics", {"root"}, 401),
    ],
)
def test_each_resource_is_for_those_alone_who_have_its_right(
    tmp_path: Path, method: str, path: str, allowed: set[str], refused: int
) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topic()
        for role in filter(None, ROLES):
            status = await rest(broker, method, path, role)
            assert (status != refused) == (role in allowed), (role, status)

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/admin/v2/persistent/public/none/t", 404),
        ("PUT", "/admin/v2/persistent/public/none/t/partitions", 404),
        ("GET", "/lookup/v2/topic/persistent/public/none/t", 404),
        ("GET", "/admin/v2/persistent/public/none/t/stats", 401),
        ("GET", "/admin/v2/persistent/none/none/t/stats", 404),
        ("GET", "/admin/v2/namespaces/none/none/retention", 404),
        ("PUT", "/admin/v2/namespaces/none/none", 404),
        ("GET", "/admin/v2/tenants/none", 401),
        ("GET", f"{P}/t/getMessageIdByIndex", 412),
        ("POST", "/admin/v2/non-persistent/public/default/t/terminate", 406),
        ("GET", "/admin/v2/non-persistent/public/default/t/properties", 406),
        ("POST", "/admin/v2/non-persistent/public/default/t/trim", 405),
        ("DELETE", "/admin/v2/non-persistent/public/default/t/truncate", 412),
    ],
)
def test_by_http_a_role_without_rights_is_told_first_what_apache_pulsar_tells_first(
    tmp_path: Path, method: str, path: str, status: int
) -> None:
    async def scenario(broker: Broker) -> None:
        assert await rest(broker, method, path, "nobody") == status

    serve(tmp_path, scenario)


def test_rights_are_read_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is whether the tenant and the namespace exist."""
    lookup = "/lookup/v2/topic/persistent/public/default/t"

    async def scenario(broker: Broker) -> None:
        client = await let_in(broker, connect(token("np")))
        read: list[str] = []
        get = broker.node.store.get

        async def counted(path: str, *arguments: Any) -> Any:
            read.append(path)
            return await get(path, *arguments)

        async def ask() -> None:
            command = pb.CommandLookupTopic(topic=TOPIC)
            assert not (await client.request(command, "lookupTopicResponse")).HasField("error")
            assert await rest(broker, "GET", lookup, "np") == 200

        await ask()
        monkeypatch.setattr(broker.node.store, "get", counted)
        await ask()
        assert not {paths.tenant("public"), paths.namespace_policies("public/default")} & set(read)

    serve(tmp_path, scenario)


def test_what_is_for_whoever_is_known_needs_no_right(tmp_path: Path) -> None:
    """The names of all topics among it, by /metrics, as in Apache Pulsar."""
    brokers = "/admin/v2/brokers"

    async def scenario(broker: Broker) -> None:
        broker.config.authenticateMetricsEndpoint = True
        store: Any = broker.node.store
        source: Any = FakeService(store)
        for path in ("/metrics", "/openapi.json", f"{brokers}/ready", f"{brokers}/version"):
            body = Body(0, lambda: None)
            body.end()
            head = {"authorization": f"Bearer {token('nobody')}"}
            request = Request("GET", path, "", head, body)
            answer = await Application(broker.service, lambda: source).answer(request)
            assert answer.status == 200, path

    serve(tmp_path, scenario)


def test_by_http_a_subscription_may_be_for_some_roles_alone(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topic()
        for path in (f"{P}/t/subscription/s/skip/1", f"{P}/t/subscription/s/skip_all"):
            assert await rest(broker, "POST", path, "nc") == 401
            assert await rest(broker, "POST", path, "tc") == 404

    serve(tmp_path, scenario, GRANTS | {"subscription_auth_roles": {"s": ["tc"]}})


async def with_backlog(
    broker: Broker, *subscriptions: str, topic_name: str = TOPIC
) -> PersistentTopic:
    """A topic with subscriptions that have two messages each to acknowledge."""
    topic = await broker.topic(topic_name)
    assert isinstance(topic, PersistentTopic)
    for each in subscriptions:
        await topic.subscription_for(each, topic.last_confirmed, {}, True)
    await broker.publish_to(topic, b"0", b"1")
    return topic


def backlogs(topic: PersistentTopic) -> dict[str, int]:
    return {name: each.backlog for name, each in topic.subscriptions.items()}


@pytest.mark.parametrize("path", [N, BUNDLE])
def test_in_a_whole_namespace_nobody_moves_or_deletes_subscriptions_of_others(
    tmp_path: Path, path: str
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await with_backlog(broker, "s", "t")
        for what in ("clearBacklog/s", "unsubscribe/s"):
            assert await rest(broker, "POST", f"{path}/{what}", "nc") == 403
        assert backlogs(topic) == {"s": 2, "t": 2}
        assert await rest(broker, "POST", f"{path}/clearBacklog/t", "nc") == 204
        assert await rest(broker, "POST", f"{path}/unsubscribe/t", "nc") == 204
        assert backlogs(topic) == {"s": 2}
        assert await rest(broker, "POST", f"{path}/clearBacklog/s", "tc") == 403, "no consumer here"
        assert await rest(broker, "POST", f"{path}/clearBacklog/s", "admin") == 204
        assert backlogs(topic) == {"s": 0}
        assert await rest(broker, "POST", f"{path}/unsubscribe/s", "admin") == 204
        assert backlogs(topic) == {}

    grants = GRANTS | {"subscription_auth_roles": {"s": ["tc"]}}
    serve(tmp_path, scenario, grants, bundles=ONE_BUNDLE)


@pytest.mark.parametrize("path", [f"{N}/clearBacklog", f"{BUNDLE}/clearBacklog", EXPIRE_ALL])
@pytest.mark.parametrize("is_prefixed", [False, True])
def test_what_is_done_to_all_subscriptions_leaves_out_those_of_others(
    tmp_path: Path, path: str, is_prefixed: bool
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await with_backlog(broker, "s", "nc-1")
        topic.wall_clock = lambda: 4e9
        assert await rest(broker, "POST", path, "nc") == 204
        assert backlogs(topic) == {"s": 2, "nc-1": 0}
        # One has no backlog any more, which Pulsar tells who expires messages.
        status = 409 if path == EXPIRE_ALL else 204
        assert await rest(broker, "POST", path, "admin") == status
        assert backlogs(topic) == {"s": 0, "nc-1": 0}

    if is_prefixed:
        serve(tmp_path, scenario, bundles=ONE_BUNDLE, subscription_auth_mode="Prefix")
    else:
        grants = GRANTS | {"subscription_auth_roles": {"s": ["tc"]}}
        serve(tmp_path, scenario, grants, bundles=ONE_BUNDLE)


@pytest.mark.parametrize("path", [N, BUNDLE])
def test_in_a_whole_namespace_no_grant_reaches_the_brokers_own_topics(
    tmp_path: Path, path: str
) -> None:
    async def scenario(broker: Broker) -> None:
        ordinary = await with_backlog(broker, "s", "other")
        own = await with_backlog(broker, "s", "own", topic_name=OWN)
        for what, expected in (
            ("clearBacklog/own", 404),
            ("unsubscribe/own", 204),
            ("clearBacklog/s", 204),
            ("clearBacklog", 204),
            ("unsubscribe/s", 204),
        ):
            assert await rest(broker, "POST", f"{path}/{what}", "nc") == expected
            assert backlogs(own) == {"s": 2, "own": 2}
        assert backlogs(ordinary) == {"other": 0}
        # An administrator may do the same in a call on that topic, too.
        assert await rest(broker, "POST", f"{path}/clearBacklog/own", "admin") == 204
        assert backlogs(own) == {"s": 2, "own": 0}
        assert await rest(broker, "POST", f"{path}/clearBacklog", "root") == 204
        assert await rest(broker, "POST", f"{path}/unsubscribe/own", "admin") == 204
        assert backlogs(own) == {"s": 0}

    serve(tmp_path, scenario, bundles=ONE_BUNDLE)


def test_who_may_only_consume_deletes_no_compacted_data(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        assert isinstance(topic, PersistentTopic)
        await topic.compaction_subscription()
        for role in ("nc", "tc"):
            assert await rest(broker, "DELETE", f"{P}/t/subscription/__compaction", role) == 401
        for path in (N, BUNDLE):
            assert await rest(broker, "POST", f"{path}/unsubscribe/__compaction", "nc") == 403
        client = await let_in(broker, connect(token("nc")))
        asked = pb.CommandSubscribe(
            topic=TOPIC, subscription="__compaction", subType=1, consumer_id=1, request_id=1
        )
        error = await client.request(asked, "error")
        assert error.error == pb.AuthorizationError
        assert "__compaction" in topic.subscriptions
        assert await rest(broker, "DELETE", f"{P}/t/subscription/__compaction", "admin") == 204
        assert "__compaction" not in topic.subscriptions

    serve(tmp_path, scenario)


@pytest.mark.parametrize("row", NOT_BUILT, ids=lambda row: f"{row.method} {row.path}")
def test_nobody_learns_by_what_is_not_built_which_namespaces_and_topics_there_are(
    tmp_path: Path, row: Endpoint
) -> None:
    path = row.path.replace("{domain}", "persistent").replace("{tenant}", "public")
    body = "" if row.content is None else "1"

    async def scenario(broker: Broker) -> None:
        async def told(role: str, namespace: str, topic: str) -> int:
            target = path.replace("{namespace}", namespace).replace("{topic}", topic)
            return await rest(broker, row.method, target, role, body)

        await broker.topic()
        refused = {await told("nobody", "default", "t")}
        assert refused <= {401, 403}
        for role in ("nobody", "np", "nc", "tp", "tc"):
            for place in (("default", "t"), ("default", "none"), ("none", "none")):
                assert {await told(role, *place)} == refused
        assert await told("root", "default", "t") == 501
        assert await told("root", "none", "t") == 404
        if SUPERUSER not in row.right.holders:
            assert await told("admin", "default", "t") == 501

    serve(tmp_path, scenario)


def test_by_http_a_proxy_says_for_whom_it_asks(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        grants = "/admin/v2/namespaces/public/default/permissions"
        assert await rest(broker, "GET", grants, "proxy") == 401
        assert await rest(broker, "GET", grants, "admin", **{"x-original-principal": "root"}) == 401
        behind = {"x-original-principal": "admin"}
        assert await rest(broker, "GET", grants, "proxy", **behind) == 403
        assert await rest(broker, "GET", grants, "admin", **behind) == 200

    serve(tmp_path, scenario)


def test_who_has_lost_a_right_when_its_body_comes_changes_nothing(tmp_path: Path) -> None:
    """A head that is let in would else be kept for the time after."""

    async def scenario(broker: Broker) -> None:
        await broker.topic()
        application = Application(broker.service, lambda: broker.service)
        checks = []
        permissions: Any = broker.service.permissions
        check = permissions.check

        async def counted(*what: Any) -> None:
            checks.append(what)
            await check(*what)

        permissions.check = counted

        async def grant(role: str, body: Body) -> asyncio.Future[Response]:
            headers = {
                "authorization": f"Bearer {token('admin')}",
                "content-type": "application/json",
            }
            request = Request("POST", f"{N}/permissions/{role}", "", headers, body)
            answer = asyncio.ensure_future(application.answer(request))
            await until(lambda: body.is_awaited or answer.done())
            return answer

        async def granted() -> set[str]:
            found: Any = await broker.node.store.get(paths.namespace_policies("public/default"))
            return set(json.loads(found.value)["auth_policies"]["namespace_auth"])

        actions = b'["produce"]'
        # What is there already is not waited for, so nothing has to be looked at again.
        whole = Body(len(actions), lambda: None)
        whole.feed(actions)
        whole.end()
        assert (await (await grant("first", whole))).status == 204
        assert len(checks) == 1
        later, never = Body(len(actions), lambda: None), Body(len(actions), lambda: None)
        second, third = await grant("second", later), await grant("third", never)
        later.feed(actions)
        later.end()
        assert (await second).status == 204
        await broker.node.store.put(paths.tenant("public"), b'{"adminRoles": []}')
        for _ in range(1_000):
            if await rest(broker, "GET", f"{N}/permissions", "admin") != 200:
                break
            await asyncio.sleep(0.01)
        never.feed(actions)
        never.end()
        assert (await third).status in (401, 403)
        assert {"first", "second"} <= await granted() and "third" not in await granted()

    serve(tmp_path, scenario)


# --- settings ---------------------------------------------------------------------------------


def test_rights_need_to_know_who_asks() -> None:
    with pytest.raises(ConfigError, match="Authentication must be enabled"):
        authentication_of(Config(authorizationEnabled=True))
    with pytest.raises(ConfigError, match="Authentication must be enabled"):
        Permissions(Config(authorizationEnabled=True), Records())


def test_another_provider_is_refused() -> None:
    for name in ("", "org.apache.pulsar.broker.authorization.MultiRolesTokenAuthorizationProvider"):
        with pytest.raises(ConfigError, match="authorizationProvider"):
            check_settings(Config(**ON, authorizationProvider=name))
