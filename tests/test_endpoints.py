"""The table of endpoints: what comes from it, and that each right in it is checked."""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from fake_service import FakeService
from pyxbroker.admin import answering, documents, owners, policy_table
from pyxbroker.admin.app import Application
from pyxbroker.admin.endpoints import RESOURCES, every_endpoint
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources import names
from pyxbroker.auth.authorization import (
    CREATE_TOPIC,
    GET_TENANT,
    HEALTH_CHECK,
    LIST_NAMESPACES,
    LIST_TENANTS,
    LOOKUP,
    OPEN,
    BrokerId,
    ClusterName,
    Resource,
    Right,
    Scope,
    authorize,
)
from pyxbroker.auth.principal import ANONYMOUS, Principal
from pyxbroker.base.errors import AuthorizationError
from pyxbroker.base.topic_name import NamespaceName, TenantName, TopicName
from pyxbroker.broker.broker_limits import INDEX_INTERCEPTOR
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.settings.config import Config
from pyxbroker.web.endpoint import Endpoint
from pyxbroker.web.request import Body
from pyxbroker.web.response import Response

ROOT = Path(__file__).parent.parent
ROWS = list(every_endpoint())
EACH = pytest.mark.parametrize(
    "endpoint", [row for _, row in ROWS], ids=[f"{row.method} {row.path}" for _, row in ROWS]
)
VALUES = {
    **{"domain": "persistent", "tenant": "public", "namespace": "default", "topic": "t"},
    **{"subName": "s", "subscription": "s", "role": "r", "key": "k", "value": "v"},
    **{"cluster": "standalone", "domainName": "d", "resourcegroup": "g"},
    **{"policyName": "p", "broker": "host:8080", "group": "g", "allocator": "default"},
    "bundle": "0x00000000_0xffffffff",
    **{"numMessages": "5", "seconds": "60", "version": "0"},
    **{
        **{"brokerId": "host:8080", "name": "maxTenants", "bookie": "b:1"},
        "messagePosition": "1",
        "ledgerId": "1",
        "entryId": "1",
        "partition": "0",
        "timestamp": "1",
        "moment": "0123456789abcdef",
        **{"coordinatorId": "0", "mostSigBits": "0", "leastSigBits": "0", "timeout": "1"},
    },
}


def path_of(endpoint: Endpoint, **values: str) -> str:
    return untyped(endpoint.path).format(**(VALUES | values))


def asks_of_tenant(endpoint: Endpoint) -> bool:
    """Whether the query names the tenant that is asked about."""
    return any(each.name == "tenant" for each in endpoint.query)


def untyped(path: str) -> str:
    """A path with the names of its parameters, without their types."""
    return re.sub(r":\w+}", "}", path)


def asked(
    method: str,
    path: str,
    body: Body | None = None,
    query: str = "",
    config: Config | None = None,
    **more: Any,
) -> Response:
    """The answer of an application whose broker only looks topics up."""

    async def main() -> Response:
        store = MemoryStore()
        await store.open()
        service = FakeService(store, config)
        stream = body or Body(0, lambda: None)
        if body is None:
            stream.end()
        application = Application(cast(Any, service), lambda: service)
        request = Request(method, path, query, {}, stream, **more)
        answer = await asyncio.wait_for(application.answer(request), 10)
        await store.close()
        return answer

    return asyncio.run(main())


def reason(answer: Response) -> str:
    assert isinstance(answer.body, bytes)
    return str(json.loads(answer.body)["reason"])


# --- rights -----------------------------------------------------------------------------------


