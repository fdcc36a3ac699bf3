"""Translation of internal errors for clients and REST: one table for both.

The text of such an error may name files of the broker or nodes of its metadata, so it only goes to
the log. The client gets a sentence, and a reference to the line of the log.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from pyxbroker.base.errors import (
    MetadataStoreError,
    PersistenceError,
    PulsarError,
    ServiceNotReady,
    SubscriptionNotFound,
    TooFewBookies,
    TopicTerminated,
    with_reference,
)
from pyxbroker.base.log import Log
from pyxbroker.ledger.errors import LedgerError, NotEnoughBookies
from pyxbroker.metadata.store import MetadataError
from pyxbroker.metadata.turns import WaitedTooLong
from pyxbroker.mledger.cursor import CursorClosed, CursorDeleted, CursorError
from pyxbroker.mledger.errors import (
    ManagedLedgerError,
    ManagedLedgerFenced,
    ManagedLedgerNotReady,
    ManagedLedgerTerminated,
    ManagedLedgerTooFewBookies,
)


class Translation(NamedTuple):
    """Maps an internal error to the error for the client."""

    error: type[Exception]
    refusal: type[PulsarError]
    sentence: str | None  # None: the error's own text, which names no file


# The first matching row applies.
TABLE = (
    Translation(
        WaitedTooLong,
        MetadataStoreError,
        "Other requests have been changing this for too long; try again later.",
    ),
    Translation(MetadataError, MetadataStoreError, MetadataStoreError.sentence),
    Translation(ManagedLedgerTerminated, TopicTerminated, None),
    Translation(
        ManagedLedgerFenced,
        ServiceNotReady,
        "The topic was loaded by another broker, or again by this one; look it up again.",
    ),
    Translation(ManagedLedgerNotReady, ServiceNotReady, None),
    Translation(ManagedLedgerTooFewBookies, TooFewBookies, None),
    Translation(NotEnoughBookies, TooFewBookies, None),
    Translation(ManagedLedgerError, PersistenceError, None),
    Translation(LedgerError, PersistenceError, None),
    Translation(CursorDeleted, SubscriptionNotFound, None),
    Translation(CursorClosed, ServiceNotReady, None),
    Translation(CursorError, PersistenceError, None),
    Translation(asyncio.TimeoutError, ServiceNotReady, "The broker did not answer in time."),
)


def refusal_of(error: Exception, log: Log, event: str, /, **about: object) -> PulsarError | None:
    """Return the error for the client, and log its cause. Return None, without a log line, for an
    unexpected error.
    """
    for row in TABLE:
        if isinstance(error, row.error):
            # A temporary failure. Storage or metadata have logged its cause.
            reference = log.refused(event, error, **about)
            if row.sentence is None:
                return row.refusal(str(error))
            return row.refusal(with_reference(row.sentence, reference))
    return None
