"""What is read by which task: the ends of topics, what users ask for, and ranges between them.

A range is (begin, end] of one topic. Without `admin.url` a topic is one range. With it, ranges are
cut along ledgers, in pieces of about `bytesPerTask`, so that many tasks read one large topic.
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
from pyxbroker.spark.positions import BEGINNING, EARLIEST, Position, Wish
from pyxbroker.spark.security import Security
from pyxbroker.spark.topic_schema import schema_of, values_of
from pyxbroker.spark.topics import is_named, name_of, topics_of
from pyxbroker.spark.values import Bytes, Values

T = TypeVar("T")
RETRY_S = 0.5

RANGES_MAX = 10_000
"""Of one plan, about: where `bytesPerTask` would make more, ranges are larger."""

_log = logging.getLogger(__name__)


class Ends(NamedTuple):
    """Of one topic: where a reader of all stands, and the last entry there is. REST says the rest,
    where it is asked.
    """

    first: Position
    last: Position
    newest: Ledger | None = None
    """The ledger that is written."""

    confirmed: Position | None = None
    """See Stored.confirmed."""

    held: Position | None = None
    """Where the query's own subscription stands, if it has one."""


class Range(NamedTuple):
    """Messages of one topic behind `begin`, up to and with `end`."""

    topic: str
    begin: Position
    end: Position
    ledgers: tuple[tuple[int, int], ...] = ()
    """(id, entries) of the ledgers that have it, where REST tells them."""
    origin: Position | None = None
    """Where the topic began when the query began there: nothing of the topic was read before, or
    left out. None: it began elsewhere, or that is not known.
    """


def ends_of(options: Options, read: Collection[str] | None = ()) -> dict[str, Ends]:
    """Of all topics that the options name, but for those that may be missing.

    read: topics that a query has read, of which it has to look itself which ones are missing; None
    where all may be. Raises TopicMissing.
    """
    found = {}
    with cluster_of(options) as cluster:
        for topic in topics_of(
            options, cluster.any_broker(), may_be_none=read is None or bool(read)
        ):
            try:
                found[topic] = _ends(options, cluster, topic)
            except TopicMissing:
                # It is read from its beginning when it appears: it was deleted between two
                # questions, or it is a partition that nobody has used yet, or not for long.
                if is_named(options, topic) and not _may_be_missing(options, topic, read):
                    raise
    return found


def ends_of_topic(options: Options, topic: str) -> Ends:
    """Raises TopicMissing."""
    with cluster_of(options) as cluster:
        return _ends(options, cluster, topic)


def _may_be_missing(options: Options, topic: str, read: Collection[str] | None) -> bool:
    """Of a topic that has a name of its own in the options."""
    if read is None or options["waitingForNonExistedTopic"]:
        return True
    return any(topic in (each, TopicName.get(each).partitioned_topic_name) for each in read)


def uses_client(options: Options) -> bool:
    """Whether tasks read by the official client."""
    wish, key = options["reader"], options["pulsar.reader.defaultCryptoKeyReader"]
    if wish == "fast" and key is not None:
        raise WrongOption(
            "reader is fast, and pulsar.reader.defaultCryptoKeyReader is given: only the official"
            " client decrypts (reader=client)."
        )
    return wish == "client" or key is not None


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


def patiently(options: Options, ask: Callable[[], T]) -> T:
    """Ask again while a broker is away, for as long as an operation may take."""
    deadline = time.monotonic() + options["pulsar.client.operationTimeoutMs"]
    while True:
        try:
            return ask()
        except (NotReachable, Refused) as error:
            may_pass = isinstance(error, NotReachable) or error.may_pass
            if not may_pass or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)


