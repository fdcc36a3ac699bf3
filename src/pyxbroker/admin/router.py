"""From a path to the function that answers it.

The routes of a resource are a table in its file: `ROUTES = (("GET", "/a/{name}/b", handler), ...)`.
A segment is literal or a parameter: `{name}` is any text that is not empty, `{name:int}` a whole
number, `{name:bool}` true or false. Where several fit, literal segments are tried first and text
last.

Which files hold the routes below a prefix is a table too. They are imported, and their routes
become a tree, when the first request for the prefix comes.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyxbroker.admin.errors import HttpError
from pyxbroker.admin.request import Request, parse_bool, parse_int
from pyxbroker.admin.response import Response

Handler = Callable[[Request], Awaitable[Response]]
Route = tuple[str, str, Handler]


def _parse_text(text: str) -> str:
    if not text:
        raise ValueError("empty")
    return text


# The types of parameters, in the order in which they are tried. Each raises ValueError.
PARSERS: dict[str, Callable[[str], Any]] = {
    "int": parse_int,
    "bool": parse_bool,
    "text": _parse_text,
}


class Node:
    """What may follow a segment: literal ones, parameters by type, or the end of a path."""

    __slots__ = ("literals", "methods", "parameters")

    def __init__(self) -> None:
        self.literals: dict[str, Node] = {}
        self.parameters: dict[str, Node] = {}
        # The handler of each method, and the names of the parameters on the way to it.
        self.methods: dict[str, tuple[Handler, tuple[str, ...]]] = {}

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Adds a route below this node, the root. Raises ValueError when it is there already."""
        node, names = self, []
        for segment in path.split("/")[1:]:
            if segment.startswith("{"):
                name, _, kind = segment[1:-1].partition(":")
                names.append(name)
                children, key = node.parameters, kind or "text"
                if key not in PARSERS:
                    raise ValueError(f"{path}: a parameter cannot be {key!r}")
            else:
                children, key = node.literals, segment
            node = children.setdefault(key, Node())
        if method in node.methods:
            raise ValueError(f"{method} {path} has two handlers")
        node.methods[method] = handler, tuple(names)

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
    """All routes. `resources` names, for each prefix, the modules that have its routes."""

    def __init__(self, resources: Mapping[str, Iterable[str]]) -> None:
        self._modules = {tuple(path.split("/")[1:]): names for path, names in resources.items()}
        self._prefix_length_max = max(map(len, self._modules))
        self._trees: dict[tuple[str, ...], Node] = {}

    def find(self, request: Request) -> Handler:
        """The handler of a request; sets its parameters.

        HEAD is answered as GET. Raises HttpError: 404 when nothing is there, 405 with Allow when
        there is, but not for this method.
        """
        segments = request.segments()
        allowed: set[str] = set()
        method = "GET" if request.method == "HEAD" else request.method
        for node, values in self._tree(segments).ends(segments):
            found = node.methods.get(method)
            if found is not None:
                handler, names = found
                request.parameters = dict(zip(names, values, strict=True))
                return handler
            allowed.update(node.methods)
        if not allowed:
            raise HttpError(404, f"There is no resource {request.path}.")
        if "GET" in allowed:
            allowed.add("HEAD")
        methods = ", ".join(sorted(allowed))
        raise HttpError(
            405, f"{request.path} takes {methods}, not {request.method}.", [("Allow", methods)]
        )

    def _tree(self, segments: list[str]) -> Node:
        """The routes below the longest prefix of the path that has some."""
        for length in range(min(self._prefix_length_max, len(segments)), 0, -1):
            prefix = tuple(segments[:length])
            if prefix in self._modules:
                tree = self._trees.get(prefix)
                if tree is None:
                    tree = self._trees[prefix] = _load(self._modules[prefix])
                return tree
        return Node()


def _load(modules: Iterable[str]) -> Node:
    root = Node()
    for name in modules:
        routes: Iterable[Route] = importlib.import_module(name).ROUTES
        for method, path, handler in routes:
            root.add(method, path, handler)
    return root
