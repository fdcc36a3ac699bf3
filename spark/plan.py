"""The plan of a query: the ends of topics, the requested offsets, and the ranges between them.

A range is (begin, end] of one topic. Without `admin.url` a topic is one range. With it, topics are
divided along ledgers into ranges of about `bytesPerTask`, so that many tasks read a large topic.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from pyxbroker.base.topic_name import TopicName
from pyxbroker.spark.broker_connection import Cluster, Settings
from pyxbroker.spark.errors import (
    DataLost,
    NotReachable,
    PulsarSparkError,
    Refused,
    TopicMissing,
    WrongOption,
)
from pyxbroker.spark.ledgers import Ledger, entries_of, ledgers_of, stored_of
from pyxbroker.spark.options import Options
from pyxbroker.spark.positions import BEGINNING, EARLIEST, OffsetRequest, Position
from pyxbroker.spark.security import Security
from pyxbroker.spark.topic_schema import schema_of, values_of
from pyxbroker.spark.topics import is_named, name_of, topics_of
from pyxbroker.spark.values import Bytes, Values

T = TypeVar("T")
RETRY_S = 0.5

RANGES_MAX = 10_000
"""The approximate limit of ranges in a plan. Ranges exceed `bytesPerTask` where it is needed."""

_log = logging.getLogger(__name__)


class Ends(NamedTuple):
    """The position before the first message of a topic, and its last entry.

    The other fields come from REST, and are None without `admin.url`.
    """

    first: Position
    last: Position
    newest: Ledger | None = None
    """The open ledger."""

    confirmed: Position | None = None
    """See Stored.confirmed."""

    held: Position | None = None
    """The mark-delete position of the query's own subscription, if it has one."""


class Range(NamedTuple):
    """The messages of one topic after `begin`, up to and including `end`."""

    topic: str
    begin: Position
    end: Position
    ledgers: tuple[tuple[int, int], ...] = ()
    """(id, entries) of the range's ledgers; empty without REST."""
    origin: Position | None = None
    """The position before the topic's first message when the query began there.

    None: the query began elsewhere, or that is unknown.
    """


def ends_of(options: Options, read: Collection[str] | None = ()) -> dict[str, Ends]:
    """Return the ends of all topics that the options name, except for those that may be missing.

    read: topics that a query has read already; the caller checks which of them are missing. None:
    each topic may be missing. Raises TopicMissing.
    """
    found = {}
    with cluster_of(options) as cluster:
        for topic in topics_of(
            options, cluster.any_broker(), may_be_none=read is None or bool(read)
        ):
            try:
                found[topic] = _ends(options, cluster, topic)
            except TopicMissing:
                # The topic was deleted between two requests, or is a partition that was not used
                # yet. When it appears it is read from its beginning.
                if is_named(options, topic) and not _may_be_missing(options, topic, read):
                    raise
    return found


def ends_of_topic(options: Options, topic: str) -> Ends:
    """Return the ends of one topic. Raises TopicMissing."""
    with cluster_of(options) as cluster:
        return _ends(options, cluster, topic)


def _may_be_missing(options: Options, topic: str, read: Collection[str] | None) -> bool:
    """Return True if a topic that the options name may be missing."""
    if read is None or options["waitingForNonExistedTopic"]:
        return True
    return any(topic in (each, TopicName.get(each).partitioned_topic_name) for each in read)


def uses_client(options: Options) -> bool:
    """Return True if tasks read with the official client. Raises WrongOption."""
    mode, key = options["reader"], options["pulsar.reader.defaultCryptoKeyReader"]
    if mode == "fast" and key is not None:
        raise WrongOption(
            "reader is fast, and pulsar.reader.defaultCryptoKeyReader is given: only the official"
            " client can decrypt (reader=client)."
        )
    return mode == "client" or key is not None


def cluster_of(options: Options) -> Cluster:
    return Cluster(options["service.url"], settings_of(options))


def settings_of(options: Options) -> Settings:
    """Return how to connect to brokers. Raises WrongOption."""
    return Settings(
        options["pulsar.client.operationTimeoutMs"],
        options["pulsar.client.connectionTimeoutMs"],
        Security(options),
        options["subscriptionPrefix"],
    )


def with_retries(options: Options, request: Callable[[], T]) -> T:
    """Retry a request while no broker is available, up to the operation timeout."""
    deadline = time.monotonic() + options["pulsar.client.operationTimeoutMs"]
    while True:
        try:
            return request()
        except (NotReachable, Refused) as error:
            may_pass = isinstance(error, NotReachable) or error.may_pass
            if not may_pass or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)


