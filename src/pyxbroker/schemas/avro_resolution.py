"""Whether what is written with one Avro schema can be read with another: the rules of the
specification, "Schema Resolution", with the verdicts of Apache Avro, which Pulsar asks.

- Promotions: int to long, float, double; long to float, double; float to double; string and bytes
  to each other.
- Arrays, maps: their items; fixed: short name and size; enums: short name. Symbols that the reader
  does not have count only when one of them is read.
- Records: fields by name or by the reader's alias for it; what only the reader has needs a default.
  Names of records are not compared, but where a union has to choose.
- A writer's union: each of its branches. A reader's union: the branch of the same type and name;
  else a record of the same shape, one of the same short name before others; else the first that the
  writer's type can be promoted to.
- Aliases of the reader's named types are their names in the writer.

A pair of records is looked at once, so recursive schemas have an end, and a list of what is still
to be looked at takes the place of a stack. Choosing among records by their shape may ask for each
pair of them; PAIRS_PER_NODE bounds that.
"""

from __future__ import annotations

from typing import NamedTuple

from pyxbroker.base.slices import Steps
from pyxbroker.schemas.avro import AvroSchema, Node

PAIRS_MIN = 10_000
PAIRS_PER_NODE = 50
"""Pairs of types that are looked at for each type of both schemas, at most."""
PAIRS_PER_STEP = 100
SHAPES_MAX = 50
"""Choices by shape within choices by shape."""
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
    """To compare two schemas would take too long."""


class Path(NamedTuple):
    """Where a type is: a chain of fields, the innermost first."""

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
    """Why the reader cannot read what the writer writes, None when it can. Raises TooComplex."""
    return (yield from _Resolution(writer, reader).find())


class _Resolution:
    def __init__(self, writer: AvroSchema, reader: AvroSchema) -> None:
        self._left = PAIRS_MIN + PAIRS_PER_NODE * (writer.nodes + reader.nodes)
        self._since_rest = 0
        self._todo: list[tuple[Node, Node, Path | None]] = [(writer.root, reader.root, None)]
        self._seen: set[tuple[Node, Node]] = set()
        self._aliases: dict[str, str] = {}  # of named types: what the writer may call them
        self._by_name: dict[Node, dict[str, int]] = {}  # branches of a reader's union
        self._fields: dict[tuple[Node, Node], dict[str, Node]] = {}
        self._field_aliases: dict[Node, dict[str, str]] = {}  # of records of the reader
        self._lacks: dict[tuple[Node, Node], str | None] = {}
        for node in reader.named.values():
            for alias in node.aliases:
                self._aliases[alias] = node.name

    def find(self) -> Steps[str | None]:
        """The first thing that does not fit."""
        while self._todo:
            why = yield from self._look(*self._todo.pop())
            if why is not None:
                return why
            yield from self._rest()
        return None

    def _rest(self) -> Steps[None]:
        """Lets others run when enough was looked at."""
        if self._since_rest >= PAIRS_PER_STEP:
            self._since_rest = 0
            yield

    def _spend(self, pairs: int = 1) -> None:
        self._since_rest += pairs
        self._left -= pairs
        if self._left < 0:
            raise TooComplex(
                "they are too large to be compared: too many pairs of types have to be looked at"
            )

    def _name(self, writer: Node) -> str:
        return self._aliases.get(writer.name, writer.name)

    def _look(self, writer: Node, reader: Node, path: Path | None) -> Steps[str | None]:
        """Compares two types, and notes what is in them."""
        self._spend()
        if writer.kind == "union":
            self._spend(len(writer.children))
            self._todo += [(branch, reader, path) for branch in writer.children]
            return None
        if reader.kind == "union":
            branch = yield from self._branch(writer, reader, 0)
            if branch is None:
                kinds = ", ".join(str(each)[:100] for each in reader.children[:FIELDS_SHOWN_MAX])
                return f"{_at(path)}{writer} is none of the reader's union of {kinds}"
            self._todo.append((writer, branch, path))
            return None
        why = self._own_mismatch(writer, reader)
        if why is not None:
            return _at(path) + why
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
        """What does not fit in two types themselves; neither is a union."""
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
        """Which field of a record its writer does not have, where there is no default."""
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
        """The fields of a writer's record under the names that its reader has for them."""
        pair = (writer, reader)
        found = self._fields.get(pair)
        if found is None:
            self._spend(len(writer.fields) + len(reader.fields))
            # Aliases are those of the reader's record that the writer's is called.
            aliases = self._aliases_of(reader) if self._name(writer) == reader.name else {}
            found = {aliases.get(each.name, each.name): each.node for each in writer.fields}
            self._fields[pair] = found
        return found

    def _aliases_of(self, reader: Node) -> dict[str, str]:
        """What else a writer may call the fields of a reader's record; made once, as a schema has
        no more of them than values, however many records are compared with this one.
        """
        found = self._field_aliases.get(reader)
        if found is None:
            found = {alias: each.name for each in reader.fields for alias in each.aliases}
            self._field_aliases[reader] = found
            self._since_rest += len(found)
        return found

    # --- unions of the reader -----------------------------------------------------------------

    def _branch(self, writer: Node, union: Node, depth: int) -> Steps[Node | None]:
        """The branch that reads what the writer writes; None: there is none."""
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
            found = yield from self._of_shape(writer, union, depth)
            if found is not None:
                return found
        promoted = PROMOTIONS.get(writer.kind, ())
        return next((each for each in union.children if each.kind in promoted), None)

    def _of_shape(self, writer: Node, union: Node, depth: int) -> Steps[Node | None]:
        """The record of a union that has the shape of the writer's."""
        found = None
        short = _short(self._name(writer))
        for branch in union.children:
            if branch.kind != "record":
                continue
            self._spend()
            yield from self._rest()
            is_named_so = _short(branch.name) == short
            if found is None or is_named_so:
                has_shape = yield from self._has_shape(writer, branch, depth)
                found = branch if has_shape else found
        return found

    def _has_shape(self, writer: Node, reader: Node, depth: int) -> Steps[bool]:
        """Whether a record can be read, as far as its own fields say."""
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
            yield from self._rest()
            if field.node.kind == "union":
                if (yield from self._branch(found, field.node, depth + 1)) is None:
                    return False
            elif self._own_mismatch(found, field.node) is not None:
                return False
        return True


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _at(path: Path | None) -> str:
    return "" if path is None else f"field '{path}': "
