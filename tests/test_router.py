"""From a path to its handler: precedence, types, escapes, and what is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyxbroker.admin.answering import is_change
from pyxbroker.admin.request import Request
from pyxbroker.auth.authorization import OPEN
from pyxbroker.web.endpoint import Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.request import Body
from pyxbroker.web.response import Response
from pyxbroker.web.router import Node, Router


def request(method: str, path: str, query: str = "", body: bytes | None = None) -> Request:
    coming = Body(None, lambda: None)
    if body is not None:
        coming.feed(body)
    coming.end()
    return Request(method, path, query, {}, coming)


async def handler(request: Request) -> Response:
    return Response.empty()


def endpoint(route: str) -> Endpoint:
    """The row of a route such as "GET /a/{name}"."""
    method, path = route.split(" ")
    return Endpoint(method, path, handler, OPEN, "Does nothing.")


def router(routes: Iterable[str], prefix: str = "/a") -> Router:
    rows = [endpoint(each) for each in routes]
    return Router({prefix: ["rows"]}, {"rows": rows}.__getitem__)


def found(router: Router, method: str, path: str) -> tuple[str, Mapping[str, object]]:
    asked = request(method, path)
    row = asyncio.run(router.find(asked))
    assert asked.endpoint is row
    return f"{row.method} {row.path}", asked.parameters


def refused(router: Router, method: str, path: str) -> HttpError:
    with pytest.raises(HttpError) as caught:
        asyncio.run(router.find(request(method, path)))
    return caught.value


def test_the_best_route_is_found() -> None:
    routes = router(
        [
            "GET /a",
            "GET /a/{tenant}/{namespace}",
            "GET /a/{tenant}/{namespace}/partitioned",
            "DELETE /a/{tenant}/{namespace}/{topic}",
            "GET /a/{tenant}/{namespace}/{topic}/stats",
            "POST /a/{tenant}/{namespace}/{topic}/{count:int}",
            "POST /a/{tenant}/{namespace}/{topic}/{size:long}",
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
    for text, name, value in (
        ("12", "count", 12),
        (str(1 << 40), "size", 1 << 40),
        ("x", "word", "x"),
    ):
        _, values = found(routes, "POST", f"/a/t/n/topic/{text}")
        assert values == {**names, "topic": "topic", name: value}


def test_a_number_of_more_than_64_bits_is_none() -> None:
    routes = router(["GET /a/{n:long}"], prefix="/a")
    for number in (2**63 - 1, -(2**63)):
        assert found(routes, "GET", f"/a/{number}")[1] == {"n": number}
    for number in (2**63, 10**19 - 1, -(2**63) - 1, 10**30):
        assert refused(routes, "GET", f"/a/{number}").status == 404
        asked = request("GET", "/a", f"n={number}")
        asked.endpoint = endpoint("GET /a")._replace(query=(Query("n", "A field.", 0),))
        with pytest.raises(HttpError, match="n must be a whole number of at most 64 bits") as error:
            asked.argument("n")
        assert error.value.status == 400


def test_escapes_are_decoded_after_the_path_is_divided() -> None:
    routes = router(["GET /a/{topic}/x", "GET /a/b"])
    _, values = found(routes, "GET", "/a/a%2Fb+%20%C3%A4%25/x")
    assert values == {"topic": "a/b+ ä%"}
    assert found(routes, "GET", "/%61/%62") == ("GET /a/b", {})
    for path in ("/a/%C3/x", "/a/%zz/x", "/a/%/x", "/a/%4/x"):
        assert refused(routes, "GET", path).status == 400


def test_what_is_not_there_and_what_is_not_allowed() -> None:
    routes = router(["GET /a/b", "PUT /a/b", "POST /a/{name}", "PUT /a/b/{n:int}"], prefix="/a")
    for path in ("", "/", "/b", "/a", "/a//b", "/a/b//", "/a/b/c", "/a/b/1/", "//a/b", "/aa/b"):
        assert refused(routes, "GET", path).status == (405 if path == "/a/b/1/" else 404), path
    error = refused(routes, "DELETE", "/a/b")
    # What both of the routes that fit take.
    assert (error.status, error.headers) == (405, [("Allow", "GET, HEAD, OPTIONS, POST, PUT")])
    assert refused(routes, "GET", "/a/x").headers == [("Allow", "OPTIONS, POST")]


def test_options_has_the_methods_of_a_path_and_changes_nothing() -> None:
    routes = router(["GET /a/b", "PUT /a/b", "POST /a/{name}"])
    asked = request("OPTIONS", "/a/b")
    row = asyncio.run(routes.find(asked))
    assert asked.endpoint is row
    assert not is_change(row)
    answer = asyncio.run(row.handler(asked))
    assert (answer.status, answer.body) == (200, b"GET, HEAD, OPTIONS, POST, PUT")
    assert dict(answer.headers)["Allow"] == "GET, HEAD, OPTIONS, POST, PUT"
    assert refused(routes, "OPTIONS", "/a").status == 404


def test_the_longest_prefix_counts_and_is_loaded_when_it_is_asked_for() -> None:
    loaded = []

    def load(name: str) -> list[Endpoint]:
        loaded.append(name)
        return [endpoint(f"GET {name}/{{name}}")]

    routes = Router({"/a": ["/a"], "/a/b": ["/a/b"]}, load)
    assert found(routes, "GET", "/a/b/c") == ("GET /a/b/{name}", {"name": "c"})
    assert loaded == ["/a/b"]
    assert found(routes, "GET", "/a/c") == ("GET /a/{name}", {"name": "c"})
    assert found(routes, "GET", "/a/d")[1] == {"name": "d"}
    assert loaded == ["/a/b", "/a"]


def test_an_endpoint_is_there_once_and_has_known_types() -> None:
    root = Node()
    root.add(endpoint("GET /a/{name}"))
    with pytest.raises(ValueError, match="twice"):
        root.add(endpoint("GET /a/{other}"))
    with pytest.raises(ValueError, match="float"):
        root.add(endpoint("GET /a/{n:float}"))


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_any_text_can_be_a_segment(texts: list[str]) -> None:
    from urllib.parse import quote

    texts = [each for each in texts if each.isprintable()] or ["x"]
    path = "".join("/" + quote(each, safe="") for each in texts)
    assert request("GET", path).segments() == texts


# --- the query and the body -------------------------------------------------------------------


def test_the_query_is_typed() -> None:
    asked = request("GET", "/a", "force=TRUE&count=-3&name=a%2Fb+c&empty=&count=4&flag=no&n=1_0")
    fields = {"force": False, "yes": True, "no": False, "flag": False}
    fields |= {"count": 1, "one": 1, "n": 0, "name": None, "empty": None, "none": None}
    rows = tuple(Query(name, "A field.", default) for name, default in fields.items())
    asked.endpoint = endpoint("GET /a")._replace(query=rows)
    assert [asked.argument(name) for name in ("force", "yes", "no")] == [True, True, False]
    assert asked.argument("flag") is False, "all but true is false, as in JAX-RS"
    assert [asked.argument(name) for name in ("count", "one")] == [-3, 1]
    assert [asked.argument(name) for name in ("name", "empty", "none")] == ["a/b c", "", None]
    with pytest.raises(HttpError) as caught:
        asked.argument("n")
    reason = "n must be a whole number of at most 64 bits, not '1_0'."
    assert (caught.value.status, str(caught.value)) == (400, reason)
    with pytest.raises(KeyError):
        asked.argument("other")
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
