"""Parsing of Avro schemas from JSON like Apache Avro, within limits.

A schema becomes a graph of nodes. A named type has one node, however often it is referenced, so a
recursive schema is a cycle. Parsing takes steps (slices.Steps) of some nodes each. Nesting, bytes
and values are limited. The fingerprint covers everything that makes schemas equal: names, types,
fields, defaults and further attributes, but neither `doc` nor `aliases`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from pyxbroker.base.slices import Steps
from pyxbroker.schemas.values import MalformedSchema

NESTING_MAX = 100
"""Types within types. Readers recurse for each level, and legitimate schemas have fewer."""
VALUES_MAX = 20_000
"""Approximate limit of JSON values: it counts commas, colons and brackets. Parsing takes 5 ms."""
NAME_MAX = 1024
"""Characters of a full name. Names of types repeat their namespace, so a long namespace would cost
its length for each type."""
NODES_PER_STEP = 100
NAMES_PER_STEP = 500
SHOWN_MAX = 100  # characters of a client's text in an error message

PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
NAMED = frozenset(("record", "error", "enum", "fixed"))

_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_RESERVED = frozenset(
    ("doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type", "aliases")
)
_RESERVED_OF_FIELDS = frozenset(("default", "doc", "name", "order", "type", "aliases"))


class Field:
    """A field of a record."""

    __slots__ = ("aliases", "has_default", "name", "node")

    def __init__(self, name: str, node: Node, has_default: bool, aliases: tuple[str, ...]) -> None:
        self.name = name
        self.node = node
        self.has_default = has_default
        self.aliases = aliases


class Node:
    """One type. `name` is the full name of a named type. `children` are the branches of a union, or
    the single type of an array's items or a map's values.
    """

    __slots__ = ("aliases", "children", "fields", "kind", "name", "size", "symbols")

    def __init__(self, kind: str, name: str = "") -> None:
        self.kind = kind
        self.name = name
        self.aliases: tuple[str, ...] = ()
        self.children: list[Node] = []
        self.fields: list[Field] = []
        self.size = 0  # of a fixed
        self.symbols: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else self.kind


class AvroSchema:
    """A parsed schema."""

    __slots__ = ("fingerprint", "named", "nodes", "root")

    def __init__(
        self, root: Node, named: Mapping[str, Node], nodes: int, fingerprint: bytes
    ) -> None:
        self.root = root
        self.named = named
        self.nodes = nodes
        self.fingerprint = fingerprint


def parse(data: bytes) -> Steps[AvroSchema]:
    """Parse a definition. Raises MalformedSchema."""
    values = sum(map(data.count, (b",", b":", b"[", b"{")))
    if values > VALUES_MAX:
        raise MalformedSchema(f"it has {values} values, and at most {VALUES_MAX} are allowed")
    yield  # releasing an earlier schema takes as long, so it happens in another step
    try:
        value = json.loads(data.decode(), parse_constant=_no_number)
    except UnicodeDecodeError:
        raise MalformedSchema("it is not UTF-8 text") from None
    except RecursionError:
        raise MalformedSchema("its JSON is nested too deeply") from None
    except ValueError as error:
        raise MalformedSchema(f"it is not JSON: {error}") from None
    yield
    parser = _Parser()
    try:
        root = yield from parser.type(value, "", 0)
    except RecursionError:
        raise MalformedSchema("its JSON is nested too deeply") from None
    yield
    return AvroSchema(root, parser.named, parser.nodes, parser.hash.digest())


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


class _Parser:
    def __init__(self) -> None:
        self.named: dict[str, Node] = {}
        self.nodes = 0
        self.hash = hashlib.sha256()

    def _hash_words(self, *words: str) -> None:
        """Add words to the fingerprint, in parsing order."""
        for word in words:
            data = word.encode("utf-8", "surrogatepass")
            self.hash.update(len(data).to_bytes(4, "big") + data)

    def type(self, value: Any, namespace: str, depth: int) -> Steps[Node]:
        """Parse a type within a namespace."""
        self.nodes += 1
        if self.nodes % NODES_PER_STEP == 0:
            yield
        if depth > NESTING_MAX:
            raise MalformedSchema(f"types are nested more than {NESTING_MAX} deep")
        if isinstance(value, str):
            return self._reference(value, namespace)
        if isinstance(value, list):
            return (yield from self._union(value, namespace, depth))
        if not isinstance(value, dict):
            raise MalformedSchema(f"{_shown(value)} is not a schema")
        kind = value.get("type")
        if not isinstance(kind, str):
            raise MalformedSchema(f"no type: {_shown(value)}")
        if kind in PRIMITIVES:
            self._hash_words(kind)
            self._hash_attributes(value, _RESERVED)
            return Node(kind)
        if kind in NAMED:
            return (yield from self._named_type(value, kind, namespace, depth))
        if kind in ("array", "map"):
            node = Node(kind)
            key = "items" if kind == "array" else "values"
            if key not in value:
                raise MalformedSchema(f"the {kind} has no type of its {key}: {_shown(value)}")
            self._hash_words(kind)
            self._hash_attributes(value, _RESERVED)
            node.children.append((yield from self.type(value[key], namespace, depth + 1)))
            return node
        # A reference to a type that is already defined.
        return self._reference(kind, namespace)

    def _reference(self, name: str, namespace: str) -> Node:
        if name in PRIMITIVES:
            self._hash_words(name)
            return Node(name)
        found = self.named.get(name if "." in name or not namespace else f"{namespace}.{name}")
        if found is None:
            raise MalformedSchema(f"{name[:SHOWN_MAX]!r} is not a defined name")
        self._hash_words("", found.name)
        return found

    def _union(self, value: list[Any], namespace: str, depth: int) -> Steps[Node]:
        node = Node("union")
        self._hash_words("union", str(len(value)))
        seen = set()
        for each in value:
            branch = yield from self.type(each, namespace, depth + 1)
            if branch.kind == "union":
                raise MalformedSchema("a union is nested directly in another union")
            key = branch.name or branch.kind
            if key in seen:
                raise MalformedSchema(f"a union has {key!r} twice")
            seen.add(key)
            node.children.append(branch)
        return node

    def _named_type(
        self, value: dict[str, Any], kind: str, namespace: str, depth: int
    ) -> Steps[Node]:
        own = value.get("namespace")
        name = _full_name(value.get("name"), own if isinstance(own, str) else namespace)
        if name in self.named:
            raise MalformedSchema(f"{name!r} is defined twice")
        space = name.rpartition(".")[0]
        node = Node("record" if kind == "error" else kind, name)
        aliases = []
        for number, each in enumerate(_aliases(value), start=1):
            aliases.append(_full_name(each, space))
            if number % NAMES_PER_STEP == 0:
                yield
        node.aliases = tuple(aliases)
        self.named[name] = node
        self._hash_words(kind, name)
        reserved = _RESERVED | {"default"} if kind == "enum" else _RESERVED
        self._hash_attributes(value, reserved)
        if kind == "enum":
            node.symbols = yield from self._symbols(value)
        elif kind == "fixed":
            node.size = self._size(value)
        else:
            yield from self._fields(node, value.get("fields"), space, depth)
        return node

    def _symbols(self, value: dict[str, Any]) -> Steps[tuple[str, ...]]:
        symbols = value.get("symbols")
        if not isinstance(symbols, list):
            raise MalformedSchema(f"the enum has no symbols: {_shown(value)}")
        self._hash_words(str(len(symbols)))
        for number, each in enumerate(symbols, start=1):
            self._hash_words(_check_name(each))
            if number % NAMES_PER_STEP == 0:
                yield
        if len(set(symbols)) < len(symbols):
            raise MalformedSchema(f"the enum has a symbol twice: {_shown(symbols)}")
        default = value.get("default")
        if isinstance(default, str) and default not in symbols:
            shown = default[:SHOWN_MAX]
            raise MalformedSchema(f"the default {shown!r} is not a symbol of the enum")
        self._hash_words(json.dumps(default))
        return tuple(symbols)

    def _size(self, value: dict[str, Any]) -> int:
        size = value.get("size")
        if type(size) is not int or size < 0:
            shown = _shown(value)
            raise MalformedSchema(f"the size of the fixed is not a number of bytes: {shown}")
        self._hash_words(str(size))
        return size

    def _fields(self, node: Node, fields: Any, space: str, depth: int) -> Steps[None]:
        if not isinstance(fields, list):
            raise MalformedSchema(f"the record {node.name} has no fields")
        self._hash_words(str(len(fields)))
        names = set()
        for each in fields:
            if not isinstance(each, dict):
                raise MalformedSchema(f"{_shown(each)} is not a field")
            name = _check_name(each.get("name"))
            if name in names:
                raise MalformedSchema(f"the record {node.name} has the field {name!r} twice")
            names.add(name)
            if "type" not in each:
                raise MalformedSchema(f"the field {name!r} of {node.name} has no type")
            self._hash_words(name, "" if "default" not in each else _dumped(each["default"]))
            order = each.get("order")
            if order is not None and order not in ("ascending", "descending", "ignore"):
                raise MalformedSchema(f"{_shown(order)} is not an order of a field")
            if order not in (None, "ascending"):
                self._hash_words("order", order)
            self._hash_attributes(each, _RESERVED_OF_FIELDS)
            of_field = yield from self.type(each["type"], space, depth + 1)
            node.fields.append(Field(name, of_field, "default" in each, _aliases(each)))

    def _hash_attributes(self, value: dict[str, Any], reserved: frozenset[str]) -> None:
        if len(value) > 1:
            further = value.keys() - reserved
            if further:
                self._hash_words("further", _dumped({each: value[each] for each in further}))


def _full_name(name: Any, namespace: str) -> str:
    """Return a full name. Raises MalformedSchema."""
    if not isinstance(name, str) or not name:
        raise MalformedSchema(f"{_shown(name)} is not a name")
    if "." not in name and namespace:
        name = f"{namespace}.{name}"
    if len(name) > NAME_MAX:
        raise MalformedSchema(f"the name {_shown(name)} has more than {NAME_MAX} characters")
    for part in name.split("."):
        _check_name(part)
    return name


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise MalformedSchema(
            f"{_shown(name)} is not a name: letters, digits, _ and $, no digit first"
        )
    return name


def _aliases(value: dict[str, Any]) -> tuple[str, ...]:
    aliases = value.get("aliases")
    if aliases is None:
        return ()
    if not isinstance(aliases, list) or not all(isinstance(each, str) for each in aliases):
        raise MalformedSchema(f"aliases are a list of names, not {_shown(aliases)}")
    return tuple(aliases)


def _dumped(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _shown(value: Any) -> str:
    """Format a client's value for an error message, without encoding long values."""
    if isinstance(value, dict):
        return "{" + ", ".join(repr(key)[:SHOWN_MAX] for key in list(value)[:5]) + "}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return repr(value if not isinstance(value, str) else value[:SHOWN_MAX])[:SHOWN_MAX]
