"""What Python sees of avro_columns.pyx: flat records of Avro as columns."""

BOOLEAN: int
INT: int
LONG: int
MILLISECONDS: int
FLOAT: int
DOUBLE: int
BYTES: int
FIXED: int
ENUM: int
"""Kinds of fields; see AvroKind in avro_columns.pxd."""

class Undecodable(ValueError):
    """A payload that is not what its schema says; the text says why."""

Step = tuple[int, int, int, int, tuple[bytes, ...] | None, bytes | None]
"""(kind, null_branch, column, size, symbols, default); see Step in avro_columns.pxd."""

def width_of(kind: int) -> int:
    """Of the column that values of a kind are in: bytes, 0 for bytes and text, -1 for bits."""

class AvroProgram:
    """How the fields that a schema writes come to columns."""

    def __init__(self, widths: tuple[int, ...], steps: list[Step]) -> None:
        """Each column has to be filled by one step, with values of its width. Raises ValueError."""
    @property
    def column_count(self) -> int: ...
