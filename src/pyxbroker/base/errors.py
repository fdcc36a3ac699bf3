"""The errors that a client can receive: one class per ServerError, with its status in REST.

A refused request is answered with `code` and `str(error)`. A message says what happened and, where
the user can act, what to do. Code that raises an error usually knows more than the class and passes
its own message; `sentence` is the default.

The numbers are those of ServerError in proto/PulsarApi.proto. The names are those of Pulsar's
broker exceptions, or of the wire where the broker has none. `ProtocolViolation` is separate: a
malformed frame is no request that could be answered, so the broker closes the connection.
"""

from __future__ import annotations

from typing import ClassVar


class PulsarError(Exception):
    """An operation is refused. Raise a subclass.

    `code` is its ServerError, `http_status` the status of the REST response.
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


class NamespaceOfOtherClusters(MetadataStoreError):
    """Only other clusters serve the namespace, and no peer of this cluster is among them."""

    http_status = 412
    sentence = "Namespace missing local cluster name in clusters list."


class ConcurrentModification(MetadataStoreError):
    """Concurrent writers changed the same record during each attempt."""

    http_status = 409
    sentence = "Other writers keep changing the same record; try again."


class PersistenceError(PulsarError):
    """The storage could not store or read an entry."""

    code = 2
    sentence = "The storage failed; the broker's log says why."


class TooFewBookies(PersistenceError):
    """Fewer bookies are writable than a new ledger requires."""

    http_status = 503
    sentence = "There are too few bookies for a new ledger; start more bookies."


def with_reference(sentence: str, reference: str) -> str:
    """Return a message with the reference that leads an operator to the details in the log."""
    return f"{sentence} (reference {reference})"


class AuthenticationError(PulsarError):
    """The credentials are missing, wrong or expired."""

    code = 3
    http_status = 401
    sentence = "Authentication failed; check the client's credentials."


class AuthorizationError(PulsarError):
    """The role is authenticated but not authorized."""

    code = 4
    http_status = 403
    sentence = "The role is not allowed to do this; ask the tenant's administrator for permission."


class NotPermitted(AuthorizationError):
    """An AuthorizationError where Pulsar's REST answers 401."""

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
    """The topic is not served here (not owned, moving, or fenced). Clients look it up again."""

    code = 6
    http_status = 503
    sentence = "The topic is not served here at this moment; look it up again."


class UnknownListener(ServiceNotReady):
    """The client names an unknown advertised listener; Pulsar answers 500."""

    http_status = 400


class ProducerBlockedQuotaExceededError(PulsarError):
    """The backlog quota is reached and its policy is to hold producers (producer_request_hold)."""

    code = 7
    sentence = "The topic's backlog quota is reached; producing resumes when consumers catch up."


class ProducerBlockedQuotaExceededException(PulsarError):
    """The backlog quota is reached and its policy is to refuse producers (producer_exception)."""

    code = 8
    sentence = "The topic's backlog quota is reached; consume the backlog or raise the quota."


class ChecksumError(PulsarError):
    """The CRC-32C of a published entry does not match its bytes."""

    code = 9
    sentence = "The message was damaged in transit: its checksum does not match. Send it again."


class UnsupportedVersion(PulsarError):
    """The topic needs a feature that the peer's protocol version lacks."""

    code = 10
    sentence = "The client is too old for this; use a newer one."


class TopicNotFound(PulsarError):
    """The topic does not exist and may not be created automatically."""

    code = 11
    http_status = 404
    sentence = "The topic does not exist; create it, or allow topics to be created by use."


class TenantNotFound(TopicNotFound):
    """The tenant does not exist."""

    sentence = "The tenant does not exist; create it first."


class NamespaceNotFound(TopicNotFound):
    """The namespace does not exist, or is being deleted."""

    sentence = "The namespace does not exist; create it first."


class ClusterNotFound(TopicNotFound):
    """The cluster does not exist."""

    sentence = "The cluster does not exist; create it first."


class FailureDomainNotFound(TopicNotFound):
    """The cluster has no such failure domain, or there is no such cluster."""

    sentence = "The cluster has no such failure domain."


class ResourceGroupNotFound(TopicNotFound):
    """The resource group does not exist."""

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
    """More lookups are pending, or more state is stored for clients, than the settings allow."""

    code = 14
    http_status = 429
    sentence = "Too many lookups are pending; try again in a moment."


class AnswersNotRead(TooManyRequests):
    """REST responses that clients have not read yet take more memory than the settings allow."""

    http_status = 503
    sentence = "Too many responses have not been read yet; try again in a moment."


class TooManyBodies(TooManyRequests):
    """Bodies of REST requests take more memory than the settings allow."""

    http_status = 503
    sentence = "Too many large requests are in progress; try again in a moment."


class TopicTerminated(PulsarError):
    """The topic was terminated: it can be read and never written again."""

    code = 15
    sentence = "The topic is terminated and accepts no more messages."


class ProducerBusy(PulsarError):
    """The producer's name is in use, or the topic has reached its limit of producers."""

    code = 16
    sentence = "A producer with this name is connected already; close it or choose another name."


class InvalidTopicName(PulsarError):
    """The text is not the name of a topic or namespace."""

    code = 17
    http_status = 412
    sentence = (
        "The topic name is not valid; write persistent://tenant/namespace/topic or a short form."
    )


