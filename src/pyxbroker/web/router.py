"""The router: maps a path to its endpoint.

A segment of an endpoint's path is literal or a parameter: `{name}` matches any text that is not
empty, `{name:int}` a whole number of 32 bits, `{name:long}` one of 64. If several match, literal
segments are tried first and text last.

The endpoints below a prefix are loaded into a tree with the first request for the prefix, in a
thread because importing them takes tens of milliseconds. The refused endpoints below the prefix
(not_built.py) are added, so that a path of Pulsar's does not match another endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pyxbroker.auth.authorization import OPEN
from pyxbroker.base.off_loop import OffLoop
from pyxbroker.web.coercion import INT_MAX, parse_int
from pyxbroker.web.endpoint import Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.request import Request
from pyxbroker.web.response import TEXT, Response


def _parse_text(text: str) -> str:
    if not text:
        raise ValueError("empty")
    return text


# The types of parameters, in the order in which they are tried. Each parser raises ValueError.
PARSERS: dict[str, Callable[[str], Any]] = {
    "int": partial(parse_int, maximum=INT_MAX),
    "long": parse_int,
    "text": _parse_text,
}

OPTIONS = "OPTIONS"
DOMAINS = ("persistent", "non-persistent")


class Node:
    """A node of the tree: literal segments and parameters that may follow, and its endpoints."""

    __slots__ = ("literals", "methods", "parameters")

    def __init__(self) -> None:
        self.literals: dict[str, Node] = {}
        self.parameters: dict[str, Node] = {}
        # The endpoint of each method, and the names of the parameters in its path.
        self.methods: dict[str, tuple[Endpoint, tuple[str, ...]]] = {}

    def add(self, endpoint: Endpoint, *, if_absent: bool = False) -> None:
        """Add an endpoint below this root node.

        If it exists already, raises ValueError, or does nothing with `if_absent`.
        """
        node, names = self, []
        for segment in endpoint.path.split("/")[1:]:
            if segment.startswith("{"):
                name, _, kind = segment[1:-1].partition(":")
                names.append(name)
                children, key = node.parameters, kind or "text"
                if key not in PARSERS:
                    raise ValueError(f"{endpoint.path}: a parameter cannot be {key!r}")
            else:
                children, key = node.literals, segment
            node = children.setdefault(key, Node())
        if endpoint.method in node.methods:
            if if_absent:
                return
            raise ValueError(f"{endpoint.method} {endpoint.path} is defined twice")
        node.methods[endpoint.method] = endpoint, tuple(names)

    def matches(
        self, segments: Sequence[str], at: int = 0, values: tuple[Any, ...] = ()
    ) -> Iterator[tuple[Node, tuple[Any, ...]]]:
        """Yield the matching nodes with the values of their parameters, the best match first."""
        if at == len(segments):
            if self.methods:
                yield self, values
            return
        literal = self.literals.get(segments[at])
        if literal is not None:
            yield from literal.matches(segments, at + 1, values)
        for kind, parse in PARSERS.items():
            child = self.parameters.get(kind)
            if child is None:
                continue
            try:
                value = parse(segments[at])
            except ValueError:
                continue
            yield from child.matches(segments, at + 1, (*values, value))


class Router:
    """All endpoints, by path.

    `resources` maps each prefix to names, `load` returns the endpoints of a name. `refused` returns
    endpoints that are refused unless `load` returns one with the same path and method.
    """

    def __init__(
        self,
        resources: Mapping[str, Iterable[str]],
        load: Callable[[str], Iterable[Endpoint]],
        refused: Callable[[], Iterable[Endpoint]] = tuple,
    ) -> None:
        self._names = {tuple(path.split("/")[1:]): names for path, names in resources.items()}
        self._load = load
        self._refused = refused
        self._prefix_length_max = max(map(len, self._names))
        self._trees = {prefix: OffLoop(partial(self._tree, prefix)) for prefix in self._names}

    async def find(self, request: Request[Any]) -> Endpoint:
        """Return the endpoint of a request, and set it and its parameters on the request.

        HEAD is answered like GET, OPTIONS with the methods of a path. Raises HttpError 404 for an
        unknown path, and 405 with Allow for an unknown method.
        """
        segments = request.segments()
        allowed: set[str] = set()
        method = "GET" if request.method == "HEAD" else request.method
        prefix = self._prefix(segments)
        tree = Node() if prefix is None else await self._trees[prefix].get()
        for node, values in tree.matches(segments):
            found = node.methods.get(method)
            if found is not None:
                request.endpoint, names = found
                request.parameters = dict(zip(names, values, strict=True))
                return request.endpoint
            allowed.update(node.methods)
        if not allowed:
            raise HttpError(404, f"There is no resource {request.path}.")
        if "GET" in allowed:
            allowed.add("HEAD")
        methods = ", ".join(sorted(allowed))
        headers = [("Allow", ", ".join(sorted({*allowed, OPTIONS})))]
        if request.method == OPTIONS:
            handler = partial(_answer_options, headers)
            request.endpoint = Endpoint(OPTIONS, request.path, handler, OPEN, "The methods.")
            return request.endpoint
        raise HttpError(405, f"{request.path} takes {methods}, not {request.method}.", headers)

    def _prefix(self, segments: list[str]) -> tuple[str, ...] | None:
        """Return the longest known prefix of a path, or None."""
        for length in range(min(self._prefix_length_max, len(segments)), 0, -1):
            prefix = tuple(segments[:length])
            if prefix in self._names:
                return prefix
        return None

    def _tree(self, prefix: tuple[str, ...]) -> Node:
        """Return the endpoints below a prefix as a tree."""
        tree = Node()
        for name in self._names[prefix]:
            for endpoint in self._load(name):
                tree.add(endpoint)
        for endpoint in self._refused():
            if _is_below(endpoint, prefix):
                tree.add(endpoint, if_absent=True)
        return tree


async def _answer_options(headers: list[tuple[str, str]], request: Request[Any]) -> Response:
    return Response(headers[0][1].encode(), TEXT, headers=headers)


def _is_below(endpoint: Endpoint, prefix: tuple[str, ...]) -> bool:
    """Return True if a path begins with a prefix. `{domain}` matches each domain of topics."""
    segments = endpoint.path.split("/")[1:]
    return len(segments) >= len(prefix) and all(
        segment == part or (segment == "{domain}" and part in DOMAINS)
        for segment, part in zip(segments, prefix, strict=False)
    )