@EACH
def test_each_right_is_checked_before_anything_is_done(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[tuple[Principal, Right, Resource]] = []

    async def refuse(
        permissions: None, principal: Principal, right: Right, resource: Resource, _: str
    ) -> None:
        await authorize(permissions, principal, right, resource)
        checked.append((principal, right, resource))
        raise AuthorizationError("No.")

    async def exists(*_: object) -> None:
        pass

    monkeypatch.setattr(answering, "authorize", refuse)
    # What comes before a right is in test_rights.py: here nothing is missing.
    monkeypatch.setattr(names, "check_namespace", exists)
    config = Config(brokerEntryMetadataInterceptors=INDEX_INTERCEPTOR)
    # A body that never comes: who may not ask is not waited for.
    body = Body(None, lambda: None)
    somebody = Principal("somebody")
    query = "tenant=public" if asks_of_tenant(endpoint) else ""
    answer = asked(endpoint.method, path_of(endpoint), body, query, config, principal=somebody)
    assert (answer.status, reason(answer)) == (403, "No.")
    ((principal, right, resource),) = checked
    assert (principal, right) == (somebody, endpoint.right)
    known = {"public", "public/default", "persistent://public/default/t"}
    is_of_tenant = "{tenant}" in endpoint.path or asks_of_tenant(endpoint)
    if is_of_tenant:
        assert str(resource) in known
    elif right.scope is Scope.CLUSTER:
        assert resource == ClusterName("standalone")
    else:
        assert resource in (None, BrokerId("host:8080"))


@EACH
def test_a_right_is_not_checked_on_a_name_that_cannot_be(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "tenant=pub%20lic" if asks_of_tenant(endpoint) else ""
    if "{tenant}" not in endpoint.path and not query:
        of_all = (Scope.OPEN, Scope.AUTHENTICATED, Scope.BROKER, Scope.CLUSTER)
        assert endpoint.right.scope in of_all or endpoint.right == LIST_TENANTS
        return

    async def never(_: None, __: Principal, ___: Right, resource: Resource, ____: str) -> None:
        raise AssertionError(resource)

    monkeypatch.setattr(answering, "authorize", never)
    answer = asked(endpoint.method, path_of(endpoint, tenant="pub%20lic"), query=query)
    assert answer.status == 412 and reason(answer)


def test_everybody_may_do_everything_while_authorization_is_off() -> None:
    topic = TopicName.get("persistent://public/default/t")
    namespace = NamespaceName("public", "default")
    for right, resource in (
        (OPEN, None),
        (HEALTH_CHECK, None),
        (CREATE_TOPIC, namespace),
        (CREATE_TOPIC, topic),
        (LOOKUP, topic),
        (LIST_TENANTS, None),
        (GET_TENANT, TenantName("public")),
        (LIST_NAMESPACES, namespace),
    ):
        for principal in (ANONYMOUS, Principal("r"), Principal("proxy", "r")):
            asyncio.run(authorize(None, principal, right, resource))


@pytest.mark.parametrize(
    ("right", "resource"),
    [(OPEN, NamespaceName("a", "b")), (CREATE_TOPIC, None), (LOOKUP, NamespaceName("a", "b"))],
)
def test_a_right_on_what_it_cannot_be_about_is_a_fault(right: Right, resource: Resource) -> None:
    with pytest.raises(AssertionError, match=re.escape(str(right))):
        asyncio.run(authorize(None, ANONYMOUS, right, resource))


def test_a_principal_does_not_change() -> None:
    for name in ("role", "original_role"):
        with pytest.raises(AttributeError):
            setattr(ANONYMOUS, name, "admin")


# --- the rows and the handlers ----------------------------------------------------------------


@EACH
def test_other_methods_are_405_with_those_that_are_taken(endpoint: Endpoint) -> None:
    answer = asked("PATCH", path_of(endpoint))
    assert answer.status == 405
    allowed = dict(answer.headers)["Allow"].split(", ")
    assert endpoint.method in allowed and ("GET" in allowed) == ("HEAD" in allowed)


@EACH
def test_a_path_below_one_that_is_built_is_404(endpoint: Endpoint) -> None:
    answer = asked(endpoint.method, path_of(endpoint) + "/x/nothing/is/there/at/all")
    assert (answer.status, "There is no resource" in reason(answer)) == (404, True)


@EACH
def test_a_row_is_whole(endpoint: Endpoint) -> None:
    for sentence in (
        endpoint.summary,
        endpoint.answer.about,
        *(each.about for each in endpoint.query),
        *([endpoint.content.about] if endpoint.content else []),
    ):
        assert re.fullmatch(r"[A-Z].*\.", sentence), sentence
    prefixes = [prefix for prefix in RESOURCES if path_of(endpoint).startswith(prefix)]
    assert prefixes, "nothing leads to it"


CONSTANTS = {"DESTINATION": owners.DESTINATION}


def _asked_for(tree: ast.AST) -> set[str]:
    """The fields of the query that some code asks for, where it names them or a constant."""
    named = [
        node.args[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "argument"
    ]
    literal = {str(each.value) for each in named if isinstance(each, ast.Constant)}
    return literal | {
        CONSTANTS[each.id] for each in named if isinstance(each, ast.Name) and each.id in CONSTANTS
    }


@pytest.mark.parametrize("group", sorted({group for group, _ in ROWS}))
def test_handlers_ask_for_the_fields_of_the_table_and_no_others(group: str) -> None:
    module = importlib.import_module(f"pyxbroker.admin.resources.{group}")
    assert module.__file__ is not None
    sources = [Path(module.__file__)]
    if group in ("namespace_policies", "topic_policies"):
        # What both do is there.
        sources.append(sources[0].with_name("policies.py"))
    if group == "topic_offload":
        sources.append(sources[0].with_name("topic_policies.py"))
    fields = {each.name for name, row in ROWS if name == group for each in row.query}
    fields -= {row.topic.query for row in policy_table.ROWS if row.topic is not None}
    assert set().union(*(_asked_for(ast.parse(each.read_text())) for each in sources)) == fields


# --- documents --------------------------------------------------------------------------------


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "rest.md").read_text() == documents.markdown(), "make docs writes it"


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [found for each in value.values() for found in _references(each)]
    return (
        [found for each in value for found in _references(each)] if isinstance(value, list) else []
    )


def test_the_openapi_document_has_every_endpoint() -> None:
    answer = asked("GET", "/openapi.json")
    assert answer.status == 200 and isinstance(answer.body, bytes)
    document = json.loads(answer.body)
    assert document["openapi"] == "3.0.3"
    operations = {
        (method.upper(), path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert set(operations) == {(row.method, untyped(row.path)) for _, row in ROWS}
    for (_, path), operation in operations.items():
        in_path = [each["name"] for each in operation["parameters"] if each["in"] == "path"]
        assert in_path == re.findall(r"{(\w+)}", path)
        assert {"default"} < set(operation["responses"])
    assert len({each["operationId"] for each in operations.values()}) == len(operations)
    for reference in _references(document):
        found: Any = document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        assert found["type"] == "object"


def _operation(method: str, path: str) -> Callable[[str], Any]:
    return cast(Any, documents.openapi()["paths"][path][method].__getitem__)


def test_openapi_has_types_defaults_bodies_and_rights() -> None:
    put = _operation("put", "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions")
    assert put("parameters")[-1]["schema"] == {"type": "boolean", "default": False}
    assert put("requestBody")["required"] is True
    assert set(put("requestBody")["content"]) == {
        "application/json",
        "text/plain",
        "application/vnd.partitioned-topic-metadata+json",
    }
    assert put("x-right") == "namespace operation CREATE_TOPIC: tenant administrator"
    listed = _operation("get", "/admin/v2/{domain}/{tenant}/{namespace}")
    assert listed("parameters")[3]["schema"] == {"type": "string"}
    assert listed("parameters")[0]["schema"]["enum"] == ["persistent", "non-persistent"]
