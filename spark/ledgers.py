"""The ledgers of a topic, as REST tells them (internalStats): what ranges are cut by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from http.client import responses
from typing import Any, NamedTuple
from urllib.parse import quote

from pyxbroker.base.topic_name import TopicName
from pyxbroker.client.admin import AdminClient
from pyxbroker.client.errors import (
    BadRedirect,
    ClientError,
    ConnectionFailed,
    HttpRefused,
    RedirectLoop,
    UntrustedCertificate,
)
from pyxbroker.client.settings import ClientSettings
from pyxbroker.spark.broker_connection import Runner
from pyxbroker.spark.errors import NotReachable, PulsarSparkError, Refused, TopicMissing
from pyxbroker.spark.positions import Position, parse
from pyxbroker.spark.security import Security, spark_error

NO_OWNER = 412
"""Of a topic that no broker has yet, as when brokers start."""


class Ledger(NamedTuple):
    """A ledger of a topic: how many entries of how many bytes it has so far."""

    id: int
    entries: int
    size: int
    is_open: bool

    @property
    def bytes_per_entry(self) -> int:
        """About, and 1 at least."""
        return max(1, self.size // max(1, self.entries))

    def with_bytes_per_entry(self, size: int) -> Ledger:
        return self._replace(size=size * self.entries)


class Stored(NamedTuple):
    """What a broker has of a topic."""

    ledgers: list[Ledger]
    """In order; the last one is written."""

    confirmed: Position | None
    """The last entry that came since the topic was loaded, or was there then, also if it was
    deleted since; entry -1: there was none. None: it does not say.
    """

    marks: Mapping[str, Position]
    """Up to where each durable subscription has acknowledged all."""


def ledgers_of(url: str, topic: str, timeout_s: float, security: Security) -> list[Ledger]:
    """In order. Raises NotReachable, TopicMissing, PulsarSparkError."""
    return stored_of(url, topic, timeout_s, security).ledgers


def stored_of(url: str, topic: str, timeout_s: float, security: Security) -> Stored:
    """Raises NotReachable, TopicMissing, PulsarSparkError."""
    name = TopicName.get(topic)
    path = f"/admin/v2/persistent/{name.namespace}/{quote(name.local_name, safe='')}/internalStats"
    found = rest_json(url, path, topic, timeout_s, security)
    try:
        rows = found["ledgers"]
        ledgers = [
            Ledger(int(row["ledgerId"]), int(row["entries"]), int(row["size"]), False)
            for row in rows
        ]
        if ledgers:
            # The list has no figures of the one that is written.
            size, entries = int(found["currentLedgerSize"]), int(found["currentLedgerEntries"])
            ledgers[-1] = Ledger(ledgers[-1].id, entries, size, True)
        confirmed = found.get("lastConfirmedEntry")
        marks = {
            name: parse(cursor["markDeletePosition"])
            for name, cursor in found.get("cursors", {}).items()
        }
        return Stored(ledgers, parse(confirmed) if confirmed else None, marks)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PulsarSparkError(
            f"what {url} tells of {topic} are no internal stats: {error!r}"
        ) from error


def entries_of(
    ledgers: Iterable[Ledger], begin: Position, end: Position
) -> tuple[tuple[int, int], ...]:
    """(id, entries) of the ledgers of a range; of that which it ends in those up to there, which
    are as many whatever is added.
    """
    return tuple(
        (each.id, min(each.entries, end.entry + 1) if each.id == end.ledger else each.entries)
        for each in ledgers
        if begin.ledger <= each.id <= end.ledger
    )


def are_entries_between(ledgers: Sequence[tuple[int, int]], begin: Position, end: Position) -> bool:
    """Whether there are entries behind begin, up to and with end, as far as is known.

    ledgers: (id, entries). Of a ledger that is not among them, and that begin is in, nobody knows
    how many it had.
    """
    known = dict(ledgers)
    if begin.ledger not in known or begin.batch >= 0:
        return True
    for id, entries in ledgers:
        low = begin.entry + 1 if id == begin.ledger else 0
        high = min(entries, end.entry + 1) if id == end.ledger else entries
        if begin.ledger <= id <= end.ledger and low < high:
            return True
    return False


def rest_json(url: str, path: str, topic: str, timeout_s: float, security: Security) -> Any:
    """What REST answers about a topic. A broker that does not have it sends on to the one that has.

    Raises NotReachable, TopicMissing, PulsarSparkError.
    """
    settings = ClientSettings(
        url,
        authentication=security.authentication,
        tls=security.tls,
        connect_timeout_s=timeout_s,
        operation_timeout_s=timeout_s,
    )
    with closing(Runner()) as runner:
        try:
            return runner.complete(_get(settings, path))
        except HttpRefused as error:
            raise _refusal(error, url, topic) from None
        except (ConnectionFailed, UntrustedCertificate) as error:
            reason = error.reason if error.__cause__ is None else repr(error.__cause__)
            raise NotReachable(f"admin.url is {url}, and nobody answers there: {reason}") from error
        except RedirectLoop:
            raise PulsarSparkError(
                f"{url} and other brokers send who asks for {topic} round in a ring."
            ) from None
        except BadRedirect as error:
            raise _misled(error) from None
        except ClientError as error:
            raise spark_error(error) from None


async def _get(settings: ClientSettings, path: str) -> Any:
    async with AdminClient(settings) as admin:
        return await admin.get(path)


def _misled(error: BadRedirect) -> PulsarSparkError:
    if not error.target:
        return PulsarSparkError(f"{error.origin} sends on ({error.status}) to nobody.")
    return PulsarSparkError(
        f"{error.origin} sends on to {error.target}, which has no TLS: brokers have to"
        " tell their URLs with TLS (webServicePortTls)."
    )


def _refusal(error: HttpRefused, url: str, topic: str) -> PulsarSparkError:
    if error.status == 404:
        return TopicMissing(f"{url} knows no topic {topic}.")
    if error.status in (401, 403):
        return PulsarSparkError(
            f"{url} does not tell of {topic} ({error.status} {responses[error.status]}): who this"
            " is say pulsar.admin.authPluginClassName and pulsar.admin.authParams, or those of"
            " pulsar.client. if these are not given."
        )
    may_pass = error.status >= 500 or error.status == NO_OWNER
    return Refused(f"{url} answers {error.status} for {topic}: {error.reason}", may_pass)
