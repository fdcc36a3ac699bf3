"""The states of a managed ledger."""

from __future__ import annotations

import enum


class State(enum.Enum):
    """The state of a managed ledger. In WRITE_FAILED, TERMINATED and TOO_FEW_BOOKIES it can still
    be read.
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
