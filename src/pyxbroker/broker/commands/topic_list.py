"""Topic lists of a namespace for clients that subscribe by pattern, and notifications of changes.

A client gets the list with GET_TOPICS_OF_NAMESPACE, or the list and its changes with
WATCH_TOPIC_LIST. The list has the persistent topics with a managed ledger in metadata, loaded or
not, and the non-persistent topics loaded by this broker. Only persistent topics are watched.
Mirrors Pulsar's NamespaceService.getListOfTopics and TopicListService.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyxbroker.base.errors import NotAllowed, PulsarError
from pyxbroker.base.log import get_logger
from pyxbroker.base.memory_budget import ConnectionMemory
from pyxbroker.base.pacing import paced
from pyxbroker.base.slices import Slices, in_slices
from pyxbroker.base.topic_name import NON_PERSISTENT, PERSISTENT, NamespaceName, TopicName
from pyxbroker.broker.client_memory import (
    LISTED_NAME_BYTES,
    WATCHED_NAME_BYTES,
    WATCHER_BYTES,
    ClientMemory,
)
from pyxbroker.broker.commands import replies
from pyxbroker.broker.commands.session import Opening, wait_opened
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
from pyxbroker.broker.commands.unread import note_unread, wait_until_read
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

log = get_logger("pyxbroker.topics")

WATCHERS_MAX = 1_000  # per connection
RETRY_S = 1.0
RETRY_MAX_S = 60.0
PAUSE_FACTOR = 10  # pause after a change: so many times the duration of its processing
_NOTHING: Mapping[str, TopicName] = MappingProxyType({})


class MatchingTopics:
    """The names in a namespace that match a pattern: one set for all its watchers."""

    def __init__(self, pattern: TopicsPattern) -> None:
        self.pattern = pattern
        # The garbage collector does not track a dict of strings. It would visit every name of a
        # set.
        self.names: dict[str, None] = {}
        self.changes = 0  # number of changes of the names so far
        self.watchers: dict[TopicListWatcher, None] = {}  # in the order of their creation
        self.users = 0  # watchers, including those being created
        self.filled: asyncio.Future[None] | None = None
        self._hash = (-1, "")  # the hash of the names, and the change it belongs to
        self._payer: ConnectionMemory | None = None  # the connection charged for the names
        self._paid = 0

    async def note(
        self, matching: Iterable[TopicName], deleted: Iterable[TopicName], pause: Pause
    ) -> tuple[list[str], list[str]]:
        """Apply a change. Return the names that are new and gone. Calls do not overlap."""
        # A repeated change, after a notification has failed, has no effect.
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
        """Return the hash of the names, which do not change meanwhile."""
        if self._hash[0] != self.changes:
            self._hash = (self.changes, await topics_hash(list(self.names), pause))
        return self._hash[1]

    # --- memory -------------------------------------------------------------------------------

    @property
    def _cost(self) -> int:
        return WATCHED_NAME_BYTES * len(self.names)

    def join(self, watcher: TopicListWatcher) -> None:
        """Add a watcher. Raises NotAllowed or TooManyRequests if its connection cannot pay for the
        names.
        """
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
    """Do nothing: the watcher is closed."""


class TopicListWatcher:
    """A WATCH_TOPIC_LIST of a client."""

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
        self._unsent: tuple[list[str], list[str]] = ([], [])  # changes not sent yet
        self.topics = topics
        self.memory: ConnectionMemory = connection.session.memory
        self.forget: Callable[[], None] = _nothing

    async def on_change(self, new: list[str], gone: list[str], pause: Pause) -> bytes | None:
        """Return the frame that notifies the client of a change, or None."""
        names = self.topics.names
        unsent_new, unsent_gone = self._unsent
        if unsent_new or unsent_gone:
            # Only the latest change of a name counts.
            new = [name for name in dict.fromkeys(unsent_new + new) if name in names]
            gone = [name for name in dict.fromkeys(unsent_gone + gone) if name not in names]
        self._unsent = (new, gone)
        if not new and not gone:
            return None
        found = await self.topics.hash(pause)
        frame = await replies.topic_update(self.watcher_id, new, gone, found, pause)
        self._unsent = ([], [])
        return frame

    def send(self, frame: bytes) -> None:
        self.connection.send_frame(frame)
        note_unread(self.connection, self._budget)


class WatchedNamespace:
    """The persistent topics of one namespace, updated while there are watchers."""

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
            above=store.is_shared,  # a shared store notifies of parents until the list exists
        )
        self._task: asyncio.Task[None] | None = None
        self._loaded: asyncio.Future[None] | None = None
        self._is_empty = True  # the list in metadata is empty or does not exist
        self.topics: dict[str, TopicName] = {}  # by their names in metadata
        self._announced: dict[str, TopicName] = {}  # known to every watcher
        self.users = 0  # watchers, including those being created

    async def load(self) -> None:
        """Read the list for the first time, once for all waiting tasks. Raises MetadataError."""
        if self._loaded is None or (self._loaded.done() and self._loaded.exception()):
            self._loaded = asyncio.ensure_future(self._read())
        await asyncio.shield(self._loaded)
        if self._task is None:
            self._announced = self.topics
            self._task = asyncio.ensure_future(self._follow())

    async def matching(self, text: str, pattern: TopicsPattern) -> MatchingTopics:
        """Return the topics that match a pattern, for one more user."""
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
        # No watcher has these names yet, so changes meanwhile are merged without notification.
        while known is not self.topics:
            before, known = known, self.topics
            added, deleted = await _difference(before, known, slices.pause)
            async for each in in_slices(added, slices):
                if matches(topics.pattern, each):
                    names[str(each)] = None
            async for each in in_slices(deleted, slices):
                names.pop(str(each), None)
        topics.names = names
        topics.changes += 1

    def release(self, text: str, topics: MatchingTopics) -> None:
        """Remove a user."""
        topics.users -= 1
        if topics.users == 0 and self._matching.get(text) is topics:
            del self._matching[text]

    def watchers(self) -> list[TopicListWatcher]:
        """Return all watchers."""
        return [each for topics in self._matching.values() for each in topics.watchers]

    def close(self) -> None:
        """Stop updating. The callback refers to this object, so this breaks a reference cycle."""
        unsubscribe, self._unsubscribe = self._unsubscribe, _nothing
        unsubscribe()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def _on_notification(self, notification: Notification) -> None:
        path = notification.path
        # While the list does not exist, the store notifies of its parents.
        if path == self._path or (self._is_empty and self._path.startswith(path)):
            self._changed.set()

    async def _read(self) -> None:
        nodes = await followed_children(self._store, self._path)
        self._is_empty = not nodes
        self.topics = await _persistent_topics(self._namespace, nodes, self.topics)

    async def _follow(self) -> None:
        """Read the list after changes, and notify watchers. The pauses grow with the duration."""
        loop = asyncio.get_running_loop()
        delay = RETRY_S  # after an unexpected error
        while True:
            await self._changed.wait()
            self._changed.clear()
            began = loop.time()
            try:
                await self._read()
                await self._notify()
            except MetadataError as error:
                log.warning("topics cannot be listed", namespace=self._namespace, error=error)
                self._changed.set()
                await asyncio.sleep(RETRY_S)
                continue
            except Exception as error:
                # Clients have no other source of changes, so the notification is retried.
                log.failure(
                    "watchers of topics cannot be notified", error, namespace=self._namespace
                )
                self._changed.set()
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_MAX_S)
                continue
            delay = RETRY_S
            await asyncio.sleep((loop.time() - began) * PAUSE_FACTOR)

    async def _notify(self) -> None:
        """Notify all watchers. A watcher created meanwhile has received the current list.

        An error for one watcher does not affect the other watchers. It is raised at the end.
        """
        slices = Slices()
        added, deleted = await _difference(self._announced, self.topics, slices.pause)
        failure: Exception | None = None
        for topics in list(self._matching.values()):
            matching = await _matching(topics.pattern, added)
            new, gone = await topics.note(matching, deleted, slices.pause)
            # Watchers created from now on get the current names.
            async for watcher in in_slices(list(topics.watchers), slices):
                if watcher in topics.watchers:
                    try:
                        frame = await watcher.on_change(new, gone, slices.pause)
                        if frame is not None and watcher in topics.watchers:
                            self._turn.run(watcher.send, frame)
                    except Exception as error:
                        failure = error
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # leave no cycle of the error and this frame
        self._announced = self.topics


class Listing:
    """Memory charged to a client while its list is built."""

    def __init__(self, memory: ConnectionMemory) -> None:
        self._memory = memory
        self._cost = 0

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.release(self._cost)

    def charge(self, names: int) -> None:
        """Charge this many more names. Raises NotAllowed or TooManyRequests."""
        self._memory.charge(LISTED_NAME_BYTES * names)
        self._cost += LISTED_NAME_BYTES * names


class TopicLists:
    """The handlers of these commands; the table in handlers.py calls them."""

    def __init__(self, broker: Broker, lookups: AbstractContextManager[None]) -> None:
        self._broker = broker
        self._lookups = lookups
        self._watched: dict[str, WatchedNamespace] = {}

    async def handle_get_topics(self, connection: Connection, message: Any) -> None:
        """GET_TOPICS_OF_NAMESPACE."""
        namespace = str(NamespaceName.get(message.namespace))
        pattern = self._pattern(message)
        with self._lookups:
            async with connection.session.listing:
                await wait_until_read(connection)
                if not connection.closed:
                    await self._send_topics(connection, message, namespace, pattern)

    async def _send_topics(
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
            sent = names if changed else []
            connection.send_frame(
                await replies.topics_of_namespace(
                    message.request_id, sent, pattern is not None, found, changed, pause
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
            return None  # The answer says "not filtered", and the client filters.

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
        """WATCH_TOPIC_LIST; a repetition answers with the current list."""
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
                await wait_until_read(connection)
                if not connection.closed:
                    await self._send_watched(connection, message, watcher.topics)

    async def _send_watched(
        self, connection: Connection, message: Any, topics: MatchingTopics
    ) -> None:
        pause = Slices().pause
        seen = -1
        with Listing(connection.session.memory) as listing:
            listing.charge(len(topics.names))
            while seen != topics.changes:
                # The client ignores updates that arrive before the answer, so the answer includes
                # them.
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
        # Includes the requested watcher. Others in `opening` may be open, and wait for their list.
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
            watcher.forget = _nothing  # breaks a reference cycle
            topics.leave(watcher)
            watched.release(text, topics)
            session.memory.release(cost)
            self._release(namespace, watched)

        watcher.forget = forget
        return watcher

    def _watchable(self, pattern: str) -> TopicsPattern:
        """Return the compiled pattern. Raises NotAllowed if the client must poll the list
        instead.
        """
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
        """Return all open watchers with their namespaces."""
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
        await wait_opened(connection, ("watcher", message.watcher_id))
        watcher = connection.session.watchers.pop(message.watcher_id, None)
        if watcher is not None:
            watcher.forget()
        connection.send_frame(replies.success(message.request_id))


async def _persistent_topics(
    namespace: str, nodes: Iterable[str], known: Mapping[str, TopicName]
) -> dict[str, TopicName]:
    """Return the persistent topics of a namespace, except system topics, by their names in
    metadata. known: topics of an earlier list, which are reused.
    """
    found: dict[str, TopicName] = {}
    async for name in in_slices(nodes):
        topic = known.get(name) or topic_of_node(PERSISTENT, namespace, name)
        if topic is not None and not topic.is_system:
            found[name] = topic
    return found


async def _difference(
    before: Mapping[str, TopicName], after: Mapping[str, TopicName], pause: Pause
) -> tuple[list[TopicName], list[TopicName]]:
    """Return (added, deleted). Neither list may change meanwhile."""
    added: list[TopicName] = []
    deleted: list[TopicName] = []
    for names, others, found in ((after, before, added), (before, after, deleted)):
        for name, topic in names.items():
            if name not in others:
                found.append(topic)
            await pause()
    return added, deleted


async def _matching(pattern: TopicsPattern, topics: Iterable[TopicName]) -> list[TopicName]:
    """Return the topics that match a pattern."""
    found = []
    async for topic in in_slices(list(topics)):
        if matches(pattern, topic):
            found.append(topic)
    return found
