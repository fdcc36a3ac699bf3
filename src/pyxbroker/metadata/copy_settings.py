"""When the embedded store makes copies of itself, and how many it keeps."""

from __future__ import annotations

from pyxbroker.base.named_tuple import NamedTuple

COPY_INTERVAL_S = 3600
COPIES_KEPT = 3


class CopySettings(NamedTuple):
    """The values of metadataCopyIntervalSeconds, metadataCopiesKept and metadataCopiesKeptHours."""

    interval_s: float = COPY_INTERVAL_S
    kept: int = COPIES_KEPT
    kept_s: float = 0  # younger ones are kept whatever their number