def values_of_topics(options: Options) -> Values:
    """What becomes of the payloads: their schema decides, which has to be one for all topics.

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
            f"the topics {', '.join(found)} have different schemas; read those with one schema"
            " together, or as bytes with allowDifferentTopicSchemas=true."
        )
    kind = next(iter(kinds.values()), None)
    return Bytes() if kind is None else values_of(kind)


def _ends(options: Options, cluster: Cluster, topic: str) -> Ends:
    """The last entry is told by the ledger that is written next where the one before is read to
    its end: of that one nothing is left to be missed when it is deleted. Raises TopicMissing.
    """
    ends = Ends(*cluster.ends(topic))
    if options["admin.url"] is None:
        return ends
    stored = stored_of(*_rest(options, topic))
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
    return ledgers_of(*_rest(options, topic))


def _rest(options: Options, topic: str) -> tuple[str, str, float, Security]:
    timeout_s = options["pulsar.client.operationTimeoutMs"]
    return options["admin.url"], topic, timeout_s, Security(options, of_rest=True)


# --- what users ask for ---------------------------------------------------------------------------


def starts_of(options: Options, ends: dict[str, Ends]) -> dict[str, Position]:
    """Where each topic begins to be read. Raises WrongOption."""
    if options["startingTime"] is not None:
        found = before_time(options, options["startingTime"], ends)
        return {topic: max((found[topic], ends[topic].first), key=_key) for topic in ends}
    wishes = _wish_of_each("startingOffsets", options["startingOffsets"], ends)
    return {topic: _start(wish, ends[topic]) for topic, wish in wishes.items()}


def stops_of(options: Options, ends: dict[str, Ends]) -> dict[str, Position]:
    """The last message of each topic that is read. Raises WrongOption."""
    if options["endingTime"] is not None:
        found = before_time(options, options["endingTime"] + 1, ends)
        return {topic: min((found[topic], ends[topic].last), key=_key) for topic in ends}
    wishes = _wish_of_each("endingOffsets", options["endingOffsets"], ends)
    return {topic: _stop(wish, ends[topic]) for topic, wish in wishes.items()}


def before_time(options: Options, moment: int, topics: Iterable[str]) -> dict[str, Position]:
    """Of each topic what lies before the first message of that time."""

    def find(cluster: Cluster, topic: str) -> Position:
        return cluster.ask(topic, lambda broker: broker.before_time(topic, moment))

    with cluster_of(options) as cluster:
        return {topic: find(cluster, topic) for topic in topics}


def origins_of(begins: Mapping[str, Position], ends: Mapping[str, Ends]) -> dict[str, Position]:
    """Where those topics begin that a query reads from their beginning; see Range.origin."""
    return {
        topic: ends[topic].first
        for topic, begin in begins.items()
        if begin.key <= ends[topic].first.key
    }


def hold(options: Options, topic: str, at: Position) -> None:
    """Move the predefined subscription, which is made if it is not there, so that the broker keeps
    what lies behind the position. Raises TopicMissing.
    """
    subscription = options["predefinedSubscription"]
    with cluster_of(options) as cluster:
        cluster.ask(topic, lambda broker: broker.hold(topic, subscription, at))


def _start(wish: Wish, ends: Ends) -> Position:
    if isinstance(wish, Position):
        return wish.before() if wish.ledger >= 0 else ends.first
    return ends.first if wish == EARLIEST else max((ends.first, ends.last), key=_key)


def _stop(wish: Wish, ends: Ends) -> Position:
    if isinstance(wish, Position):
        return min((wish, ends.last), key=_key)
    return ends.first if wish == EARLIEST else ends.last


def _key(position: Position) -> tuple[int, int, int]:
    return position.key


def _wish_of_each(
    option: str, given: Wish | dict[str, Wish], topics: Iterable[str]
) -> dict[str, Wish]:
    """Of each topic, by its name, or for earliest and latest by that of the partitioned topic."""
    if not isinstance(given, dict):
        return dict.fromkeys(topics, given)
    named = {str(name_of(topic)): wish for topic, wish in given.items()}
    found: dict[str, Wish] = {}
    used = set()
    for topic in topics:
        whole = TopicName.get(topic).partitioned_topic_name
        name = topic if topic in named else whole
        if name not in named:
            raise WrongOption(f"{option} has nothing for {topic}; each topic has to be in it.")
        used.add(name)
        found[topic] = named[name]
        if name != topic and isinstance(named[name], Position):
            raise WrongOption(
                f"{option} has a message id for {whole}, which has partitions: name them, as"
                f" {topic}, with a message id each."
            )
    if unused := named.keys() - used:
        raise WrongOption(f"{option} names {min(unused)}, which is not read.")
    return found


# --- what was deleted -----------------------------------------------------------------------------


def without_lost(
    options: Options, begins: dict[str, Position], ends: dict[str, Ends]
) -> dict[str, Position]:
    """Where to begin, with what was deleted passed over. Raises DataLost, unless that is allowed.

    A ledger that is deleted takes along how many entries it had, so whoever stands in the midst of
    one cannot know that all were read.
    """
    found = {}
    for topic, begin in begins.items():
        first = ends[topic].first
        if may_lack(begin, ends[topic]):
            lose(options, lost_sentence(topic, begin, first))
        found[topic] = max((begin, first), key=_key)
    return found


def lose(options: Options, sentence: str) -> None:
    """Tell what was lost. Raises DataLost, unless that is allowed."""
    if options["failOnDataLoss"]:
        raise DataLost(sentence)
    _log.warning("%s", sentence)


def may_lack(begin: Position, ends: Ends) -> bool:
    """Whether messages behind `begin` were deleted, as far as the broker can tell."""
    return is_lost(begin, ends.first) and not is_whole(begin, ends)


def is_whole(begin: Position, ends: Ends) -> bool:
    """Whether ledgers that are gone had nothing behind `begin`, as far as the broker can tell."""
    if ends.held is not None and _has_kept(begin, ends.held, ends.first):
        return True
    confirmed = ends.confirmed
    if confirmed is None:
        return False
    if confirmed.entry >= 0:
        return confirmed.key <= begin.key
    # No entry is known: an empty ledger is replaced by another one whenever a topic is loaded.
    return begin.entry < 0


def _has_kept(begin: Position, held: Position, first: Position) -> bool:
    """Whether the query's own subscription has kept what lies behind `begin`. One that stands
    further on was moved by somebody else, as when messages expire: what it passed over is gone. But
    Apache Pulsar moves one that stands at the end of a ledger to the beginning of the next one,
    before it deletes the ledger.
    """
    return held.key <= begin.key or (held.entry < 0 and held.key <= first.key)


def is_lost(begin: Position, first: Position) -> bool:
    """Whether messages behind `begin` may have been deleted from a topic that has this first."""
    return begin != BEGINNING and begin.key < first.key and begin.ledger < first.ledger


def lost_sentence(topic: str, begin: Position, first: Position) -> str:
    return (
        f"messages of {topic} behind {begin} were deleted, or may have been, before they were read:"
        f" the topic begins behind {first} now. Keep messages by a retention policy or a"
        " subscription; failOnDataLoss=false goes on with what is there."
    )


def gone_sentence(topic: str, how_far: str) -> str:
    return (
        f"{topic}, which {how_far}, is gone: messages of it may have been deleted before they were"
        " read. failOnDataLoss=false goes on without it."
    )


# --- ranges ---------------------------------------------------------------------------------------


def ranges_of(
    options: Options,
    begins: dict[str, Position],
    ends: dict[str, Position],
    sizes: Mapping[str, int] | None = None,
    origins: Mapping[str, Position] | None = None,
) -> list[Range]:
    """The ranges of all topics; empty ones are left out. origins: see Range.origin.

    sizes: of topics, the bytes per entry of the ledger that the end is in, if that was written when
    the end was chosen. With these the same ends have the same ranges, whatever was published
    meanwhile.
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
    """The bytes per entry of those ledgers that positions are in and that are still written; what
    REST tells of others does not change.
    """
    found = {}
    for topic, position in positions.items():
        newest = ends[topic].newest if topic in ends else None
        if newest is not None and newest.id == position.ledger and position.entry >= 0:
            found[topic] = newest.bytes_per_entry
    return found


