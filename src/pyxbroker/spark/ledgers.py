"""The ledgers of a topic, as REST tells them (internalStats): what ranges are cut by."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from pyxbroker.base.topic_name import TopicName
from pyxbroker.spark.errors import NotReachable, PulsarSparkError, Refused, TopicMissing
from pyxbroker.spark.positions import Position, parse
from pyxbroker.spark.security import Security

REDIRECTS_MAX = 20
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
    asked, target = url, path
    for _ in range(REDIRECTS_MAX):
        answer = _get(asked, target, timeout_s, security)
        if answer.status not in (307, 308, 301, 302):
            return _json_of(answer, asked, topic)
        asked, target = _sent_on(answer, asked)
    raise PulsarSparkError(f"{url} and other brokers send who asks for {topic} round in a ring.")


class _Answer(NamedTuple):
    status: int
    reason: str
    location: str
    body: bytes


def _get(url: str, path: str, timeout_s: float, security: Security) -> _Answer:
    """Raises NotReachable."""
    where = urlsplit(url)
    host, port = where.hostname or "", where.port
    headers = {"Accept": "application/json"}
    if authorization := security.header():
        headers |= {"Authorization": authorization}
    connection = http.client.HTTPConnection(host, port or 80, timeout=timeout_s)
    if where.scheme == "https":
        connection = http.client.HTTPSConnection(
            host, port or 443, timeout=timeout_s, context=security.context()
        )
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        location = answer.headers.get("Location", "")
        return _Answer(answer.status, answer.reason, location, answer.read())
    except (OSError, http.client.HTTPException) as error:
        raise NotReachable(f"admin.url is {url}, and nobody answers there: {error!r}") from error
    finally:
        connection.close()


def _sent_on(answer: _Answer, url: str) -> tuple[str, str]:
    """(the URL of another broker, what it is asked) of an answer that names one.

    Who this is is shown to that one too, as Pulsar's own admin clients do, but not in the clear
    where it was asked by TLS. Raises PulsarSparkError.
    """
    where = urlsplit(urljoin(url, answer.location))
    if not answer.location or where.scheme not in ("http", "https") or not where.hostname:
        raise PulsarSparkError(f"{url} sends on ({answer.status}) to nobody.")
    if url.startswith("https://") and where.scheme != "https":
        raise PulsarSparkError(
            f"{url} sends on to {where.scheme}://{where.netloc}, which has no TLS: brokers have to"
            " tell their URLs with TLS (webServicePortTls)."
        )
    target = where.path + (f"?{where.query}" if where.query else "")
    return f"{where.scheme}://{where.netloc}", target


def _json_of(answer: _Answer, url: str, topic: str) -> Any:
    """Raises TopicMissing, PulsarSparkError."""
    if answer.status == 404:
        raise TopicMissing(f"{url} knows no topic {topic}.")
    if answer.status in (401, 403):
        raise PulsarSparkError(
            f"{url} does not tell of {topic} ({answer.status} {answer.reason}): who this is say"
            " pulsar.admin.authPluginClassName and pulsar.admin.authParams, or those of"
            " pulsar.client. if these are not given."
        )
    if answer.status != 200:
        reason = answer.body[:200].decode(errors="replace")
        may_pass = answer.status >= 500 or answer.status == NO_OWNER
        raise Refused(f"{url} answers {answer.status} for {topic}: {reason}", may_pass)
    try:
        return json.loads(answer.body)
    except ValueError as error:
        raise PulsarSparkError(f"{url} answers for {topic} what is no JSON.") from error
