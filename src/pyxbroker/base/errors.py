"""What a client can be told: one class for each ServerError, and its status in REST.

A refused request is answered with `code` and `str(error)`, so a sentence says what happened and,
where somebody can do something about it, what. Whoever raises an error usually knows more than
the class and passes its own sentence; the class has one for when there is nothing to add.

The numbers are those of ServerError in proto/PulsarApi.proto; the names are those of Pulsar's
broker exceptions, or of the wire where the broker has none. `ProtocolViolation` stands apart: a
peer that sends a malformed frame has no request that could be answered, its connection is closed.
"""

from __future__ import annotations

from typing import ClassVar


class PulsarError(Exception):
    """An operation is refused. Raise a subclass; each carries its ServerError in `code`, and the
    status with which REST answers it in `http_status`.
    """

    code: ClassVar[int]
    http_status: ClassVar[int] = 500
    sentence: ClassVar[str]

    def __init__(self, message: str | None = None) -> None:
        super().__init__(self.sentence if message is None else message)


class UnknownError(PulsarError):
    """Something failed that no other code describes."""

    code = 0
    sentence = "The broker failed; its log says why."


class MetadataStoreError(PulsarError):
    """The metadata store failed or cannot be reached. (ServerError calls it MetadataError.)"""

    code = 1
    http_status = 503
    sentence = "The metadata store failed or cannot be reached; try again later."


class ConcurrentModification(MetadataStoreError):
    """Others have changed the same record again and again meanwhile."""

    http_status = 409
    sentence = "Others change the same record again and again; try it once more."


class PersistenceError(PulsarError):
    """The storage could not store or read an entry."""

    code = 2
    sentence = "The storage failed; the broker's log says why."


def with_reference(sentence: str, reference: str) -> str:
    """A sentence that leaves out what only the log shall tell, and where to find it there."""
    return f"{sentence} (reference {reference})"


class AuthenticationError(PulsarError):
    """The credentials are missing, wrong or expired."""

    code = 3
    http_status = 401
    sentence = "Authentication failed; check the client's credentials."


class AuthorizationError(PulsarError):
    """The role is known, and may not do this."""

    code = 4
    http_status = 403
    sentence = "The role is not allowed to do this; ask the tenant's administrator for permission."


class NotPermitted(AuthorizationError):
    """The same where Pulsar's REST answers 401."""

    http_status = 401


class ConsumerBusy(PulsarError):
    """Other consumers hold the subscription."""

    code = 5
    http_status = 409
    sentence = "The subscription has another consumer; close it, or subscribe in shared mode."


class SubscriptionBusy(ConsumerBusy):
    """The subscription is in a state, or has consumers, that a new consumer cannot join."""

    sentence = "The subscription is busy with other consumers; close them first."


class ServiceNotReady(PulsarError):
    """The client looks the topic up again and retries: not owned here, moving, or fenced."""

    code = 6
    http_status = 503
    sentence = "The topic is not served here at this moment; look it up again."


class UnknownListener(ServiceNotReady):
    """A client names a listener that the broker does not have; Pulsar answers 500."""

    http_status = 400


class ProducerBlockedQuotaExceededError(PulsarError):
    """The backlog quota is reached and its policy is to hold producers (producer_request_hold)."""

    code = 7
    sentence = "The topic's backlog quota is reached; producing goes on when consumers catch up."


class ProducerBlockedQuotaExceededException(PulsarError):
    """The backlog quota is reached and its policy is to refuse producers (producer_exception)."""

    code = 8
    sentence = "The topic's backlog quota is reached; consume the backlog or raise the quota."


class ChecksumError(PulsarError):
    """The CRC-32C of a published entry does not match its bytes."""

    code = 9
    sentence = "The message was damaged on its way: its checksum does not match. Send it again."


class UnsupportedVersion(PulsarError):
    """The topic needs something that this peer's protocol version does not have."""

    code = 10
    sentence = "The client is too old for this; use a newer one."


