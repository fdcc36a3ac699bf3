"""Findings of a check of the embedded metadata store."""

from __future__ import annotations

import enum
from pathlib import Path

from pyxbroker.base.named_tuple import NamedTuple


class Severity(enum.Enum):
    """The severity: nothing was lost, it was repaired, or something is lost."""

    NOTE = "note"
    REPAIRED = "repaired"
    DAMAGED = "damaged"


class Finding(NamedTuple):
    """One problem, described by a sentence that includes the action taken."""

    severity: Severity
    file: Path
    sentence: str