def values_of_topics(options: Options) -> Values:
    """Return the conversion of payloads to columns. All topics have to have one schema.
    Raises PulsarSparkError.
    """
    with cluster_of(options) as cluster:
        broker = cluster.any_broker()
        names = {TopicName.get(each).partitioned_topic_name for each in topics_of(options, broker)}
        found = {name: broker.schema(name) for name in sorted(names)}
    kinds = {name: None if each is None else schema_of(each) for name, each in found.items()}
    if options["allowDifferentTopicSchemas"]:
        return Bytes()
    if len(set(kinds.values())) > 1:
        raise PulsarSparkError(
            f"the topics {', '.join(found)} have different schemas; read topics of one schema"
            " together, or read them as bytes with allowDifferentTopicSchemas=true."
        )
    kind = next(iter(kinds.values()), None)
    return Bytes() if kind is None else values_of(kind)


def _ends(options: Options, cluster: Cluster, topic: str) -> Ends:
    """Return the ends of a topic. Raises TopicMissing.

    Where the open ledger is empty, the last position is its beginning. A reader that has read the
    previous ledger completely then misses nothing if that ledger is deleted.
    """
    ends = Ends(*cluster.ends(topic))
    if options["admin.url"] is None:
        return ends
    stored = stored_of(*_rest_arguments(options, topic))
    ends = ends._replace(
        confirmed=stored.confirmed, held=stored.marks.get(options["predefinedSubscription"])
    )
    if not stored.ledgers:
        return ends
    newest = stored.ledgers[-1]
    if newest.id > ends.last.ledger and newest.entries == 0:
        ends = ends._replace(last=Position(newest.id, -1))
    return ends._replace(newest=newest)


def _ledgers(options: Options, topic: str) -> list[Ledger]:
    return ledgers_of(*_rest_arguments(options, topic))


def _rest_arguments(options: Options, topic: str) -> tuple[str, str, float, Security]:
    timeout_s = options["pulsar.client.operationTimeoutMs"]
    return options["admin.url"], topic, timeout_s, Security(options, of_rest=True)


# --- requested offsets ----------------------------------------------------------------------------


def starts_of(options: Options, ends: dict[str, Ends]) -> dict[str, Position]:
    """Return the position after which each topic is read. Raises WrongOption."""
    if options["startingTime"] is not None:
        found = before_time(options, options["startingTime"], ends)
        return {topic: max((found[topic], ends[topic].first), key=_key) for topic in ends}
    requested = _requested_offsets("startingOffsets", options["startingOffsets"], ends)
    return {topic: _start(each, ends[topic]) for topic, each in requested.items()}


def stops_of(options: Options, ends: dict[str, Ends]) -> dict[str, Position]:
    """Return the last message of each topic that is read. Raises WrongOption."""
    if options["endingTime"] is not None:
        found = before_time(options, options["endingTime"] + 1, ends)
        return {topic: min((found[topic], ends[topic].last), key=_key) for topic in ends}
    requested = _requested_offsets("endingOffsets", options["endingOffsets"], ends)
    return {topic: _stop(each, ends[topic]) for topic, each in requested.items()}


def before_time(options: Options, moment: int, topics: Iterable[str]) -> dict[str, Position]:
    """Return the position before the first message of a time, for each topic."""

    def find(cluster: Cluster, topic: str) -> Position:
        return cluster.ask(topic, lambda broker: broker.before_time(topic, moment))

    with cluster_of(options) as cluster:
        return {topic: find(cluster, topic) for topic in topics}


def origins_of(begins: Mapping[str, Position], ends: Mapping[str, Ends]) -> dict[str, Position]:
    """Return the first positions of the topics that a query reads completely; see Range.origin."""
    return {
        topic: ends[topic].first
        for topic, begin in begins.items()
        if begin.key <= ends[topic].first.key
    }


def move_subscription(options: Options, topic: str, at: Position) -> None:
    """Move the predefined subscription, so that the broker retains messages after a position.

    A missing subscription is created. Raises TopicMissing.
    """
    subscription = options["predefinedSubscription"]
    with cluster_of(options) as cluster:
        cluster.ask(topic, lambda broker: broker.move_subscription(topic, subscription, at))


def _start(requested: OffsetRequest, ends: Ends) -> Position:
    if isinstance(requested, Position):
        return requested.before() if requested.ledger >= 0 else ends.first
    return ends.first if requested == EARLIEST else max((ends.first, ends.last), key=_key)


def _stop(requested: OffsetRequest, ends: Ends) -> Position:
    if isinstance(requested, Position):
        return min((requested, ends.last), key=_key)
    return ends.first if requested == EARLIEST else ends.last


def _key(position: Position) -> tuple[int, int, int]:
    return position.key


