"""One row of the table of commands: what a command of a client is, and what it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from pyxbroker.auth.authorization import AUTHENTICATED, CONSUME_TOPIC, SUBSCRIBE, Resource, Right
from pyxbroker.base.errors import AuthorizationError, PulsarError, TopicNotFound
from pyxbroker.base.topic_name import NamespaceName, TopicName
from pyxbroker.broker.commands import replies

Handler = Callable[..., "Awaitable[None] | None"]
"""Takes the connection and the command, and the Opening when the command opens something."""


def answer_error(message: Any, told: PulsarError) -> bytes:
    """ERROR: what most requests get that fail."""
    return replies.error(message.request_id, told.code, str(told))


def no_resource(message: Any) -> Resource:
    """The command is about what its connection has open already."""
    return None


def topic_of(message: Any) -> Resource:
    """Raises InvalidTopicName."""
    name = TopicName.get(message.topic)
    name.check_length()
    return name


def namespace_of(message: Any) -> Resource:
    """Raises InvalidTopicName."""
    name = NamespaceName.get(message.namespace)
    name.check_length()
    return name


def no_subscription(message: Any) -> None:
    """The command is about no subscription."""


def subscribed(message: Any) -> tuple[Right, str]:
    """A SUBSCRIBE needs its right for the subscription, too."""
    return CONSUME_TOPIC, message.subscription


def initially_subscribed(message: Any) -> tuple[Right, str] | None:
    """A PRODUCER may make a subscription."""
    if not message.initial_subscription_name:
        return None
    return SUBSCRIBE, message.initial_subscription_name


def producer_id(message: Any) -> tuple[str, int]:
    """The key in Session.opening of what a PRODUCER opens."""
    return "producer", message.producer_id


def consumer_id(message: Any) -> tuple[str, int]:
    """The same of a SUBSCRIBE."""
    return "consumer", message.consumer_id


def watcher_id(message: Any) -> tuple[str, int]:
    """The same of a WATCH_TOPIC_LIST."""
    return "watcher", message.watcher_id


class Command(NamedTuple):
    """A command that is not hot. Whoever opened a producer or a consumer may do with it what its
    commands do: the right was looked at then.
    """

    field: str  # of BaseCommand
    handler: Handler
    right: Right = AUTHENTICATED
    resource: Callable[[Any], Resource] = no_resource
    """What the right is checked on, from the command. A command with one is handled as a task."""
    refusal: Callable[[Any, PulsarError], bytes] = answer_error
    """The frame that tells a client why the command failed."""
    unauthorized: str = ""
    """What its client is told who has no right."""
    no_tenant: str = ""
    """The sentence of the TopicNotFound for a tenant that does not exist, where Pulsar answers with
    one; it may name `{topic}` and `{namespace}`."""
    subscription: Callable[[Any], tuple[Right, str] | None] = no_subscription
    """What it needs besides, and of which subscription."""
    change: str = ""
    """What the audit log calls it, of what changes a subscription for good."""
    opens: Callable[[Any], tuple[str, int]] | None = None
    """What it opens, which is marked as being opened before the right is looked at: who authorizes
    may take its time, and what the client asks for meanwhile must find it."""

    is_for_owner: bool = False
    """It opens its topic, so that only the broker that serves the topic handles it."""

    def refused(self, error: AuthorizationError, resource: Resource) -> PulsarError:
        """What a client is told that has no right: the words of its command, as others are REST's,
        unless it can do something about it.
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
