"""The states of a managed ledger."""

from __future__ import annotations

import enum


class State(enum.Enum):
    """What a managed ledger can do now; WRITE_FAILED and TERMINATED ones are read as ever."""

    OPENING = "opening"
    OPEN = "open"
    CREATING_LEDGER = "creating a ledger"
    WRITE_FAILED = "not writable, since the journal failed"
    FAILED = "failed"
    FENCED = "fenced"
    TERMINATED = "terminated"
    CLOSED = "closed"