def _requested_offsets(
    option: str, given: OffsetRequest | dict[str, OffsetRequest], topics: Iterable[str]
) -> dict[str, OffsetRequest]:
    """Return the requested offset of each topic. Raises WrongOption.

    earliest and latest may be given for a partitioned topic, message ids only for its partitions.
    """
    if not isinstance(given, dict):
        return dict.fromkeys(topics, given)
    named = {str(name_of(topic)): each for topic, each in given.items()}
    found: dict[str, OffsetRequest] = {}
    used = set()
    for topic in topics:
        whole = TopicName.get(topic).partitioned_topic_name
        name = topic if topic in named else whole
        if name not in named:
            raise WrongOption(f"{option} has no offset for {topic}; each topic needs one.")
        used.add(name)
        found[topic] = named[name]
        if name != topic and isinstance(named[name], Position):
            raise WrongOption(
                f"{option} has a message id for {whole}, which has partitions: give a message id"
                f" for each partition, such as {topic}."
            )
    if unused := named.keys() - used:
        raise WrongOption(f"{option} names {min(unused)}, which is not read.")
    return found


# --- deleted messages -----------------------------------------------------------------------------


def without_lost(
    options: Options, begins: dict[str, Position], ends: dict[str, Ends]
) -> dict[str, Position]:
    """Return where to begin, behind deleted messages. Raises DataLost, unless loss is allowed.

    The number of entries of a deleted ledger is unknown. So if a query has read a part of it, it
    cannot know whether it had read all.
    """
    found = {}
    for topic, begin in begins.items():
        first = ends[topic].first
        if may_miss_messages(begin, ends[topic]):
            report_loss(options, lost_sentence(topic, begin, first))
        found[topic] = max((begin, first), key=_key)
    return found


def report_loss(options: Options, sentence: str) -> None:
    """Log a loss of messages. Raises DataLost instead, unless loss is allowed."""
    if options["failOnDataLoss"]:
        raise DataLost(sentence)
    _log.warning("%s", sentence)


def may_miss_messages(begin: Position, ends: Ends) -> bool:
    """Return True if messages after `begin` may have been deleted."""
    return is_lost(begin, ends.first) and not is_whole(begin, ends)


def is_whole(begin: Position, ends: Ends) -> bool:
    """Return True if deleted ledgers are known to have had no messages after `begin`."""
    if ends.held is not None and _has_retained(begin, ends.held, ends.first):
        return True
    confirmed = ends.confirmed
    if confirmed is None:
        return False
    if confirmed.entry >= 0:
        return confirmed.key <= begin.key
    # Nothing was written to a new ledger, which loading the topic created in place of an empty one.
    return begin.entry < 0


def _has_retained(begin: Position, held: Position, first: Position) -> bool:
    """Return True if the query's own subscription has retained the messages after `begin`.

    A subscription ahead of `begin` was moved by another client or by expiry, so messages may be
    deleted. But Apache Pulsar moves a subscription at the end of a ledger to the next ledger before
    it deletes the ledger.
    """
    return held.key <= begin.key or (held.entry < 0 and held.key <= first.key)


def is_lost(begin: Position, first: Position) -> bool:
    """Return True if a topic with this first position may have lost messages after `begin`."""
    return begin != BEGINNING and begin.key < first.key and begin.ledger < first.ledger


def lost_sentence(topic: str, begin: Position, first: Position) -> str:
    return (
        f"messages of {topic} behind {begin} were deleted, or may have been, before they were read:"
        f" the topic begins behind {first} now. Retain messages by a retention policy or a"
        " subscription; failOnDataLoss=false continues with what is there."
    )


def gone_sentence(topic: str, how_far: str) -> str:
    return (
        f"{topic}, which {how_far}, was deleted: some of its messages may have been deleted before"
        " they were read. failOnDataLoss=false continues without it."
    )


# --- ranges ---------------------------------------------------------------------------------------


