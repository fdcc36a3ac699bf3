"""From a path to its endpoint.

A segment of an endpoint's path is literal or a parameter: `{name}` is any text that is not empty,
`{name:int}` a whole number of 32 bits, `{name:long}` one of 64. Where several fit, literal segments
are tried first and text last.

The endpoints below a prefix are loaded, and become a tree, when the first request for it comes; by
a thread, since importing them takes tens of milliseconds. With them come those that are refused
there (not_built.py): a path of Pulsar's is not taken for another one.
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


# The types of parameters, in the order in which they are tried. Each raises ValueError.
PARSERS: dict[str, Callable[[str], Any]] = {
    "int": partial(parse_int, maximum=INT_MAX),
    "long": parse_int,
    "text": _parse_text,
}

OPTIONS = "OPTIONS"
DOMAINS = ("persistent", "non-persistent")


class Node:
    """What may follow a segment: literal ones, parameters by type, or the end of a path."""

    __slots__ = ("literals", "methods", "parameters")

    def __init__(self) -> None:
        self.literals: dict[str, Node] = {}
        self.parameters: dict[str, Node] = {}
        # The endpoint of each method, and the names of the parameters on the way to it.
        self.methods: dict[str, tuple[Endpoint, tuple[str, ...]]] = {}

    def add(self, endpoint: Endpoint, *, unless_there: bool = False) -> None:
        """Adds one below this node, the root. Raises ValueError when it is there already, or does
        nothing.
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
            if unless_there:
                return
            raise ValueError(f"{endpoint.method} {endpoint.path} is there twice")
        node.methods[endpoint.method] = endpoint, tuple(names)

    def ends(
        self, segments: Sequence[str], at: int = 0, values: tuple[Any, ...] = ()
    ) -> Iterator[tuple[Node, tuple[Any, ...]]]:
        """Where the segments may lead, with the values of the parameters; the best one first."""
        if at == len(segments):
            if self.methods:
                yield self, values
            return
        literal = self.literals.get(segments[at])
        if literal is not None:
            yield from literal.ends(segments, at + 1, values)
        for kind, parse in PARSERS.items():
            child = self.parameters.get(kind)
            if child is None:
                continue
            try:
                value = parse(segments[at])
            except ValueError:
                continue
            yield from child.ends(segments, at + 1, (*values, value))


class Router:
    """All endpoints. `resources` has names for each prefix, `load` the endpoints of a name, and
    `refused` those that are answered with a refusal unless one of `load` does what they are for.
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
        """The endpoint of a request, which gets it and its parameters.

        HEAD is answered as GET, OPTIONS with the methods that a path takes. Raises HttpError: 404
        when nothing is there, 405 with Allow when there is, but not for this method.
        """
        segments = request.segments()
        allowed: set[str] = set()
        method = "GET" if request.method == "HEAD" else request.method
        prefix = self._prefix(segments)
        tree = Node() if prefix is None else await self._trees[prefix].get()
        for node, values in tree.ends(segments):
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
            handler = partial(_tell_methods, headers)
            request.endpoint = Endpoint(OPTIONS, request.path, handler, OPEN, "The methods.")
            return request.endpoint
        raise HttpError(405, f"{request.path} takes {methods}, not {request.method}.", headers)

    def _prefix(self, segments: list[str]) -> tuple[str, ...] | None:
        """The longest prefix of a path that has endpoints."""
        for length in range(min(self._prefix_length_max, len(segments)), 0, -1):
            prefix = tuple(segments[:length])
            if prefix in self._names:
                return prefix
        return None

    def _tree(self, prefix: tuple[str, ...]) -> Node:
        """The endpoints below a prefix."""
        tree = Node()
        for name in self._names[prefix]:
            for endpoint in self._load(name):
                tree.add(endpoint)
        for endpoint in self._refused():
            if _is_below(endpoint, prefix):
                tree.add(endpoint, unless_there=True)
        return tree


async def _tell_methods(headers: list[tuple[str, str]], request: Request[Any]) -> Response:
    return Response(headers[0][1].encode(), TEXT, headers=headers)


def _is_below(endpoint: Endpoint, prefix: tuple[str, ...]) -> bool:
    """Whether a path begins with a prefix. `{domain}` is what a prefix of topics has there."""
    segments = endpoint.path.split("/")[1:]
    return len(segments) >= len(prefix) and all(
        segment == part or (segment == "{domain}" and part in DOMAINS)
        for segment, part in zip(segments, prefix, strict=False)
    )
