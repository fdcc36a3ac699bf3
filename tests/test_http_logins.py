"""Credentials in requests by HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
from harness.tokens import SECRET, settings, token

from fake_service import FakeService
from pyxbroker.admin.app import Application
from pyxbroker.admin.endpoints import every_endpoint
from pyxbroker.admin.request import Request
from pyxbroker.auth.authentication import Authentication
from pyxbroker.auth.principal import Principal
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.settings.config import Config
from pyxbroker.web.endpoint import Endpoint
from pyxbroker.web.request import Body
from pyxbroker.web.response import Response
from test_endpoints import path_of

CLUSTERS = "/admin/v2/clusters"


def asked(
    path: str = CLUSTERS,
    headers: dict[str, str] | None = None,
    query: str = "",
    method: str = "GET",
    body: Body | None = None,
    **more: Any,
) -> tuple[Response, Principal]:
    """The answer of a broker that asks who clients are, and who it took one for."""

    async def main() -> tuple[Response, Principal]:
        store = MemoryStore()
        await store.open()
        config = Config(**settings(**more))
        service = FakeService(store, config)
        service.authentication = Authentication(config)
        stream = body or Body(0, lambda: None)
        if body is None:
            stream.end()
        request = Request(method, path, query, headers or {}, stream)
        application = Application(cast(Any, service), lambda: service)  # type: ignore[arg-type]
        answer = await asyncio.wait_for(application.answer(request), 10)
        await store.close()
        return answer, request.principal

    return asyncio.run(main())


def bearer(shown: str) -> dict[str, str]:
    return {"authorization": f"Bearer {shown}"}


def named(method: str, **more: str) -> dict[str, str]:
    return {"x-pulsar-auth-method-name": method, **more}


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        (bearer(token("me")), ""),
        ({}, f"token={token('me')}"),
        (named("token", **bearer(token("me"))), ""),
        (bearer(token("me")) | {"x-original-principal": "you"}, ""),
    ],
)
def test_who_shows_a_good_token_is_answered(headers: dict[str, str], query: str) -> None:
    answer, principal = asked(headers=headers, query=query)
    assert answer.status == 200
    assert principal == Principal("me", headers.get("x-original-principal"))


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({}, ""),
        (bearer(token("me", SECRET[::-1])), ""),
        (bearer(token("me", exp=-5)), ""),
        (bearer(""), ""),
        ({"authorization": token("me")}, ""),
        ({"authorization": f"bearer {token('me')}"}, ""),
        ({"authorization": "Basic bWU6bWU="}, f"token={token('me')}"),
        ({"x-original-principal": "root"}, ""),
        (bearer(f"{token('me')}, {token('me')}"), ""),
    ],
)
def test_others_are_answered_as_by_pulsars_web_server(headers: dict[str, str], query: str) -> None:
    answer, principal = asked(headers=headers, query=query)
    assert (answer.status, principal) == (401, Principal())
    assert isinstance(answer.body, bytes)
    assert b"Authentication required" in answer.body and answer.body.startswith(b"<html>")
    answer, _ = asked(headers=headers | {"accept": "application/json"}, query=query)
    assert isinstance(answer.body, bytes)
    assert json.loads(answer.body) == {
        "url": CLUSTERS,
        "status": "401",
        "message": "Authentication required",
    }


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        (named("basic", **bearer(token("me"))), "Unsupported authentication method: [basic]."),
        (named("", **bearer(token("me"))), "Unsupported authentication method: []."),
        (named("<b>"), "Unsupported authentication method: [&lt;b&gt;]."),
        (named("token"), "Invalid HTTP Authorization header"),
        (named("token", **bearer("")), "Blank token found"),
        (named("token", authorization="Basic x"), "Invalid HTTP Authorization header"),
        ({"sasl-type": "Kerberos", **bearer(token("me"))}, "authentication method: [sasl]."),
        (named("token", **bearer(token("me", exp=-5))), "Authentication required"),
        (named("token", **bearer(token("me", SECRET[::-1]))), "Authentication required"),
    ],
)
def test_who_names_a_method_is_told_what_is_missing_and_not_what_is_wrong_with_a_token(
    headers: dict[str, str], said: str
) -> None:
    answer, _ = asked(headers=headers)
    assert isinstance(answer.body, bytes)
    assert answer.status == 401 and f"{said}</title>" in answer.body.decode()
    answer, _ = asked(headers=headers | {"accept": "application/json"})
    assert isinstance(answer.body, bytes)
    assert json.loads(answer.body)["message"].endswith(said)


def test_who_shows_nothing_that_is_good_is_anonymous_where_that_is_allowed() -> None:
    """By HTTP that includes a bad token, unless its method is named."""
    allowed = {"anonymousUserRole": "nobody"}
    for headers in ({}, bearer("no token"), {"authorization": "Basic x"}):
        assert asked(headers=headers, **allowed)[1] == Principal("nobody")
    assert asked(headers=bearer(token("me")), **allowed)[1] == Principal("me")
    for headers in (named("token", **bearer("no token")), named("token"), named("x")):
        assert asked(headers=headers, **allowed)[0].status == 401
    assert asked(**allowed, strictAuthMethod=True)[0].status == 401


def test_by_http_a_proxys_word_counts_whatever_a_connect_has_to_prove() -> None:
    headers = bearer(token("proxy")) | {"x-original-principal": "me"}
    _, principal = asked(headers=headers, proxyRoles="proxy", authenticateOriginalAuthData=True)
    assert principal == Principal("proxy", "me")


def test_a_method_may_have_to_be_named() -> None:
    assert asked(headers=bearer(token("me")), strictAuthMethod=True)[0].status == 401
    shown = named("token", **bearer(token("me")))
    assert asked(headers=shown, strictAuthMethod=True)[0].status == 200


@pytest.mark.parametrize(
    "endpoint",
    [each for _, each in every_endpoint()],
    ids=[f"{each.method} {each.path}" for _, each in every_endpoint()],
)
def test_no_endpoint_answers_a_stranger(endpoint: Endpoint) -> None:
    """But the two that say nothing but that the broker is there, and how it is."""
    answer, _ = asked(path_of(endpoint), method=endpoint.method, body=Body(None, lambda: None))
    is_open = endpoint.path in ("/status.html", "/metrics")
    assert (answer.status != 401) == is_open


def test_both_paths_of_metrics_are_open_unless_they_are_not() -> None:
    for path in ("/metrics", "/metrics/"):
        assert asked(path)[0].status == 200
        assert asked(path, authenticateMetricsEndpoint=True)[0].status == 401


def test_what_is_not_there_is_not_told_to_a_stranger() -> None:
    for path in ("/", "/no/such/path", "/admin/v2", "/%6detrics", "//metrics"):
        assert asked(path)[0].status == 401, path
        assert asked(path, bearer(token("me")))[0].status != 401, path


def test_metrics_may_be_for_those_alone_who_say_who_they_are() -> None:
    asks = {"authenticateMetricsEndpoint": True}
    assert asked("/metrics", **asks)[0].status == 401
    assert asked("/metrics", bearer(token("me")), **asks)[0].status == 200
    assert asked("/metrics")[0].status == 200
    assert asked("/status.html", **asks)[0].status == 404
