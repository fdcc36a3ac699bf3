"""The last refused producer and consumer of each topic and subscription.

A refused client usually retries, and its user does not see the error. The broker remembers it for a
while, because it may be the reason why a topic or a subscription does not move.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pyxbroker.base.errors import InvalidTopicName
from pyxbroker.base.times import iso_ms
from pyxbroker.base.topic_name import TopicName
from pyxbroker.proto import PulsarApi as pb

if TYPE_CHECKING:
    from pyxbroker.base.errors import PulsarError

REFUSALS_MAX = 1_000
RECENT_S = 120.0  # clients retry after a minute at most
TEXT_MAX = 500  # characters of the message


class Refusal(NamedTuple):
    """The error with which a client was refused."""

    error: str  # the name of the ServerError
    message: str
    client: str  # its address
    time_s: float  # since 1970

    def as_json(self) -> dict[str, str]:
        """Return the fields of the answer."""
        when = iso_ms(int(self.time_s * 1000))
        return {
            "error": self.error,
            "message": self.message,
            "client": self.client,
            "time": when,
        }


class LastRefusals:
    """The refusals of a broker, oldest first."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, str], Refusal] = {}  # by topic and subscription

    def note(self, command: Any, error: PulsarError, client: str) -> None:
        """Note that a PRODUCER or SUBSCRIBE was refused."""
        subscription = getattr(command, "subscription", "")
        # Text that is not UTF-8 is bytes here. No topic has such a name.
        if not isinstance(command.topic, str) or not isinstance(subscription, str):
            return
        try:
            topic = str(TopicName.get(command.topic))
        except InvalidTopicName:
            return
        key = topic, subscription
        self._noted.pop(key, None)
        name = pb.ServerError.Name(error.code)
        self._noted[key] = Refusal(name, str(error)[:TEXT_MAX], client, time.time())
        if len(self._noted) > REFUSALS_MAX:
            del self._noted[next(iter(self._noted))]

    def recent(self, topic: TopicName, subscription: str = "") -> Refusal | None:
        """Return the last refusal of a consumer, or of a producer (no subscription), or None."""
        found = self._noted.get((str(topic), subscription))
        return found if found is not None and time.time() - found.time_s <= RECENT_S else None
