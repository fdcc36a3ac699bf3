"""What Python sees of metric_lines.pyx: lines of /metrics."""

def lines(
    name: bytes,
    labels: tuple[bytes, ...],
    rows: tuple[tuple[int | float, ...], ...],
    index: int,
) -> bytes:
    """`name`, a label and the number at an index of its row, for each row; each a line.

    A row is a tuple of integers and floats. Raises OverflowError for an integer of more than 40
    digits, TypeError for anything else, and IndexError for a row that is too short.
    """
