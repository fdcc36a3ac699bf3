"""Lists of a namespace's topics for clients that subscribe by pattern, and the news of them.

A client asks for the list with GET_TOPICS_OF_NAMESPACE, or with WATCH_TOPIC_LIST for the list and
every change of it. Of persistent topics those count that have a managed ledger in metadata, open or
not; of non-persistent ones those that are open here. Only persistent topics are watched. Mirrors
Pulsar's NamespaceService.getListOfTopics and TopicListService.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyxbroker.base.errors import NotAllowed, PulsarError
from pyxbroker.base.log import get_logger
from pyxbroker.base.memory_budget import ConnectionMemory
from pyxbroker.base.pacing import paced
from pyxbroker.base.slices import Slices
from pyxbroker.base.topic_name import NON_PERSISTENT, PERSISTENT, NamespaceName, TopicName
from pyxbroker.broker.client_memory import (
    LISTED_NAME_BYTES,
    WATCHED_NAME_BYTES,
    WATCHER_BYTES,
    ClientMemory,
)
from pyxbroker.broker.commands import replies
from pyxbroker.broker.commands.session import Opening, opened
from pyxbroker.broker.commands.topics_pattern import (
    BeyondRE2,
    Pause,
    TopicsPattern,
    compile_pattern,
    hash_of_parts,
    matches,
    sorted_parts,
    topics_hash,
)
from pyxbroker.broker.commands.unread import note_unread, until_read
from pyxbroker.broker.topics.names import topic_of_node
from pyxbroker.connection import Connection
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import (
    MetadataError,
    MetadataStore,
    Notification,
    followed_children,
)
from pyxbroker.proto import PulsarApi as pb

if TYPE_CHECKING:
    from pyxbroker.broker.broker import Broker
    from pyxbroker.broker.commands.handlers import LookupLimit

log = get_logger("pyxbroker.topics")

WATCHERS_MAX = 1_000  # of one connection
RETRY_S = 1.0
RETRY_MAX_S = 60.0
REST_FACTOR = 10  # times as long as it took to read and tell a change, before the next one
_NOTHING: Mapping[str, TopicName] = MappingProxyType({})


class MatchingTopics:
    """The names that a pattern matches in a namespace: one set for all who watch it."""

    def __init__(self, pattern: TopicsPattern) -> None:
        self.pattern = pattern
        # A dict of texts is none of the garbage collector's; of a thousand sets of a thousand names
        # it would look at every name.
        self.names: dict[str, None] = {}
        self.changes = 0  # of the names, so far
        self.watchers: dict[TopicListWatcher, None] = {}  # in the order in which they came
        self.users = 0  # watchers, and those that are being made
        self.filled: asyncio.Future[None] | None = None
        self._hash = (-1, "")  # of the names, and how many changes they had then
        self._payer: ConnectionMemory | None = None  # who pays for the names: one of the watchers
        self._paid = 0

    async def note(
        self, matching: Iterable[TopicName], deleted: Iterable[TopicName], pause: Pause
    ) -> tuple[list[str], list[str]]:
        """Notes a change; returns what of it is new and gone. There is one at a time."""
        # When telling a change has failed, it is noted already.
        new, gone = [], []
        for each in matching:
            if (name := str(each)) not in self.names:
                new.append(name)
            await pause()
        for each in deleted:
            if (name := str(each)) in self.names:
                gone.append(name)
            await pause()
        self.names.update(dict.fromkeys(new))
        for name in gone:
            self.names.pop(name, None)
        self.changes += 1
        if self._payer is not None:
            self._payer.take_over(self._cost - self._paid)
            self._paid = self._cost
        return new, gone

    async def hash(self, pause: Pause) -> str:
        """The hash of the names, which do not change meanwhile."""
        if self._hash[0] != self.changes:
            self._hash = (self.changes, await topics_hash(list(self.names), pause))
        return self._hash[1]

    # --- who pays -----------------------------------------------------------------------------

    @property
    def _cost(self) -> int:
        return WATCHED_NAME_BYTES * len(self.names)

    def join(self, watcher: TopicListWatcher) -> None:
        """Raises NotAllowed or TooManyRequests when the names are too much for its connection."""
        if self._payer is None:
            watcher.memory.charge(self._cost)
            self._payer, self._paid = watcher.memory, self._cost
        self.watchers[watcher] = None

    def leave(self, watcher: TopicListWatcher) -> None:
        del self.watchers[watcher]
        if self._payer is watcher.memory:
            self._payer.release(self._paid)
            heir = next(iter(self.watchers), None)
            self._payer = None if heir is None else heir.memory
            if self._payer is not None:
                self._payer.take_over(self._paid)


def _nothing() -> None:
    """What is to be done for a watcher that has nothing open."""


class TopicListWatcher:
    """One WATCH_TOPIC_LIST of a client."""

    def __init__(
        self,
        connection: Connection,
        watcher_id: int,
        topics: MatchingTopics,
        budget: ClientMemory,
    ) -> None:
        self.connection = connection
        self._budget = budget
        self.watcher_id = watcher_id
        self._owed: tuple[list[str], list[str]] = ([], [])  # news that could not be told yet
        self.topics = topics
        self.memory: ConnectionMemory = connection.session.memory
        self.forget: Callable[[], None] = _nothing

    async def on_change(self, new: list[str], gone: list[str], pause: Pause) -> bytes | None:
        """The frame that tells the client what of a change concerns it."""
        names = self.topics.names
        owed_new, owed_gone = self._owed
        if owed_new or owed_gone:
            # The last thing that happened to a name is what counts.
            new = [name for name in dict.fromkeys(owed_new + new) if name in names]
            gone = [name for name in dict.fromkeys(owed_gone + gone) if name not in names]
        self._owed = (new, gone)
        if not new and not gone:
            return None
        found = await self.topics.hash(pause)
        frame = await replies.topic_update(self.watcher_id, new, gone, found, pause)
        self._owed = ([], [])
        return frame

    def tell(self, frame: bytes) -> None:
        self.connection.send_frame(frame)
        note_unread(self.connection, self._budget)


class WatchedNamespace:
    """The persistent topics of one namespace, kept up to date while somebody wants to know."""

    def __init__(self, store: MetadataStore, namespace: str, turn: Any) -> None:
        self._store = store
        self._namespace = namespace
        self._turn = turn
        self._path = paths.managed_ledgers(namespace, PERSISTENT)
        self._matching: dict[str, MatchingTopics] = {}  # by the text of their pattern
        self._changed = asyncio.Event()
        self._unsubscribe = store.watch(
            self._on_notification,
            prefix=self._path,
            lists_down_to=paths.TOPIC_LIST_SLASHES,
            above=store.is_shared,  # the others tell when the list comes to be, whatever was read
        )
        self._task: asyncio.Task[None] | None = None
        self._loaded: asyncio.Future[None] | None = None
        self._is_empty = True  # the list in metadata, or it is not there
        self.topics: dict[str, TopicName] = {}  # by their names in metadata
        self._announced: dict[str, TopicName] = {}  # those that every watcher has been told of
        self.users = 0  # watchers, and those that are being made

    async def load(self) -> None:
        """Reads the list for the first time, once for all who wait. Raises MetadataError."""
        if self._loaded is None or (self._loaded.done() and self._loaded.exception()):
            self._loaded = asyncio.ensure_future(self._read())
        await asyncio.shield(self._loaded)
        if self._task is None:
            self._announced = self.topics
            self._task = asyncio.ensure_future(self._follow())

    async def matching(self, text: str, pattern: TopicsPattern) -> MatchingTopics:
        """The topics that a pattern names, for one more user."""
        found = self._matching.get(text)
        if found is None:
            found = self._matching[text] = MatchingTopics(pattern)
        found.users += 1
        try:
            if found.filled is None:
                found.filled = asyncio.ensure_future(paced(self._fill(found)))
            await asyncio.shield(found.filled)
        except BaseException:
            self.release(text, found)
            raise
        return found

    async def _fill(self, topics: MatchingTopics) -> None:
        known: Mapping[str, TopicName] = _NOTHING
        names: dict[str, None] = {}
        slices = Slices()
        # Nobody has heard of anything yet, so what changed meanwhile just counts.
        while known is not self.topics:
            before, known = known, self.topics
            added, deleted = await _difference(before, known, slices.pause)
            for each in added:
                if matches(topics.pattern, each):
                    names[str(each)] = None
                await slices.pause()
            for each in deleted:
                names.pop(str(each), None)
                await slices.pause()
        topics.names = names
        topics.changes += 1

    def release(self, text: str, topics: MatchingTopics) -> None:
        """One user less."""
        topics.users -= 1
        if topics.users == 0 and self._matching.get(text) is topics:
            del self._matching[text]

    def watchers(self) -> list[TopicListWatcher]:
        """Those who are told."""
        return [each for topics in self._matching.values() for each in topics.watchers]

    def close(self) -> None:
        """Nobody wants to know any more. What it kept for that refers to it: they were a ring."""
        unsubscribe, self._unsubscribe = self._unsubscribe, _nothing
        unsubscribe()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def _on_notification(self, notification: Notification) -> None:
        path = notification.path
        # What is above it tells while it is not there.
        if path == self._path or (self._is_empty and self._path.startswith(path)):
            self._changed.set()

    async def _read(self) -> None:
        nodes = await followed_children(self._store, self._path)
        self._is_empty = not nodes
        self.topics = await _persistent_topics(self._namespace, nodes, self.topics)

    async def _follow(self) -> None:
        """Reads the list again after changes and tells of them; what takes long comes rarely."""
        loop = asyncio.get_running_loop()
        delay = RETRY_S  # after an error that nobody has thought of
        while True:
            await self._changed.wait()
            self._changed.clear()
            began = loop.time()
            try:
                await self._read()
                await self._tell()
            except MetadataError as error:
                log.warning("topics cannot be listed", namespace=self._namespace, error=error)
                self._changed.set()
                await asyncio.sleep(RETRY_S)
                continue
            except Exception as error:
                # Its clients have no other way to hear of topics: it is tried again.
                log.failure("news of topics cannot be told", error, namespace=self._namespace)
                self._changed.set()
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_MAX_S)
                continue
            delay = RETRY_S
            await asyncio.sleep((loop.time() - began) * REST_FACTOR)

    async def _tell(self) -> None:
        """Tells all watchers; one that comes meanwhile has got the list as it is now.

        One that cannot be told keeps nobody else from it. Raises what kept it from that.
        """
        slices = Slices()
        added, deleted = await _difference(self._announced, self.topics, slices.pause)
        failure: Exception | None = None
        for topics in list(self._matching.values()):
            matching = await _matching(topics.pattern, added)
            new, gone = await topics.note(matching, deleted, slices.pause)
            # Who comes from now on gets the names as they are now.
            for watcher in list(topics.watchers):
                if watcher in topics.watchers:
                    try:
                        frame = await watcher.on_change(new, gone, slices.pause)
                        if frame is not None and watcher in topics.watchers:
                            self._turn.run(watcher.tell, frame)
                    except Exception as error:
                        failure = error
                await slices.pause()
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # whose traceback has this frame
        self._announced = self.topics


class Listing:
    """What a list costs the client that it is made for, while it is."""

    def __init__(self, memory: ConnectionMemory) -> None:
        self._memory = memory
        self._cost = 0

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.release(self._cost)

    def charge(self, names: int) -> None:
        """It has so many more. Raises NotAllowed or TooManyRequests."""
        self._memory.charge(LISTED_NAME_BYTES * names)
        self._cost += LISTED_NAME_BYTES * names


class TopicLists:
    """The handlers of these commands; handlers.py has the table that leads here."""

    def __init__(self, broker: Broker, lookups: LookupLimit) -> None:
        self._broker = broker
        self._lookups = lookups
        self._watched: dict[str, WatchedNamespace] = {}

    async def handle_get_topics(self, connection: Connection, message: Any) -> None:
        """GET_TOPICS_OF_NAMESPACE."""
        namespace = str(NamespaceName.get(message.namespace))
        pattern = self._pattern(message)
        with self._lookups:
            async with connection.session.listing:
                await until_read(connection)
                if not connection.closed:
                    await self._tell_topics(connection, message, namespace, pattern)

    async def _tell_topics(
        self, connection: Connection, message: Any, namespace: str, pattern: TopicsPattern | None
    ) -> None:
        with Listing(connection.session.memory) as listing:
            topics = await self._topics_of(namespace, message.mode, listing)
            if pattern is not None:
                topics = await _matching(pattern, topics)
            pause = Slices().pause
            names = []
            for each in topics:
                names.append(str(each))
                await pause()
            found = await topics_hash(names, pause)
            changed = not message.HasField("topics_hash") or message.topics_hash != found
            told = names if changed else []
            connection.send_frame(
                await replies.topics_of_namespace(
                    message.request_id, told, pattern is not None, found, changed, pause
                )
            )

    def _pattern(self, message: Any) -> TopicsPattern | None:
        config = self._broker.config
        if (
            not config.enableBrokerSideSubscriptionPatternEvaluation
            or not message.HasField("topics_pattern")
            or len(message.topics_pattern) > config.subscriptionPatternMaxLength
        ):
            return None
        try:
            return compile_pattern(message.topics_pattern)
        except BeyondRE2:
            return None  # The client is told that the list is not filtered, and does it by itself.

    async def _topics_of(self, namespace: str, mode: int, listing: Listing) -> list[TopicName]:
        modes = pb.CommandGetTopicsOfNamespace
        found: list[TopicName] = []
        if mode != modes.NON_PERSISTENT:
            path = paths.managed_ledgers(namespace, PERSISTENT)
            nodes = await self._broker.metadata.children(path)
            listing.charge(len(nodes))
            persistent = await _persistent_topics(namespace, nodes, _NOTHING)
            found.extend(persistent.values())
        if mode != modes.PERSISTENT:
            names = await self._broker.topics.registry.open_names(namespace, NON_PERSISTENT)
            listing.charge(len(names))
            found.extend(each for each in names if not each.is_system)
        return found

    async def handle_watch(self, connection: Connection, message: Any, opening: Opening) -> None:
        """WATCH_TOPIC_LIST; asked again, it answers with the list as it is now."""
        watcher_id = message.watcher_id
        watchers = connection.session.watchers
        with self._lookups:
            watcher = watchers.get(watcher_id)
            if watcher is None:
                watcher = await self._watch(connection, message)
                if connection.closed:
                    watcher.forget()
                    return
                watchers[watcher_id] = watcher
            async with connection.session.listing:
                await until_read(connection)
                if not connection.closed:
                    await self._tell_watched(connection, message, watcher.topics)

    async def _tell_watched(
        self, connection: Connection, message: Any, topics: MatchingTopics
    ) -> None:
        pause = Slices().pause
        seen = -1
        with Listing(connection.session.memory) as listing:
            listing.charge(len(topics.names))
            while seen != topics.changes:
                # The client passes over news that come before the answer: it has to have them.
                seen = topics.changes
                parts = await sorted_parts(list(topics.names), pause)
                found = await hash_of_parts(parts, pause)
                is_known = message.HasField("topics_hash") and message.topics_hash == found
                names = [] if is_known else list(chain.from_iterable(parts))
                frame = await replies.watch_topic_list_success(
                    message.request_id, message.watcher_id, names, found, pause
                )
            connection.send_frame(frame)

    async def _watch(self, connection: Connection, message: Any) -> TopicListWatcher:
        namespace = str(NamespaceName.get(message.namespace))
        pattern = self._watchable(message.topics_pattern)
        session = connection.session
        # The one that is asked for is among those that are being opened; others may be open
        # already, and wait for their list.
        opening = sum(
            kind == "watcher" and each not in session.watchers for kind, each in session.opening
        )
        if len(session.watchers) + opening > WATCHERS_MAX:
            raise NotAllowed(f"A connection has at most {WATCHERS_MAX} topic list watchers.")
        text = message.topics_pattern
        cost = WATCHER_BYTES + len(text)
        session.memory.charge(cost)
        watched = self._watched.get(namespace)
        if watched is None:
            turn = self._broker.connections.turn
            watched = WatchedNamespace(self._broker.metadata, namespace, turn)
            self._watched[namespace] = watched
        watched.users += 1
        try:
            await watched.load()
            topics = await watched.matching(text, pattern)
            watcher = TopicListWatcher(
                connection, message.watcher_id, topics, self._broker.client_memory
            )
            try:
                topics.join(watcher)
            except PulsarError:
                watched.release(text, topics)
                raise
        except BaseException:
            session.memory.release(cost)
            self._release(namespace, watched)
            raise

        def forget() -> None:
            watcher.forget = _nothing  # else the two would be a ring
            topics.leave(watcher)
            watched.release(text, topics)
            session.memory.release(cost)
            self._release(namespace, watched)

        watcher.forget = forget
        return watcher

    def _watchable(self, pattern: str) -> TopicsPattern:
        """Raises NotAllowed when a client has to find out by itself; it asks for the list then."""
        config = self._broker.config
        if not config.enableBrokerTopicListWatcher:
            raise NotAllowed("Watching lists of topics is disabled (enableBrokerTopicListWatcher).")
        limit = config.subscriptionPatternMaxLength
        if len(pattern) > limit:
            raise NotAllowed(
                f"The topics pattern is longer than {limit} characters"
                " (subscriptionPatternMaxLength)."
            )
        try:
            return compile_pattern(pattern)
        except BeyondRE2 as error:
            raise NotAllowed(str(error)) from error

    def watchers(self) -> list[tuple[str, TopicListWatcher]]:
        """All that are open, with their namespaces."""
        return [
            (namespace, watcher)
            for namespace, watched in self._watched.items()
            for watcher in watched.watchers()
        ]

    def _release(self, namespace: str, watched: WatchedNamespace) -> None:
        watched.users -= 1
        if watched.users == 0:
            watched.close()
            del self._watched[namespace]

    async def handle_watch_close(self, connection: Connection, message: Any) -> None:
        """WATCH_TOPIC_LIST_CLOSE."""
        await opened(connection, ("watcher", message.watcher_id))
        watcher = connection.session.watchers.pop(message.watcher_id, None)
        if watcher is not None:
            watcher.forget()
        connection.send_frame(replies.success(message.request_id))


async def _persistent_topics(
    namespace: str, nodes: Iterable[str], known: Mapping[str, TopicName]
) -> dict[str, TopicName]:
    """The persistent topics of a namespace, without the broker's own, by their names in metadata,
    which are all that it has there. known: what an earlier list said.
    """
    slices = Slices()
    found: dict[str, TopicName] = {}
    for name in nodes:
        topic = known.get(name) or topic_of_node(PERSISTENT, namespace, name)
        if topic is not None and not topic.is_system:
            found[name] = topic
        await slices.pause()
    return found


async def _difference(
    before: Mapping[str, TopicName], after: Mapping[str, TopicName], pause: Pause
) -> tuple[list[TopicName], list[TopicName]]:
    """(added, deleted). Neither list may change meanwhile."""
    added: list[TopicName] = []
    deleted: list[TopicName] = []
    for names, others, found in ((after, before, added), (before, after, deleted)):
        for name, topic in names.items():
            if name not in others:
                found.append(topic)
            await pause()
    return added, deleted


async def _matching(pattern: TopicsPattern, topics: Iterable[TopicName]) -> list[TopicName]:
    """Those that a pattern names."""
    slices = Slices()
    found = []
    for topic in list(topics):
        if matches(pattern, topic):
            found.append(topic)
        await slices.pause()
    return found
