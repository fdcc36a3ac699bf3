"""Compatibility of a writer's and a reader's Avro schema, by the rules of the specification,
"Schema Resolution", and with the verdicts of Apache Avro, which Pulsar uses.

- Promotions: int to long, float, double; long to float, double; float to double; string and bytes
  to each other.
- Arrays, maps: their items; fixed: short name and size; enums: short name. Symbols that the reader
  lacks matter only when one of them is read.
- Records: fields by name or by the reader's alias. A field that only the reader has needs a
  default. Names of records are compared only to choose a branch of a union.
- A writer's union: each of its branches. A reader's union: the branch of the same type and name;
  else a record of the same shape, preferring the same short name; else the first branch that the
  writer's type can be promoted to.
- Aliases of the reader's named types are their names in the writer.

Each pair of records is compared once, so the comparison of recursive schemas ends, and a work list
replaces recursion. Choosing among records by their shape may compare each pair of them;
PAIRS_PER_NODE limits that.
"""

from __future__ import annotations

from typing import NamedTuple

from pyxbroker.base.slices import Steps
from pyxbroker.schemas.avro import AvroSchema, Node

PAIRS_MIN = 10_000
PAIRS_PER_NODE = 50
"""Maximum number of compared pairs for each type of both schemas."""
PAIRS_PER_STEP = 100
SHAPES_MAX = 50
"""Nesting limit of choices by shape."""
FIELDS_SHOWN_MAX = 8

PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_OF_A_NAME = ("record", "enum", "fixed")


class TooComplex(Exception):
    """Comparing two schemas would take too long."""


