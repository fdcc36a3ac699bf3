"""One row of the command table: a client command and what it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from pyxbroker.auth.authorization import AUTHENTICATED, CONSUME_TOPIC, SUBSCRIBE, Resource, Right
from pyxbroker.base.errors import AuthorizationError, PulsarError, TopicNotFound
from pyxbroker.base.topic_name import NamespaceName, TopicName
from pyxbroker.broker.commands import replies

Handler = Callable[..., "Awaitable[None] | None"]
"""Takes the connection and the command; also the Opening, if the command opens something."""


def answer_error(message: Any, reported: PulsarError) -> bytes:
    """Return the ERROR frame with which most failed requests are answered."""
    return replies.error(message.request_id, reported.code, str(reported))


def no_resource(message: Any) -> Resource:
    """Return None, for commands about producers or consumers that the connection has already."""
    return None


def topic_of(message: Any) -> Resource:
    """Return the topic of the command. Raises InvalidTopicName."""
    name = TopicName.get(message.topic)
    name.check_length()
    return name


def namespace_of(message: Any) -> Resource:
    """Return the namespace of the command. Raises InvalidTopicName."""
    name = NamespaceName.get(message.namespace)
    name.check_length()
    return name


def no_subscription(message: Any) -> None:
    """Return None: the command concerns no subscription."""


def subscribed(message: Any) -> tuple[Right, str]:
    """Return the right that a SUBSCRIBE needs for its subscription, and the subscription."""
    return CONSUME_TOPIC, message.subscription


def initially_subscribed(message: Any) -> tuple[Right, str] | None:
    """Return the right that a PRODUCER needs for its initial subscription, if it names one."""
    if not message.initial_subscription_name:
        return None
    return SUBSCRIBE, message.initial_subscription_name


def producer_id(message: Any) -> tuple[str, int]:
    """Return the key in Session.opening for a PRODUCER."""
    return "producer", message.producer_id


def consumer_id(message: Any) -> tuple[str, int]:
    """Return the key in Session.opening for a SUBSCRIBE."""
    return "consumer", message.consumer_id


def watcher_id(message: Any) -> tuple[str, int]:
    """Return the key in Session.opening for a WATCH_TOPIC_LIST."""
    return "watcher", message.watcher_id


class Command(NamedTuple):
    """A command outside the hot path. The right to use a producer or consumer is checked when it is
    opened, not for its later commands.
    """

    field: str  # of BaseCommand
    handler: Handler
    right: Right = AUTHENTICATED
    resource: Callable[[Any], Resource] = no_resource
    """A function for the resource of the right; a command with one runs as a task."""
    refusal: Callable[[Any, PulsarError], bytes] = answer_error
    """A function for the frame that reports an error to the client."""
    unauthorized: str = ""
    """Error text for a client without the right."""
    no_tenant: str = ""
    """Text of the TopicNotFound for a tenant that does not exist, where Pulsar answers with one.
    May contain `{topic}` and `{namespace}`.
    """
    subscription: Callable[[Any], tuple[Right, str] | None] = no_subscription
    """A function for a further right that the command needs, and the subscription it is for."""
    change: str = ""
    """Name in the audit log, for commands that change a subscription durably."""
    opens: Callable[[Any], tuple[str, int]] | None = None
    """A function for the key that the command opens. The key is marked as being opened before the
    right is checked: authorization may take time, and further commands of the client must find it.
    """

    is_for_owner: bool = False
    """True if the command opens its topic: only the broker that serves the topic handles it."""

    def refused(self, error: AuthorizationError, resource: Resource) -> PulsarError:
        """Return the error for a client without the right. The text is that of the command in
        Pulsar, unless the other text helps the client more.
        """
        from pyxbroker.auth.permissions import TenantMissing, WrongPrefix

        if isinstance(error, TenantMissing) and self.no_tenant:
            assert isinstance(resource, TopicName)
            return TopicNotFound(
                self.no_tenant.format(topic=resource, namespace=resource.namespace)
            )
        if isinstance(error, TenantMissing | WrongPrefix) or not self.unauthorized:
            return error
        return AuthorizationError(self.unauthorized)
