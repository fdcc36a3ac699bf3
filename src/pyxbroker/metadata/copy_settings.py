"""Settings for copies of the embedded store: their interval, and how many it retains."""

from __future__ import annotations

from pyxbroker.base.named_tuple import NamedTuple

COPY_INTERVAL_S = 3600
COPIES_KEPT = 3


class CopySettings(NamedTuple):
    """The values of metadataCopyIntervalSeconds, metadataCopiesKept and metadataCopiesKeptHours."""

    interval_s: float = COPY_INTERVAL_S
    kept: int = COPIES_KEPT
    kept_s: float = 0  # younger copies are retained, whatever their number
