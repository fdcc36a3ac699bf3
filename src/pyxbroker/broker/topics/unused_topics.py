"""Non-persistent topics that no client uses: a limit on how many of them stay open."""

from __future__ import annotations

from collections import OrderedDict

from pyxbroker.broker.topics.non_persistent import NonPersistentTopic
from pyxbroker.broker.topics.registry import TopicRegistry
from pyxbroker.broker.topics.topic import Topic

UNUSED_MAX = 10_000  # topics that stay open


class UnusedTopics:
    """Candidates for closing, in the order in which the last client left them.

    A client may create thousands of topics in a second and leave them. The oldest ones are closed
    before they are old enough to be deleted as inactive.
    """

    def __init__(self, registry: TopicRegistry) -> None:
        self._registry = registry
        self._topics: OrderedDict[NonPersistentTopic, None] = OrderedDict()
        registry.on_closed.append(self._on_closed)

    def note_left(self, topic: NonPersistentTopic) -> None:
        """Add a topic that a client has left; other clients may still use it."""
        if topic.fenced:
            return
        self._topics[topic] = None
        self._topics.move_to_end(topic)
        while len(self._topics) > UNUSED_MAX:
            oldest, _ = self._topics.popitem(last=False)
            # A topic that is in use is added again when a client leaves it.
            if oldest.close_unused():
                self._registry.remove(oldest)

    def _on_closed(self, topic: Topic) -> None:
        if isinstance(topic, NonPersistentTopic):
            self._topics.pop(topic, None)