class TopicNotFound(PulsarError):
    """There is no such topic, and it may not be created by using it."""

    code = 11
    http_status = 404
    sentence = "The topic does not exist; create it, or allow topics to be created by use."


class TenantNotFound(TopicNotFound):
    """There is no such tenant."""

    sentence = "The tenant does not exist; create it first."


class NamespaceNotFound(TopicNotFound):
    """There is no such namespace, or it is being deleted."""

    sentence = "The namespace does not exist; create it first."


class ClusterNotFound(TopicNotFound):
    """There is no such cluster."""

    sentence = "The cluster does not exist; create it first."


class FailureDomainNotFound(TopicNotFound):
    """The cluster has no such failure domain, or there is no such cluster."""

    sentence = "The cluster has no such failure domain."


class ResourceGroupNotFound(TopicNotFound):
    """There is no such resource group."""

    sentence = "The resource group does not exist; create it first."


class SubscriptionNotFound(PulsarError):
    """The topic has no such subscription."""

    code = 12
    http_status = 404
    sentence = "The topic has no such subscription."


class ConsumerNotFound(PulsarError):
    """The connection has no such consumer."""

    code = 13
    http_status = 404
    sentence = "The consumer is not open on this connection; subscribe again."


class TooManyRequests(PulsarError):
    """More lookups are under way, or more is remembered for clients, than the settings allow."""

    code = 14
    http_status = 429
    sentence = "Too many lookups are under way; try again in a moment."


class AnswersNotRead(TooManyRequests):
    """Answers of REST that clients have not read hold more than the settings allow."""

    http_status = 503
    sentence = "Too many answers are not read yet; try again in a moment."


class TooManyBodies(TooManyRequests):
    """Bodies of requests of REST hold more than the settings allow."""

    http_status = 503
    sentence = "Too many long requests are under way; try again in a moment."


class TopicTerminated(PulsarError):
    """The topic was terminated: it can be read and never written again."""

    code = 15
    sentence = "The topic is terminated and accepts no more messages."


class ProducerBusy(PulsarError):
    """The producer's name is in use, or the topic has as many producers as it may."""

    code = 16
    sentence = "A producer with this name is connected already; close it or choose another name."


class InvalidTopicName(PulsarError):
    """The text is no name of a topic or namespace."""

    code = 17
    http_status = 412
    sentence = (
        "The topic name is not valid; write persistent://tenant/namespace/topic or a short form."
    )


class IncompatibleSchema(PulsarError):
    """The schema breaks the compatibility that the namespace asks for, or is no schema."""

    code = 18
    http_status = 409
    sentence = "The schema is not compatible with the topic's schemas."


class InvalidSchema(IncompatibleSchema):
    """The definition of a schema is not what its type says."""

    http_status = 422
    sentence = "The definition of the schema is not what its type says."


class ConsumerAssignError(PulsarError):
    """A Key_Shared consumer asks for key-hash ranges that it cannot have."""

    code = 19
    sentence = "The consumer's key-hash ranges overlap those of another consumer."


class TransactionCoordinatorNotFound(PulsarError):
    """This broker does not run the transaction coordinator."""

    code = 20
    sentence = "The transaction coordinator is not on this broker; look it up again."


class InvalidTxnStatus(PulsarError):
    """The transaction is in a state that does not allow this step."""

    code = 21
    sentence = "The transaction's state does not allow this; begin a new transaction."


class NotAllowed(PulsarError):
    """A policy, or the kind of topic or subscription, forbids the operation."""

    code = 22
    http_status = 405
    sentence = "The operation is not allowed on this topic."


class TopicExists(NotAllowed):
    """A topic of this name is there already."""

    http_status = 409
    sentence = "A topic with this name exists already."


class ClusterInUse(NotAllowed):
    """The tenant has a namespace in the cluster."""

    http_status = 412
    sentence = "A namespace of the tenant is in the cluster; delete it first."


class ClusterExists(NotAllowed):
    """A cluster of this name is there already."""

    http_status = 409
    sentence = "A cluster with this name exists already."


