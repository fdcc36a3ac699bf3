"""The states of a managed ledger."""

from __future__ import annotations

import enum


class State(enum.Enum):
    """What a managed ledger can do now; WRITE_FAILED and TERMINATED ones are read as ever,
    and so are those that are TOO_FEW_BOOKIES.
    """

    OPENING = "opening"
    OPEN = "open"
    CREATING_LEDGER = "creating a ledger"
    WRITE_FAILED = "not writable, since the journal failed"
    TOO_FEW_BOOKIES = "not writable, since there are too few bookies for its next ledger"
    FAILED = "failed"
    FENCED = "fenced"
    TERMINATED = "terminated"
    CLOSED = "closed"
