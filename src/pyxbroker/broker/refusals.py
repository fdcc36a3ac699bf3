"""What clients, and REST, are told of errors that are no answers by themselves: one table for both.

What such an error says may name files of the broker, or nodes of its metadata, and is for the log;
who is refused gets a sentence, and the reference that finds the line.
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
    TopicTerminated,
    with_reference,
)
from pyxbroker.base.log import Log
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.metadata.store import MetadataError
from pyxbroker.metadata.turns import WaitedTooLong
from pyxbroker.mledger.cursor import CursorClosed, CursorDeleted, CursorError
from pyxbroker.mledger.errors import (
    ManagedLedgerError,
    ManagedLedgerFenced,
    ManagedLedgerNotReady,
    ManagedLedgerTerminated,
)


class Told(NamedTuple):
    """An error of the rooms below, and what it is outside of the broker."""

    error: type[Exception]
    refusal: type[PulsarError]
    sentence: str | None  # None: what the error says itself, which names no file


# The first row that an error is of counts.
TABLE = (
    Told(
        WaitedTooLong,
        MetadataStoreError,
        "Others have been changing the same for too long; try again later.",
    ),
    Told(MetadataError, MetadataStoreError, MetadataStoreError.sentence),
    Told(ManagedLedgerTerminated, TopicTerminated, None),
    Told(
        ManagedLedgerFenced,
        ServiceNotReady,
        "The topic was opened by another broker, or anew; look it up again.",
    ),
    Told(ManagedLedgerNotReady, ServiceNotReady, None),
    Told(ManagedLedgerError, PersistenceError, None),
    Told(LedgerError, PersistenceError, None),
    Told(CursorDeleted, SubscriptionNotFound, None),
    Told(CursorClosed, ServiceNotReady, None),
    Told(CursorError, PersistenceError, None),
    Told(asyncio.TimeoutError, ServiceNotReady, "The broker did not answer in time."),
)


def refusal_of(error: Exception, log: Log, event: str, /, **about: object) -> PulsarError | None:
    """What is told of an error, whose cause is logged; None, and no line, for one that nobody
    foresaw."""
    for row in TABLE:
        if isinstance(error, row.error):
            # The storage or the metadata cannot do it now; where that comes from they say.
            reference = log.refused(event, error, **about)
            if row.sentence is None:
                return row.refusal(str(error))
            return row.refusal(with_reference(row.sentence, reference))
    return None
