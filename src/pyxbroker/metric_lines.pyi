"""Type stub of metric_lines.pyx: lines of /metrics."""

def lines(
    name: bytes,
    labels: tuple[bytes, ...],
    rows: tuple[tuple[int | float, ...], ...],
    index: int,
) -> bytes:
    """Return one line per row: `name`, the row's label, and its number at `index`.

    A row is a tuple of integers and floats. Raise OverflowError for an integer of more than 40
    digits, TypeError for other types, and IndexError for a row that is too short.
    """