class _Part(NamedTuple):
    """So many entries of a ledger, behind `low`."""

    ledger: int
    low: int
    entries: int
    bytes_per_entry: int


def _parts(begin: Position, end: Position, ledgers: list[Ledger]) -> list[_Part]:
    """What of (begin, end] is in which ledger, as far as it is listed."""
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
    """(begin, end] in pieces of about so many bytes, along ledgers and within them. Each has
    entries, and the last ends with one: a reader does not wait for what is not there.
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
        reached = end  # what is there is more than what is listed
    if at.key < reached.key:
        pieces.append((at, reached))
    return pieces


def listed(options: Options, wanted: Range) -> Range | None:
    """A range up to the last entry of it that REST lists, so that who reads it does not wait for
    what is not there; None: it has none. Without `admin.url` it is as it was. Raises TopicMissing.
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
    """Ends that are nearer, so that about so many bytes lie before them: each topic its share.

    Wants `admin.url`. Each topic that has something goes on by an entry at least.
    """
    begins = {topic: begins.get(topic, BEGINNING) for topic in ends}
    waiting = [topic for topic, end in ends.items() if begins[topic].key < end.key]
    found = dict(ends)
    for topic in waiting:
        share = max(1, bytes_max // len(waiting))
        try:
            ledgers = _ledgers(options, topic)
        except TopicMissing:
            continue  # it was deleted just now, which whoever reads it will tell
        pieces = cut(begins[topic], ends[topic], ledgers, share)
        if len(pieces) > 1:
            found[topic] = pieces[0][1]
    return found
