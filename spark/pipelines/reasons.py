"""What an error of Spark's says, without what Spark puts around it."""

from __future__ import annotations

import re


def first_line(error: Exception) -> str:
    """Return the first line of an error of Spark's; plans and stacks follow it."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def plain_reason(error: Exception) -> str:
    """Return what an error of Spark's analysis says, without its class, SQLSTATE and position."""
    reason = re.sub(r"^\[[A-Z_.0-9]+\] ", "", first_line(error))
    return re.sub(r"\s*SQLSTATE: .*$", "", reason).rstrip(".")
