"""Type stub of avro_columns.pyx: flat Avro records as columns."""

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
    """Raised for a payload that does not match its schema; the message names the reason."""

Step = tuple[int, int, int, int, tuple[bytes, ...] | None, bytes | None]
"""(kind, null_branch, column, size, symbols, default); see Step in avro_columns.pxd."""

def width_of(kind: int) -> int:
    """Return the width of columns for a kind: bytes, 0 for bytes and text, -1 for bits."""

class AvroProgram:
    """Compiled steps that decode records of one schema into columns."""

    def __init__(self, widths: tuple[int, ...], steps: list[Step]) -> None:
        """Raise ValueError unless exactly one step fills each column, with values of its width."""
    @property
    def column_count(self) -> int: ...
