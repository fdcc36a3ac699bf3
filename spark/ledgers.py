"""The ledgers of a topic, from the REST endpoint internalStats. Ranges are divided along them."""

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
"""The HTTP status for a topic that no broker owns yet, for example while brokers start."""


class Ledger(NamedTuple):
    """A ledger of a topic, with its current entries and bytes."""

    id: int
    entries: int
    size: int
    is_open: bool

    @property
    def bytes_per_entry(self) -> int:
        """The average size of an entry, at least 1."""
        return max(1, self.size // max(1, self.entries))

    def with_bytes_per_entry(self, size: int) -> Ledger:
        return self._replace(size=size * self.entries)


class Stored(NamedTuple):
    """The stored ledgers and mark-delete positions of a topic."""

    ledgers: list[Ledger]
    """The ledgers in order; the last one is open."""

    confirmed: Position | None
    """The last confirmed entry, which may have been deleted since. Entry -1: there was none since
    the topic was loaded. None: the broker does not report it.
    """

    marks: Mapping[str, Position]
    """The mark-delete position of each durable subscription."""


def ledgers_of(url: str, topic: str, timeout_s: float, security: Security) -> list[Ledger]:
    """Return the ledgers in order. Raises NotReachable, TopicMissing, PulsarSparkError."""
    return stored_of(url, topic, timeout_s, security).ledgers


def stored_of(url: str, topic: str, timeout_s: float, security: Security) -> Stored:
    """Request internalStats. Raises NotReachable, TopicMissing, PulsarSparkError."""
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
            # The list has no figures for the open ledger.
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
            f"{url} returned invalid internal stats of {topic}: {error!r}"
        ) from error


def entries_of(
    ledgers: Iterable[Ledger], begin: Position, end: Position
) -> tuple[tuple[int, int], ...]:
    """Return (id, entries) of the ledgers of a range.

    The last ledger counts up to the end of the range, so that later entries do not change it.
    """
    return tuple(
        (each.id, min(each.entries, end.entry + 1) if each.id == end.ledger else each.entries)
        for each in ledgers
        if begin.ledger <= each.id <= end.ledger
    )


def are_entries_between(ledgers: Sequence[tuple[int, int]], begin: Position, end: Position) -> bool:
    """Return True if (begin, end] may contain entries.

    ledgers: (id, entries). If the ledger of `begin` is not listed, its number of entries is
    unknown.
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
    """Return the JSON of a REST resource of a topic. Other brokers redirect to its owner.
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
            raise NotReachable(f"no web port answers at admin.url {url}: {reason}") from error
        except RedirectLoop:
            raise PulsarSparkError(
                f"the REST request for {topic} failed: {url} and other brokers"
                " redirect each other in a loop."
            ) from None
        except BadRedirect as error:
            raise _bad_redirect(error) from None
        except ClientError as error:
            raise spark_error(error) from None


async def _get(settings: ClientSettings, path: str) -> Any:
    async with AdminClient(settings) as admin:
        return await admin.get(path)


def _bad_redirect(error: BadRedirect) -> PulsarSparkError:
    if not error.target:
        return PulsarSparkError(f"{error.origin} redirects ({error.status}) without a Location.")
    return PulsarSparkError(
        f"{error.origin} redirects to {error.target}, which has no TLS: brokers have to"
        " advertise their URLs with TLS (webServicePortTls)."
    )


def _refusal(error: HttpRefused, url: str, topic: str) -> PulsarSparkError:
    if error.status == 404:
        return TopicMissing(f"{url} has no topic {topic}.")
    if error.status in (401, 403):
        return PulsarSparkError(
            f"{url} refuses a request about {topic} ({error.status} {responses[error.status]}):"
            " check pulsar.admin.authPluginClassName and pulsar.admin.authParams, or those of"
            " pulsar.client. if these are not given."
        )
    may_pass = error.status >= 500 or error.status == NO_OWNER
    return Refused(f"{url} answers {error.status} for {topic}: {error.reason}", may_pass)