def ranges_of(
    options: Options,
    begins: dict[str, Position],
    ends: dict[str, Position],
    sizes: Mapping[str, int] | None = None,
    origins: Mapping[str, Position] | None = None,
) -> list[Range]:
    """Return the ranges of all topics, without empty ones. origins: see Range.origin.

    sizes: for topics whose end is in a ledger that was open, its bytes per entry at that time. With
    these, the same ends give the same ranges, whatever was published in the meantime.
    """
    whole = [
        Range(topic, begins.get(topic, BEGINNING), end, origin=(origins or {}).get(topic))
        for topic, end in sorted(ends.items())
        if begins.get(topic, BEGINNING).key < end.key
    ]
    if options["admin.url"] is None:
        return whole
    ledgers = {each.topic: _ledgers(options, each.topic) for each in whole}
    for wanted in whole:
        topic, newest = wanted.topic, wanted.end.ledger
        if sizes and topic in sizes:
            ledgers[topic] = [
                each.with_bytes_per_entry(sizes[topic]) if each.id == newest else each
                for each in ledgers[topic]
            ]
    size = sum(
        part.entries * part.bytes_per_entry
        for wanted in whole
        for part in _parts(wanted.begin, wanted.end, ledgers[wanted.topic])
    )
    bytes_per_range = max(options["bytesPerTask"], -(-size // RANGES_MAX))
    return [
        Range(wanted.topic, *piece, entries_of(ledgers[wanted.topic], *piece), wanted.origin)
        for wanted in whole
        for piece in cut(wanted.begin, wanted.end, ledgers[wanted.topic], bytes_per_range)
    ]


def sizes_of(positions: Mapping[str, Position], ends: Mapping[str, Ends]) -> dict[str, int]:
    """Return the bytes per entry of open ledgers that contain positions.

    Those of closed ledgers do not change.
    """
    found = {}
    for topic, position in positions.items():
        newest = ends[topic].newest if topic in ends else None
        if newest is not None and newest.id == position.ledger and position.entry >= 0:
            found[topic] = newest.bytes_per_entry
    return found


class _Part(NamedTuple):
    """A number of entries of a ledger after `low`."""

    ledger: int
    low: int
    entries: int
    bytes_per_entry: int


def _parts(begin: Position, end: Position, ledgers: list[Ledger]) -> list[_Part]:
    """Return the parts of (begin, end] in the listed ledgers."""
    parts = []
    for ledger in ledgers:
        if not begin.ledger <= ledger.id <= end.ledger:
            continue
        low, high = -1, ledger.entries - 1
        if ledger.id == begin.ledger:
            low = begin.entry if begin.batch < 0 else begin.entry - 1
        if ledger.id == end.ledger:
            # The list may be older than the end.
            high = end.entry if ledger.is_open else min(high, end.entry)
        if low < high:
            parts.append(_Part(ledger.id, low, high - low, ledger.bytes_per_entry))
    return parts


def cut(
    begin: Position, end: Position, ledgers: list[Ledger], bytes_per_range: int
) -> list[tuple[Position, Position]]:
    """Divide (begin, end] into pieces of about `bytes_per_range`, along ledgers and within them.

    Each piece has entries, and ends with an existing one, so that no reader waits for a message
    that does not exist.
    """
    at = reached = begin
    pieces = []
    size = 0
    for part in _parts(begin, end, ledgers):
        low, high = part.low, part.low + part.entries
        while low < high:
            room = max(1, math.ceil((bytes_per_range - size) / part.bytes_per_entry))
            taken = min(room, high - low)
            low += taken
            size += taken * part.bytes_per_entry
            reached = min(Position(part.ledger, low), end, key=_key)
            if size >= bytes_per_range:
                pieces.append((at, reached))
                at, size = reached, 0
    if not any(each.id >= end.ledger for each in ledgers):
        reached = end  # the list is older than the end
    if at.key < reached.key:
        pieces.append((at, reached))
    return pieces


def listed(options: Options, wanted: Range) -> Range | None:
    """Return a range that ends with the last entry that REST lists; None: it has no entries.

    So its reader does not wait for an entry that does not exist. Without `admin.url` the range is
    returned unchanged. Raises TopicMissing.
    """
    if options["admin.url"] is None:
        return wanted
    ledgers = _ledgers(options, wanted.topic)
    pieces = cut(wanted.begin, wanted.end, ledgers, sys.maxsize)
    if not pieces:
        return None
    ((begin, end),) = pieces
    return wanted._replace(end=end, ledgers=entries_of(ledgers, begin, end))


def bounded(
    options: Options, begins: dict[str, Position], ends: dict[str, Position], bytes_max: int
) -> dict[str, Position]:
    """Return ends that limit a batch to about `bytes_max`, shared equally by topics.

    Needs `admin.url`. Each topic with messages advances by at least one entry.
    """
    begins = {topic: begins.get(topic, BEGINNING) for topic in ends}
    waiting = [topic for topic, end in ends.items() if begins[topic].key < end.key]
    found = dict(ends)
    for topic in waiting:
        share = max(1, bytes_max // len(waiting))
        try:
            ledgers = _ledgers(options, topic)
        except TopicMissing:
            continue  # it was deleted just now, which the task that reads it reports
        pieces = cut(begins[topic], ends[topic], ledgers, share)
        if len(pieces) > 1:
            found[topic] = pieces[0][1]
    return found