class ClusterNotEmpty(NotAllowed):
    """A tenant may have namespaces in the cluster, or the cluster has isolation policies."""

    http_status = 412
    sentence = (
        "A tenant may be in the cluster, or it has isolation policies; take it from the tenant's"
        " clusters, and delete its policies, first."
    )


class ClustersLimitReached(NotAllowed):
    """There are as many clusters, or domains or isolation policies of one, as there may be."""

    http_status = 412
    sentence = "There are as many clusters or failure domains as there may be."


class BrokerInOtherDomain(NotAllowed):
    """A broker is in another failure domain of its cluster."""

    http_status = 409
    sentence = "A broker is in one failure domain; take it out of the other one first."


class ResourceGroupInUse(NotAllowed):
    """A namespace is in the resource group."""

    http_status = 412
    sentence = "A namespace is in the resource group; take it out first."


class ResourceGroupsLimitReached(NotAllowed):
    """There are as many resource groups as there may be."""

    http_status = 412
    sentence = "There are as many resource groups as there may be."


class PoliciesTooLarge(NotAllowed):
    """A topic, or all topics of a namespace, would say more of themselves than is kept."""

    http_status = 412
    sentence = "The topics say more of themselves than is kept; remove policies first."


class TenantExists(NotAllowed):
    """A tenant of this name is there already."""

    http_status = 409
    sentence = "A tenant with this name exists already."


class TenantNotEmpty(NotAllowed):
    """The tenant has namespaces, and therefore stays."""

    http_status = 409
    sentence = "The tenant still has namespaces; delete them first, or delete it by force."


class TenantsLimitReached(NotAllowed):
    """There are as many tenants as there may be."""

    http_status = 412
    sentence = "There are as many tenants as there may be (maxTenants)."


class NamespaceExists(NotAllowed):
    """A namespace of this name is there already."""

    http_status = 409
    sentence = "A namespace with this name exists already."


class NamespaceNotEmpty(NotAllowed):
    """The namespace has topics, and therefore stays."""

    http_status = 409
    sentence = "The namespace still has topics; delete them first, or delete it by force."


class BundleNotEmpty(NotAllowed):
    """The bundle has topics, and therefore stays."""

    http_status = 409
    sentence = "The bundle still has topics; delete them first, or delete it by force."


class BundlesLimitReached(NotAllowed):
    """The namespace has as many bundles as it may have."""

    http_status = 412
    sentence = "The namespace has as many bundles as it may have."


class NamespacesLimitReached(NotAllowed):
    """The tenant has as many namespaces as it may have."""

    http_status = 412
    sentence = "The tenant has as many namespaces as it may have (maxNamespacesPerTenant)."


class TopicsLimitReached(NotAllowed):
    """The namespace has as many topics as it may have."""

    http_status = 412
    sentence = "The namespace has as many topics as it may have (maxTopicsPerNamespace)."


class TopicBusy(NotAllowed):
    """Somebody is connected to the topic, which therefore stays."""

    http_status = 412
    sentence = "Clients are connected to the topic; close them first, or delete it by force."


class PartitionsNotAllowed(NotAllowed):
    """A topic cannot have so many partitions. (REST answers 422 when it has some already.)"""

    http_status = 406
    sentence = "A topic cannot have that number of partitions."


class TransactionConflict(PulsarError):
    """Another transaction has acknowledged the message already."""

    code = 23
    sentence = "Another transaction has acknowledged the message; abort this one and try again."


class TransactionNotFound(PulsarError):
    """The coordinator knows no such transaction."""

    code = 24
    sentence = "There is no such transaction; it may have timed out. Begin a new one."


class ProducerFenced(PulsarError):
    """A newer producer took exclusive access."""

    code = 25
    sentence = "Another producer took exclusive access to the topic; this one is closed for good."


def _table() -> dict[int, type[PulsarError]]:
    return {each.code: each for each in PulsarError.__subclasses__()}


# ServerError -> its class. More special classes share the code of the one they derive from.
BY_CODE: dict[int, type[PulsarError]] = _table()


class ProtocolViolation(Exception):
    """The peer does not speak the protocol: its connection is closed, no request is answered."""