class IncompatibleSchema(PulsarError):
    """The schema violates the compatibility strategy of the namespace, or is no schema."""

    code = 18
    http_status = 409
    sentence = "The schema is not compatible with the topic's schemas."


class InvalidSchema(IncompatibleSchema):
    """The definition of a schema is invalid for its type."""

    http_status = 422
    sentence = "The definition of the schema is not valid for its type."


class ConsumerAssignError(PulsarError):
    """A Key_Shared consumer requests key-hash ranges that are taken."""

    code = 19
    sentence = "The consumer's key-hash ranges overlap those of another consumer."


class TransactionCoordinatorNotFound(PulsarError):
    """This broker does not run the transaction coordinator."""

    code = 20
    http_status = 503
    sentence = "The transaction coordinator is not on this broker; look it up again."


class InvalidTxnStatus(PulsarError):
    """The transaction is in a state that does not allow this step."""

    code = 21
    http_status = 409
    sentence = "The transaction's state does not allow this; begin a new transaction."


class NotAllowed(PulsarError):
    """A policy, or the kind of topic or subscription, forbids the operation."""

    code = 22
    http_status = 405
    sentence = "The operation is not allowed on this topic."


class TopicExists(NotAllowed):
    """A topic with this name exists already."""

    http_status = 409
    sentence = "A topic with this name exists already."


class ClusterInUse(NotAllowed):
    """The tenant has a namespace in the cluster."""

    http_status = 412
    sentence = "A namespace of the tenant is in the cluster; delete it first."


class ClusterExists(NotAllowed):
    """A cluster with this name exists already."""

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
    """The limit of clusters, of failure domains or of isolation policies is reached."""

    http_status = 412
    sentence = "The limit of clusters or failure domains is reached."


class BrokerInOtherDomain(NotAllowed):
    """The broker belongs to another failure domain of its cluster."""

    http_status = 409
    sentence = "A broker can be in one failure domain only; remove it from the other one first."


class ResourceGroupInUse(NotAllowed):
    """A namespace is in the resource group."""

    http_status = 412
    sentence = "A namespace is in the resource group; remove it first."


class ResourceGroupsLimitReached(NotAllowed):
    """The limit of resource groups is reached."""

    http_status = 412
    sentence = "The limit of resource groups is reached."


class PoliciesTooLarge(NotAllowed):
    """The policies of a topic, or of all topics of a namespace, exceed their limit."""

    http_status = 412
    sentence = "The topic policies of the namespace exceed their limit; remove policies first."


class TenantExists(NotAllowed):
    """A tenant with this name exists already."""

    http_status = 409
    sentence = "A tenant with this name exists already."


class TenantNotEmpty(NotAllowed):
    """The tenant cannot be deleted because it has namespaces."""

    http_status = 409
    sentence = "The tenant still has namespaces; delete them first, or delete it by force."


class TenantsLimitReached(NotAllowed):
    """The limit of tenants is reached."""

    http_status = 412
    sentence = "The limit of tenants is reached (maxTenants)."


class NamespaceExists(NotAllowed):
    """A namespace with this name exists already."""

    http_status = 409
    sentence = "A namespace with this name exists already."


class NamespaceNotEmpty(NotAllowed):
    """The namespace cannot be deleted because it has topics."""

    http_status = 409
    sentence = "The namespace still has topics; delete them first, or delete it by force."


class BundleNotEmpty(NotAllowed):
    """The bundle cannot be deleted because it has topics."""

    http_status = 409
    sentence = "The bundle still has topics; delete them first, or delete it by force."


class BundlesLimitReached(NotAllowed):
    """The namespace has reached its limit of bundles."""

    http_status = 412
    sentence = "The namespace has reached its limit of bundles."


class NamespacesLimitReached(NotAllowed):
    """The tenant has reached its limit of namespaces."""

    http_status = 412
    sentence = "The tenant has reached its limit of namespaces (maxNamespacesPerTenant)."


class TopicsLimitReached(NotAllowed):
    """The namespace has reached its limit of topics."""

    http_status = 412
    sentence = "The namespace has reached its limit of topics (maxTopicsPerNamespace)."


class TopicBusy(NotAllowed):
    """The topic cannot be deleted because clients are connected to it."""

    http_status = 412
    sentence = "Clients are connected to the topic; close them first, or delete it by force."


class PartitionsNotAllowed(NotAllowed):
    """The number of partitions is not allowed. REST answers 422 if the topic has partitions."""

    http_status = 406
    sentence = "A topic cannot have that number of partitions."


class TransactionConflict(PulsarError):
    """Another transaction has already acknowledged the message."""

    code = 23
    http_status = 409
    sentence = "Another transaction has acknowledged the message; abort this one and try again."


class TransactionNotFound(PulsarError):
    """The coordinator has no such transaction."""

    code = 24
    http_status = 404
    sentence = "There is no such transaction; it may have timed out. Begin a new one."


class ProducerFenced(PulsarError):
    """A newer producer has taken exclusive access."""

    code = 25
    sentence = "Another producer took exclusive access to the topic; this one is closed for good."


def _table() -> dict[int, type[PulsarError]]:
    return {each.code: each for each in PulsarError.__subclasses__()}


# ServerError -> its class. Subclasses share the code of the class that they derive from.
BY_CODE: dict[int, type[PulsarError]] = _table()


class ProtocolViolation(Exception):
    """The peer violates the protocol. The broker closes its connection and answers no request."""
