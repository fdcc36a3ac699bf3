"""The reasons in Spark's error messages, without their context."""

from __future__ import annotations

import re


def first_line(error: Exception) -> str:
    """Return the first line of an error of Spark. Plans and stacks follow it."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def plain_reason(error: Exception) -> str:
    """Return the reason of an analysis error, without its class, SQLSTATE and position."""
    reason = re.sub(r"^\[[A-Z_.0-9]+\] ", "", first_line(error))
    return re.sub(r"\s*SQLSTATE: .*$", "", reason).rstrip(".")
