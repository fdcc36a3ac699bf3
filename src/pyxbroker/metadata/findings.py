"""What a check of the embedded metadata store finds."""

from __future__ import annotations

import enum
from pathlib import Path

from pyxbroker.base.named_tuple import NamedTuple


class Severity(enum.Enum):
    """How bad it is: nothing was lost, it was repaired, or something cannot be had any more."""

    NOTE = "note"
    REPAIRED = "repaired"
    DAMAGED = "damaged"


class Finding(NamedTuple):
    """One thing that is not as it should be, in a sentence that says what was done about it."""

    severity: Severity
    file: Path
    sentence: str
