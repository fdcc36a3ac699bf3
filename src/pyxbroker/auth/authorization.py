"""What somebody may do: rights, as Pulsar's authorization names them, and their check.

An operation names the right that it needs, a `Right`, in the table where it is found itself: for
REST the table of endpoints. Nothing else asks whether it is allowed.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from pyxbroker.auth.principal import Principal
from pyxbroker.base.topic_name import NamespaceName, TopicName

Resource = NamespaceName | TopicName | None

SUPERUSER = "superuser"
TENANT_ADMIN = "tenant administrator"
# Actions that are granted on a namespace or a topic.
PRODUCE = "produce"
CONSUME = "consume"


class Scope(Enum):
    """What a right is about."""

    OPEN = "open to everybody"
    AUTHENTICATED = "any authenticated role"
    BROKER = "broker operation"
    NAMESPACE = "namespace operation"
    NAMESPACE_POLICY = "namespace policy"
    TOPIC = "topic operation"
    TOPIC_POLICY = "topic policy"


# The resources that a right can be checked on. A topic stands for its namespace, too.
_RESOURCES: dict[Scope, tuple[type, ...]] = {
    Scope.OPEN: (type(None),),
    Scope.AUTHENTICATED: (type(None),),
    Scope.BROKER: (type(None),),
    Scope.NAMESPACE: (NamespaceName, TopicName),
    Scope.NAMESPACE_POLICY: (NamespaceName, TopicName),
    Scope.TOPIC: (TopicName,),
    Scope.TOPIC_POLICY: (TopicName,),
}


class Right(NamedTuple):
    """What an operation needs: Pulsar's name of it, and who has it. A superuser has every right."""

    scope: Scope
    operation: str = ""
    holders: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.operation:
            return self.scope.value
        return f"{self.scope.value} {self.operation}: {', '.join(self.holders)}"


OPEN = Right(Scope.OPEN)
AUTHENTICATED = Right(Scope.AUTHENTICATED)
HEALTH_CHECK = Right(Scope.BROKER, "HEALTH_CHECK", (SUPERUSER,))
GET_TOPICS = Right(Scope.NAMESPACE, "GET_TOPICS", (TENANT_ADMIN, PRODUCE, CONSUME))
CREATE_TOPIC = Right(Scope.NAMESPACE, "CREATE_TOPIC", (TENANT_ADMIN,))
DELETE_TOPIC = Right(Scope.NAMESPACE, "DELETE_TOPIC", (TENANT_ADMIN,))
WRITE_PARTITION = Right(Scope.NAMESPACE_POLICY, "WRITE PARTITION", (TENANT_ADMIN,))
LOOKUP = Right(Scope.TOPIC, "LOOKUP", (TENANT_ADMIN, PRODUCE, CONSUME))
PRODUCE_TO_TOPIC = Right(Scope.TOPIC, "PRODUCE", (TENANT_ADMIN, PRODUCE))
CONSUME_TOPIC = Right(Scope.TOPIC, "CONSUME", (TENANT_ADMIN, CONSUME))
UNSUBSCRIBE = Right(Scope.TOPIC, "UNSUBSCRIBE", (TENANT_ADMIN, CONSUME))
SKIP = Right(Scope.TOPIC, "SKIP", (TENANT_ADMIN, CONSUME))
EXPIRE_MESSAGES = Right(Scope.TOPIC, "EXPIRE_MESSAGES", (TENANT_ADMIN, CONSUME))
UNLOAD = Right(Scope.TOPIC, "UNLOAD", (TENANT_ADMIN,))
TRIM_TOPIC = Right(Scope.TOPIC, "TRIM_TOPIC", (TENANT_ADMIN,))
TRUNCATE = Right(Scope.TOPIC, "TRUNCATE", (TENANT_ADMIN,))
TERMINATE = Right(Scope.TOPIC, "TERMINATE", (TENANT_ADMIN,))


async def authorize(principal: Principal, right: Right, resource: Resource) -> None:
    """Raises AuthorizationError when a principal does not have a right on a resource.

    Authorization is off so far, and everybody has every right then. A right that is asked for on
    what it cannot be about is a fault of ours all the same.
    """
    assert isinstance(resource, _RESOURCES[right.scope]), f"{right} on {resource!r}"
