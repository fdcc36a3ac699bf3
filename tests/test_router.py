"""From a path to its handler: precedence, types, escapes, and what is not there."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyxbroker.admin.errors import HttpError
from pyxbroker.admin.request import Body, Request
from pyxbroker.admin.response import Response
from pyxbroker.admin.router import Handler, Node, Router

MODULE = "router_resource"


def request(method: str, path: str, query: str = "", body: bytes | None = None) -> Request:
    coming = Body(None, lambda: None)
    if body is not None:
        coming.feed(body)
    coming.end()
    return Request(method, path, query, {}, coming)


def named(name: str) -> Handler:
    async def handler(request: Request) -> Response:
        return Response.text(name)

    handler.__name__ = name
    return handler


def router(monkeypatch: pytest.MonkeyPatch, routes: Iterable[str], prefix: str = "/a") -> Router:
    """A router for routes such as "GET /a/{name}"; each handler's name is its route."""
    module = types.ModuleType(MODULE)
    table = [(*each.split(" "), named(each)) for each in routes]
    module.ROUTES = table  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, module)
    return Router({prefix: [MODULE]})


def found(router: Router, method: str, path: str) -> tuple[str, Mapping[str, object]]:
    asked = request(method, path)
    handler = router.find(asked)
    return handler.__name__, asked.parameters  # type: ignore[attr-defined]


def refused(router: Router, method: str, path: str) -> HttpError:
    with pytest.raises(HttpError) as caught:
        router.find(request(method, path))
    return caught.value


def test_the_best_route_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = router(
        monkeypatch,
        [
            "GET /a",
            "GET /a/{tenant}/{namespace}",
            "GET /a/{tenant}/{namespace}/partitioned",
            "DELETE /a/{tenant}/{namespace}/{topic}",
            "GET /a/{tenant}/{namespace}/{topic}/stats",
            "POST /a/{tenant}/{namespace}/{topic}/{count:int}",
            "POST /a/{tenant}/{namespace}/{topic}/{force:bool}",
            "POST /a/{tenant}/{namespace}/{topic}/{word}",
        ],
    )
    names = {"tenant": "t", "namespace": "n"}
    assert found(routes, "GET", "/a") == ("GET /a", {})
    assert found(routes, "GET", "/a/") == ("GET /a", {})
    assert found(routes, "GET", "/a/t/n/") == ("GET /a/{tenant}/{namespace}", names)
    assert found(routes, "HEAD", "/a/t/n") == found(routes, "GET", "/a/t/n")
    literal = "/a/{tenant}/{namespace}/partitioned"
    assert found(routes, "GET", "/a/t/n/partitioned") == (f"GET {literal}", names)
    # A topic may be called as a literal segment is.
    assert found(routes, "DELETE", "/a/t/n/partitioned") == (
        "DELETE /a/{tenant}/{namespace}/{topic}",
        {**names, "topic": "partitioned"},
    )
    assert found(routes, "GET", "/a/t/n/partitioned/stats") == (
        "GET /a/{tenant}/{namespace}/{topic}/stats",
        {**names, "topic": "partitioned"},
    )
    for text, name, value in (("12", "count", 12), ("true", "force", True), ("x", "word", "x")):
        _, values = found(routes, "POST", f"/a/t/n/topic/{text}")
        assert values == {**names, "topic": "topic", name: value}


def test_escapes_are_decoded_after_the_path_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = router(monkeypatch, ["GET /a/{topic}/x", "GET /a/b"])
    _, values = found(routes, "GET", "/a/a%2Fb+%20%C3%A4%25/x")
    assert values == {"topic": "a/b+ ä%"}
    assert found(routes, "GET", "/%61/%62") == ("GET /a/b", {})
    for path in ("/a/%C3/x", "/a/%zz/x", "/a/%/x", "/a/%4/x"):
        assert refused(routes, "GET", path).status == 400


def test_what_is_not_there_and_what_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = router(
        monkeypatch, ["GET /a/b", "PUT /a/b", "POST /a/{name}", "PUT /a/b/{n:int}"], prefix="/a"
    )
    for path in ("", "/", "/b", "/a", "/a//b", "/a/b//", "/a/b/c", "/a/b/1/", "//a/b", "/aa/b"):
        assert refused(routes, "GET", path).status == (405 if path == "/a/b/1/" else 404), path
    error = refused(routes, "DELETE", "/a/b")
    # What both of the routes that fit take.
    assert (error.status, error.headers) == (405, [("Allow", "GET, HEAD, POST, PUT")])
    assert refused(routes, "GET", "/a/x").headers == [("Allow", "POST")]


def test_the_longest_prefix_counts_and_is_loaded_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes = router(monkeypatch, ["GET /a/b/{name}"], prefix="/a/b")
    routes = Router({"/a": ["router_resource_none"], "/a/b": [MODULE]})
    assert found(routes, "GET", "/a/b/c") == ("GET /a/b/{name}", {"name": "c"})
    with pytest.raises(ModuleNotFoundError):
        found(routes, "GET", "/a/c")


def test_a_route_has_one_handler_and_known_types() -> None:
    root = Node()
    root.add("GET", "/a/{name}", named("one"))
    with pytest.raises(ValueError, match="two handlers"):
        root.add("GET", "/a/{other}", named("two"))
    with pytest.raises(ValueError, match="float"):
        root.add("GET", "/a/{n:float}", named("two"))


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_any_text_can_be_a_segment(texts: list[str]) -> None:
    from urllib.parse import quote

    texts = [each for each in texts if each.isprintable()] or ["x"]
    path = "".join("/" + quote(each, safe="") for each in texts)
    assert request("GET", path).segments() == texts


# --- the query and the body -------------------------------------------------------------------


def test_the_query_is_typed() -> None:
    asked = request("GET", "/a", "force=TRUE&count=-3&name=a%2Fb+c&empty=&count=4&flag=no&n=1_0")
    assert dict(asked.query)["name"] == "a/b c"
    assert asked.flag("force") and asked.flag("none", True) and not asked.flag("none")
    assert (asked.number("count", 1), asked.number("none", 1)) == (-3, 1)
    assert asked.query["empty"] == ""
    for wrong in (lambda: asked.flag("flag"), lambda: asked.number("n", 0)):
        with pytest.raises(HttpError) as caught:
            wrong()
        assert caught.value.status == 400
    for query in ("a=%C3", "&".join(["a=b"] * 101)):
        with pytest.raises(HttpError):
            _ = request("GET", "/a", query).query


def test_the_body_is_json_or_refused() -> None:
    async def main() -> None:
        asked = request("PUT", "/a", body='{"a": ["ä"]}'.encode())
        assert await asked.json() == {"a": ["ä"]}
        assert await asked.read() == '{"a": ["ä"]}'.encode()
        for body in (b"", b"{", b"\xff", b"[" * 100_000):
            with pytest.raises(HttpError) as caught:
                await request("PUT", "/a", body=body).json()
            assert caught.value.status == 400
        with pytest.raises(HttpError) as caught:
            await request("PUT", "/a", body=b"12345").read(4)
        assert caught.value.status == 413

    asyncio.run(main())