class Path(NamedTuple):
    """The location of a type: a chain of fields, innermost first."""

    outer: Path | None
    part: str

    def __str__(self) -> str:
        parts = []
        at: Path | None = self
        while at is not None:
            parts.append(at.part)
            at = at.outer
        parts.reverse()
        if len(parts) > FIELDS_SHOWN_MAX:
            parts[FIELDS_SHOWN_MAX // 2 : -FIELDS_SHOWN_MAX // 2] = ["..."]
        return ".".join(parts)


def mismatch(writer: AvroSchema, reader: AvroSchema) -> Steps[str | None]:
    """Return why the reader cannot read the writer's data, or None. Raises TooComplex."""
    return (yield from _Resolution(writer, reader).find())


class _Resolution:
    def __init__(self, writer: AvroSchema, reader: AvroSchema) -> None:
        self._left = PAIRS_MIN + PAIRS_PER_NODE * (writer.nodes + reader.nodes)
        self._since_yield = 0
        self._todo: list[tuple[Node, Node, Path | None]] = [(writer.root, reader.root, None)]
        self._seen: set[tuple[Node, Node]] = set()
        self._aliases: dict[str, str] = {}  # alias of a reader's named type -> its name
        self._by_name: dict[Node, dict[str, int]] = {}  # branches of a reader's union
        self._fields: dict[tuple[Node, Node], dict[str, Node]] = {}
        self._field_aliases: dict[Node, dict[str, str]] = {}  # of the reader's records
        self._lacks: dict[tuple[Node, Node], str | None] = {}
        for node in reader.named.values():
            for alias in node.aliases:
                self._aliases[alias] = node.name

    def find(self) -> Steps[str | None]:
        """Return the first mismatch."""
        while self._todo:
            why = yield from self._compare(*self._todo.pop())
            if why is not None:
                return why
            yield from self._yield_if_due()
        return None

    def _yield_if_due(self) -> Steps[None]:
        """Yield after a number of comparisons."""
        if self._since_yield >= PAIRS_PER_STEP:
            self._since_yield = 0
            yield

    def _spend(self, pairs: int = 1) -> None:
        self._since_yield += pairs
        self._left -= pairs
        if self._left < 0:
            raise TooComplex(
                "they are too large to be compared: too many pairs of types must be compared"
            )

    def _name(self, writer: Node) -> str:
        return self._aliases.get(writer.name, writer.name)

    def _compare(self, writer: Node, reader: Node, path: Path | None) -> Steps[str | None]:
        """Compare two types, and queue the types inside."""
        self._spend()
        if writer.kind == "union":
            self._spend(len(writer.children))
            self._todo += [(branch, reader, path) for branch in writer.children]
            return None
        if reader.kind == "union":
            branch = yield from self._branch(writer, reader, 0)
            if branch is None:
                kinds = ", ".join(str(each)[:100] for each in reader.children[:FIELDS_SHOWN_MAX])
                return f"{_prefix(path)}{writer} matches no branch of the reader's union of {kinds}"
            self._todo.append((writer, branch, path))
            return None
        why = self._own_mismatch(writer, reader)
        if why is not None:
            return _prefix(path) + why
        if writer.kind == "record":
            if (writer, reader) not in self._seen:
                self._seen.add((writer, reader))
                of_writer = self._fields_of(writer, reader)
                for field in reader.fields:
                    found = of_writer.get(field.name)
                    if found is not None:
                        self._todo.append((found, field.node, Path(path, field.name)))
        elif writer.children:
            what = "items" if writer.kind == "array" else "values"
            self._todo.append((writer.children[0], reader.children[0], Path(path, what)))
        return None

    def _own_mismatch(self, writer: Node, reader: Node) -> str | None:
        """Return the mismatch of two types themselves; neither is a union."""
        if writer.kind != reader.kind:
            if reader.kind in PROMOTIONS.get(writer.kind, ()):
                return None
            return f"the writer's {writer} cannot be read as {reader}"
        if writer.kind in ("enum", "fixed"):
            if _short(self._name(writer)) != _short(reader.name):
                return f"the writer's {writer} cannot be read as {reader}"
            if writer.size != reader.size:
                return (
                    f"the writer's {writer} has {writer.size} bytes, the reader's has {reader.size}"
                )
        return self._lacking(writer, reader) if writer.kind == "record" else None

    def _lacking(self, writer: Node, reader: Node) -> str | None:
        """Return the error for a reader's field that the writer lacks and that has no default."""
        pair = (writer, reader)
        if pair not in self._lacks:
            of_writer = self._fields_of(writer, reader)
            self._lacks[pair] = next(
                (
                    f"the reader's field '{field.name}' of {reader.name} has no default, and the"
                    " writer does not have it"
                    for field in reader.fields
                    if not field.has_default and field.name not in of_writer
                ),
                None,
            )
        return self._lacks[pair]

    def _fields_of(self, writer: Node, reader: Node) -> dict[str, Node]:
        """Return the fields of a writer's record, by the names that the reader has for them."""
        pair = (writer, reader)
        found = self._fields.get(pair)
        if found is None:
            self._spend(len(writer.fields) + len(reader.fields))
            # Aliases apply only if the records have the same name.
            aliases = self._aliases_of(reader) if self._name(writer) == reader.name else {}
            found = {aliases.get(each.name, each.name): each.node for each in writer.fields}
            self._fields[pair] = found
        return found

    def _aliases_of(self, reader: Node) -> dict[str, str]:
        """Return the aliases of a reader's record. They are cached: a schema has no more of them
        than values, however many records are compared with this one.
        """
        found = self._field_aliases.get(reader)
        if found is None:
            found = {alias: each.name for each in reader.fields for alias in each.aliases}
            self._field_aliases[reader] = found
            self._since_yield += len(found)
        return found

    # --- unions of the reader -----------------------------------------------------------------

    def _branch(self, writer: Node, union: Node, depth: int) -> Steps[Node | None]:
        """Return the branch that reads the writer's type, or None."""
        index = self._by_name.get(union)
        if index is None:
            self._spend(len(union.children))
            index = {each.name or each.kind: i for i, each in enumerate(union.children)}
            self._by_name[union] = index
        is_named = writer.kind in _OF_A_NAME
        at = index.get(self._name(writer) if is_named else writer.kind)
        if at is not None and union.children[at].kind == writer.kind:
            return union.children[at]
        if writer.kind == "record":
            found = yield from self._branch_by_shape(writer, union, depth)
            if found is not None:
                return found
        promoted = PROMOTIONS.get(writer.kind, ())
        return next((each for each in union.children if each.kind in promoted), None)

    def _branch_by_shape(self, writer: Node, union: Node, depth: int) -> Steps[Node | None]:
        """Return the record of a union that has the shape of the writer's, or None."""
        found = None
        short = _short(self._name(writer))
        for branch in union.children:
            if branch.kind != "record":
                continue
            self._spend()
            yield from self._yield_if_due()
            is_named_so = _short(branch.name) == short
            if found is None or is_named_so:
                has_shape = yield from self._has_shape(writer, branch, depth)
                found = branch if has_shape else found
        return found

    def _has_shape(self, writer: Node, reader: Node, depth: int) -> Steps[bool]:
        """Return True if a record is readable, as far as its own fields determine it."""
        if depth >= SHAPES_MAX:
            raise TooComplex("they are too large to be compared: unions are nested too deeply")
        if self._lacking(writer, reader) is not None:
            return False
        of_writer = self._fields_of(writer, reader)
        for field in reader.fields:
            found = of_writer.get(field.name)
            if found is None or found.kind == "union":
                continue
            self._spend()
            yield from self._yield_if_due()
            if field.node.kind == "union":
                if (yield from self._branch(found, field.node, depth + 1)) is None:
                    return False
            elif self._own_mismatch(found, field.node) is not None:
                return False
        return True


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _prefix(path: Path | None) -> str:
    return "" if path is None else f"field '{path}': "
