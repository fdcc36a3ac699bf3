"""/admin/v3/transactions: coordinators, transactions, and what topics and subscriptions store of
them, as in Pulsar's Transactions.

Any broker answers about all coordinators and asks their owners. A request about one coordinator or
one topic is redirected to its owner. A coordinator that is not open is opened; Pulsar answers 404.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from pyxbroker.admin import owners
from pyxbroker.admin.fan_out import elsewhere
from pyxbroker.admin.policy_bodies import INTEGER
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import read_json, topic_of
from pyxbroker.auth.authorization import AUTHENTICATED, END_TRANSACTION, SCALE_COORDINATORS
from pyxbroker.base.errors import PulsarError, TopicNotFound
from pyxbroker.base.limits import COORDINATORS_MAX
from pyxbroker.base.slices import in_slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.lookup import Redirect
from pyxbroker.broker.peers import Ask, PeerRefused, topic_path
from pyxbroker.broker.statistics import internal_stats
from pyxbroker.broker.subscriptions.subscription import Subscription
from pyxbroker.broker.topics.partition_nodes import WORKERS, for_each
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.transactions import statistics
from pyxbroker.broker.transactions.coordinator import not_found
from pyxbroker.broker.transactions.coordinators import ASSIGNMENT, Transactions
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.broker.transactions.running_coordinator import RunningCoordinator, not_here
from pyxbroker.broker.transactions.snapshots import system_topic
from pyxbroker.web.endpoint import Answer, Content, Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

PATH = "/admin/v3/transactions"
TOPIC = "{tenant}/{namespace}/{topic}"
OF_ID = "{mostSigBits:long}/{leastSigBits:long}"
OFF = "This Broker is not configured with transactionCoordinatorEnabled=true."
END_WAIT_S = 25.0  # less than the time that clients wait for an answer
TRANSACTION_BYTES = 1 << 10  # of an answer, in addition to its participants
PARTICIPANT_BYTES = 400

Json = dict[str, Any]


# --- coordinators -----------------------------------------------------------------------------


async def list_coordinators(request: Request) -> Response:
    """Return each coordinator with the URL of its broker."""
    _transactions(request)
    broker = request.app.broker
    found: dict[int, str] = {}

    async def one(coordinator: int) -> None:
        to = await elsewhere(request, ASSIGNMENT.partition(coordinator))
        addresses = broker.addresses if to is None else to.urls
        found[coordinator] = addresses.broker_url or addresses.broker_url_tls

    await for_each(range(await _count(request)), one)
    coordinators = [{"id": each, "brokerServiceUrl": found[each]} for each in sorted(found)]
    return Response.json(coordinators)


async def get_coordinator_stats(request: Request) -> Response:
    """Return the state of a coordinator, or of each by its id."""
    transactions = _transactions(request)
    coordinator = request.argument("coordinatorId")
    if coordinator is not None:
        return Response.json(statistics.of_coordinator(await _running(request, coordinator)))

    async def here(each: int) -> Json:
        return statistics.of_coordinator(await transactions.found(each))

    closed = statistics.of_closed_coordinator()
    found = await _of_each_coordinator(request, "coordinatorStats", here, unknown=closed)
    return Response.json(found)


async def get_coordinator_internal_stats(request: Request) -> Response:
    """Return the log of a coordinator."""
    _transactions(request)
    with_metadata = request.argument("metadata")
    running = await _running(request, request.parameters["coordinatorId"])
    async with _log_stats(request, running.log.managed_ledger, with_metadata) as found:
        return await Response.long_json({"transactionLogStats": found})


async def scale_coordinators(request: Request) -> Response:
    """Set the number of coordinators. Raises HttpError 406 if it is not larger than before."""
    transactions = _transactions(request)
    replicas: int = INTEGER.read(await read_json(request))
    if replicas <= await _count(request):
        raise HttpError(
            406,
            "Number of transaction coordinators should be more than the current number of"
            " transaction coordinator",
        )
    if replicas > COORDINATORS_MAX:
        raise HttpError(406, f"At most {COORDINATORS_MAX} transaction coordinators are possible.")
    await transactions.scale(replicas)
    return Response.empty()


# --- transactions -----------------------------------------------------------------------------


async def get_transaction_metadata(request: Request) -> Response:
    """Return the state, the owner, and the topics and subscriptions of a transaction."""
    _transactions(request)
    txn = _txn_of(request)
    running = await _running(request, txn.most, str(not_here(txn.most)))
    async with _reserve_transactions(request, [(running, txn.least)]):
        metadata = await _metadata(request, running, txn.least)
        if metadata is None:
            raise HttpError(404, str(not_found(txn)))
        return await Response.long_json(metadata)


async def get_slow_transactions(request: Request) -> Response:
    """Return the transactions that have not ended and whose timeout exceeds a number of
    milliseconds, by their ids.
    """
    transactions = _transactions(request)
    coordinator = request.argument("coordinatorId")
    own: list[RunningCoordinator] = []
    others: dict[str, Json] = {}
    if coordinator is not None:
        own.append(await _running(request, coordinator))
    else:

        async def here(each: int) -> Json:
            own.append(await transactions.found(each))
            return {}

        target = f"slowTransactions/{request.parameters['timeout']}"
        others = await _of_each_coordinator(request, target, here)
    found: Json = {}
    for answer in others.values():
        found |= answer
    slow = [each async for each in _slow(own, request.parameters["timeout"])]
    async with _reserve_transactions(request, slow):
        async for running, least in in_slices(slow):
            metadata = await _metadata(request, running, least)
            if metadata is not None:
                found[metadata["txnId"]] = metadata
        return await Response.long_json(found)


async def _slow(
    coordinators: list[RunningCoordinator], timeout_ms: int
) -> AsyncIterator[tuple[RunningCoordinator, int]]:
    """Yield the transactions with a longer timeout."""
    for running in sorted(coordinators, key=lambda each: each.id):
        async for each in in_slices(list(running.state.transactions.values())):
            if each.timeout_ms > timeout_ms:
                yield running, each.least


async def abort_transaction(request: Request) -> Response:
    """Abort an open transaction of any client."""
    transactions = _transactions(request)
    txn = _txn_of(request)
    await _running(request, txn.most, str(not_here(txn.most)))
    ending = await transactions.begin_end(txn, False, request.principal)
    done, _ = await asyncio.wait([ending], timeout=END_WAIT_S)
    if not done:
        raise HttpError(
            503,
            f"The abort of the transaction {txn} has begun, but some of its topics or"
            " subscriptions do not answer. The coordinator continues until they do.",
        )
    ending.result()
    return Response.empty()


async def _metadata(request: Request, running: RunningCoordinator, least: int) -> Json | None:
    """Return Pulsar's TransactionMetadata; None if the transaction has ended."""
    found = running.find(least)
    if found is None:
        return None
    txn = TxnId(running.id, least)
    metadata = statistics.of_transaction(txn, found)
    produced: Json = metadata["producedPartitions"]
    acked: Json = metadata["ackedPartitions"]

    async def of_partition(topic: str) -> None:
        produced[topic] = await _at_owner(
            *(request, topic, f"transactionInBufferStats/{{}}/{txn.most}/{txn.least}"),
            lambda there: statistics.of_transaction_in_buffer(there, txn),
            statistics.NOT_IN_BUFFER,
        )

    async def of_subscription(participant: tuple[str, str]) -> None:
        topic, name = participant
        path = f"transactionInPendingAckStats/{{}}/{quote(name, safe='')}/{txn.most}/{txn.least}"

        def here(there: PersistentTopic) -> Json:
            subscription = there.find_subscription(name)
            return {} if subscription is None else statistics.of_pending_ack(subscription, txn)

        acked[topic][name] = await _at_owner(request, topic, path, here, {})

    # Most transactions of a long list have few participants, and each worker is a task.
    partitions, subscriptions = list(found.partitions), list(found.subscriptions)
    await for_each(partitions, of_partition, min(len(partitions), WORKERS))
    await for_each(subscriptions, of_subscription, min(len(subscriptions), WORKERS))
    return metadata


async def _at_owner(
    request: Request,
    topic: str,
    path: str,
    here: Callable[[PersistentTopic], Json],
    unknown: Json,
) -> Json:
    """Return what the owner of a topic stores of a transaction; `unknown` if the topic is not open
    or its owner does not answer.

    `here` reads it from a topic of this broker; `path` is that of REST, without the topic.
    """
    broker = request.app.broker
    name = TopicName.get(topic)
    loaded = broker.topics.registry.loaded(name)
    if isinstance(loaded, PersistentTopic):
        return here(loaded)
    try:
        to = await elsewhere(request, name)
        if to is None:
            return unknown
        assert broker.peers is not None
        target = f"{PATH}/{path.format(_path_of(name))}"
        found: Json = await broker.peers.ask(to, Ask("GET", target))
    except (PeerRefused, PulsarError):
        return unknown
    return found


# --- topics -----------------------------------------------------------------------------------


async def get_buffer_stats(request: Request) -> Response:
    """Return the state of the transaction buffer of a topic."""
    topic = _topic(request)
    with_marks, with_segments = request.argument("lowWaterMarks"), request.argument("segmentStats")
    return Response.json(
        statistics.of_buffer(topic, request.app.broker.config, with_marks, with_segments)
    )


async def get_transaction_in_buffer(request: Request) -> Response:
    """Return where the messages of a transaction begin in a topic, and if it was aborted."""
    topic = _topic(request)
    return Response.json(statistics.of_transaction_in_buffer(topic, _txn_of(request)))


async def get_buffer_internal_stats(request: Request) -> Response:
    """Return the logs with the snapshots of a topic's transaction buffer."""
    topic = _topic(request)
    with_metadata = request.argument("metadata")
    kind, fields = statistics.snapshot_topics(request.app.broker.config)
    answer: Json = {"snapshotType": kind}
    for field, local_name in fields.items():
        found = await _topic_stats(request, system_topic(topic.name, local_name), with_metadata)
        if found is None:
            reason = "Transaction buffer Snapshot for the topic does not exist"
            raise HttpError(404, reason)
        answer[field] = {"managedLedgerName": local_name, "managedLedgerInternalStats": found}
    return await Response.long_json(answer)


async def _topic_stats(request: Request, name: TopicName, with_metadata: bool) -> Json | None:
    """Return the internal statistics of a topic; None if it does not exist."""
    broker = request.app.broker
    to = await elsewhere(request, name)
    found: Json
    if to is not None:
        assert broker.peers is not None
        target = f"{topic_path(name)}/internalStats?metadata={str(with_metadata).lower()}"
        try:
            found = await broker.peers.ask(to, Ask("GET", target))
        except PeerRefused as error:
            if error.status == 404:
                return None
            raise HttpError(error.status, error.reason) from None
    else:
        try:
            topic = await broker.topics.loader.get(name, create=False)
        except TopicNotFound:
            return None
        found = await internal_stats.internal_stats(
            topic, with_metadata, broker.metadata, broker.topics.schemas
        )
    return found


# --- subscriptions ----------------------------------------------------------------------------


async def get_pending_ack_stats(request: Request) -> Response:
    """Return the state of the pending acknowledgements of a subscription."""
    subscription = _subscription(request, _topic(request))
    with_marks = request.argument("lowWaterMarks")
    return Response.json(statistics.of_pending_acks(subscription, with_marks))


async def get_transaction_in_pending_ack(request: Request) -> Response:
    """Return the cumulative acknowledgement of a transaction in a subscription."""
    subscription = _subscription(request, _topic(request))
    return Response.json(statistics.of_pending_ack(subscription, _txn_of(request)))


async def get_pending_ack_internal_stats(request: Request) -> Response:
    """Return the log of the pending acknowledgements of a subscription."""
    subscription = _subscription(request, _topic(request))
    managed_ledger = statistics.log_of_pending_acks(subscription)
    if managed_ledger is None:
        raise HttpError(503, "Pending ack have not init success!")
    with_metadata = request.argument("metadata")
    async with _log_stats(request, managed_ledger, with_metadata) as found:
        return await Response.long_json({"pendingAckLogStats": found})


async def get_position_stats(request: Request) -> Response:
    """Return the state of a message in the pending acknowledgements of a subscription."""
    subscription = _subscription(request, _topic(request))
    position = request.parameters["ledgerId"], request.parameters["entryId"]
    state = statistics.state_of_position(subscription, position, request.argument("batchIndex"))
    return Response.json({"state": state})


# --- helpers ----------------------------------------------------------------------------------


def _transactions(request: Request) -> Transactions:
    """Return the coordinators of this broker. Raises HttpError 503 if transactions are off."""
    transactions = request.app.broker.transactions
    if transactions is None:
        raise HttpError(503, OFF)
    return transactions


def _txn_of(request: Request) -> TxnId:
    """Return the transaction of a path."""
    return TxnId(request.parameters["mostSigBits"], request.parameters["leastSigBits"])


async def _count(request: Request) -> int:
    """Return the number of coordinators of the cluster."""
    return (await request.app.broker.topics.partitions.read(ASSIGNMENT)).partitions


async def _running(request: Request, coordinator: int, reason: str = "") -> RunningCoordinator:
    """Return a coordinator of this broker. Raises HttpError 307 if another broker runs it, 404 with
    `reason` if it does not exist, and TransactionCoordinatorNotFound if it cannot be opened.
    """
    if not 0 <= coordinator < await _count(request):
        raise HttpError(
            404, reason or f"Transaction coordinator not found! coordinator id : {coordinator}"
        )
    await owners.check_topic_owner(request, ASSIGNMENT.partition(coordinator))
    return await _transactions(request).found(coordinator)


async def _of_each_coordinator(
    request: Request,
    target: str,
    here: Callable[[int], Awaitable[Json]],
    unknown: Json | None = None,
) -> dict[str, Json]:
    """Return the answers about all coordinators by their ids: `here` answers for those of this
    broker, the owners of the others for theirs.

    `unknown` replaces what a coordinator or its owner does not answer; without it, raises
    HttpError.
    """
    found: dict[int, Json] = {}

    async def one(coordinator: int) -> None:
        try:
            to = await elsewhere(request, ASSIGNMENT.partition(coordinator))
            if to is None:
                found[coordinator] = await here(coordinator)
            else:
                found[coordinator] = await _of_coordinator(request, to, target, coordinator)
        except (HttpError, PulsarError) as error:
            if unknown is None:
                raise HttpError(
                    503, f"Transaction coordinator {coordinator} does not answer: {error}"
                ) from None
            found[coordinator] = unknown

    await for_each(range(await _count(request)), one)
    return {str(each): found[each] for each in sorted(found)}


async def _of_coordinator(request: Request, to: Redirect, target: str, coordinator: int) -> Json:
    """Return what another broker answers about one of its coordinators. Raises HttpError."""
    peers = request.app.broker.peers
    assert peers is not None
    try:
        answer: Json = await peers.ask(
            to, Ask("GET", f"{PATH}/{target}?coordinatorId={coordinator}")
        )
    except PeerRefused as error:
        raise HttpError(error.status, error.reason) from None
    return answer


@asynccontextmanager
async def _reserve_transactions(
    request: Request, transactions: list[tuple[RunningCoordinator, int]]
) -> AsyncIterator[None]:
    """Reserve memory for the metadata of transactions."""
    size = 0
    async for running, least in in_slices(transactions):
        found = running.find(least)
        if found is not None:
            size += TRANSACTION_BYTES + PARTICIPANT_BYTES * found.participants
    async with request.app.statistics.reserve(request, size):
        yield


def persistent_topic_of(request: Request) -> TopicName:
    """Return the topic of a path, which has no domain. Raises HttpError 412."""
    request.parameters["domain"] = "persistent"
    return topic_of(request)


def _topic(request: Request) -> PersistentTopic:
    """Return the open topic of a path. Raises HttpError 503 and 404."""
    _transactions(request)
    name = persistent_topic_of(request)
    topic = request.app.broker.topics.registry.loaded(name)
    if not isinstance(topic, PersistentTopic):
        raise HttpError(404, f"Topic not found {name}")
    return topic


def _subscription(request: Request, topic: PersistentTopic) -> Subscription:
    """Return the subscription of a path. Raises HttpError 404."""
    name = request.parameters["subName"]
    found = topic.find_subscription(name)
    if found is None:
        raise HttpError(404, f"{topic.name} not found subscription : {name}")
    return found


@asynccontextmanager
async def _log_stats(
    request: Request, managed_ledger: Any, with_metadata: bool
) -> AsyncIterator[Json]:
    """Yield Pulsar's ManagedLedgerInternalStats with the name of the log."""
    weight = internal_stats.weigh_log(managed_ledger)
    async with request.app.statistics.reserve(request, weight):
        store = request.app.broker.metadata
        found = await internal_stats.log_stats(managed_ledger, with_metadata, store)
        try:
            name = managed_ledger.name
            yield {"managedLedgerName": name, "managedLedgerInternalStats": found}
        finally:
            await internal_stats.forget(found)


def _path_of(name: TopicName) -> str:
    return topic_path(name).partition("/persistent/")[2]


ANY: Json = {"type": "object", "additionalProperties": True}
COORDINATOR = Query("coordinatorId", "Only this coordinator.", is_number=True)
METADATA = Query("metadata", "Includes the metadata of each ledger.", False)
MARKS = Query("lowWaterMarks", "Includes the low water mark of each coordinator.", False)


def _get(
    path: str,
    handler: Callable[[Request], Awaitable[Response]],
    summary: str,
    answer: str,
    *query: Query,
) -> Endpoint:
    row = Endpoint(
        *("GET", f"{PATH}/{path}", handler, AUTHENTICATED, summary, Answer(answer, ANY)),
        query=query,
    )
    return row._replace(resource=persistent_topic_of) if TOPIC in path else row


ENDPOINTS = (
    Endpoint(
        "GET",
        f"{PATH}/coordinators",
        list_coordinators,
        AUTHENTICATED,
        "The transaction coordinators and their brokers.",
        Answer("Pulsar's TransactionCoordinatorInfos.", {"type": "array", "items": ANY}),
    ),
    _get(
        "coordinatorStats",
        get_coordinator_stats,
        "The state of one transaction coordinator, or of each by its id.",
        "Pulsar's TransactionCoordinatorStats.",
        COORDINATOR,
    ),
    _get(
        "coordinatorInternalStats/{coordinatorId:int}",
        get_coordinator_internal_stats,
        "The log of a transaction coordinator.",
        "Pulsar's TransactionCoordinatorInternalStats.",
        METADATA,
    ),
    _get(
        f"transactionMetadata/{OF_ID}",
        get_transaction_metadata,
        "The state, the owner, the topics and the subscriptions of a transaction.",
        "Pulsar's TransactionMetadata.",
    ),
    _get(
        "slowTransactions/{timeout:long}",
        get_slow_transactions,
        "The transactions with a timeout of more milliseconds, by their ids.",
        "Pulsar's TransactionMetadata of each.",
        COORDINATOR,
    ),
    _get(
        f"transactionBufferStats/{TOPIC}",
        get_buffer_stats,
        "The state of the transaction buffer of a topic.",
        "Pulsar's TransactionBufferStats.",
        MARKS,
        Query("segmentStats", "Includes the segments of the snapshot.", False),
    ),
    _get(
        f"transactionInBufferStats/{TOPIC}/{OF_ID}",
        get_transaction_in_buffer,
        "The messages of a transaction in a topic.",
        "Pulsar's TransactionInBufferStats.",
    ),
    _get(
        f"transactionBufferInternalStats/{TOPIC}",
        get_buffer_internal_stats,
        "The logs with the snapshots of a topic's transaction buffer.",
        "Pulsar's TransactionBufferInternalStats.",
        METADATA,
    ),
    _get(
        f"pendingAckStats/{TOPIC}/{{subName}}",
        get_pending_ack_stats,
        "The state of the pending acknowledgements of a subscription.",
        "Pulsar's TransactionPendingAckStats.",
        MARKS,
    ),
    _get(
        f"transactionInPendingAckStats/{TOPIC}/{{subName}}/{OF_ID}",
        get_transaction_in_pending_ack,
        "The cumulative acknowledgement of a transaction in a subscription.",
        "Pulsar's TransactionInPendingAckStats.",
    ),
    _get(
        f"pendingAckInternalStats/{TOPIC}/{{subName}}",
        get_pending_ack_internal_stats,
        "The log of the pending acknowledgements of a subscription.",
        "Pulsar's TransactionPendingAckInternalStats.",
        METADATA,
    ),
    _get(
        f"positionStatsInPendingAck/{TOPIC}/{{subName}}/{{ledgerId:long}}/{{entryId:long}}",
        get_position_stats,
        "The state of a message in the pending acknowledgements of a subscription.",
        "Pulsar's PositionInPendingAckStats.",
        Query("batchIndex", "The message of a batch.", is_number=True),
    ),
    Endpoint(
        "POST",
        f"{PATH}/transactionCoordinator/replicas",
        scale_coordinators,
        SCALE_COORDINATORS,
        "Sets the number of transaction coordinators, which can only grow.",
        content=Content(
            "The number.", {"application/json": INTEGER.schema}, required=True, bytes_max=16 << 10
        ),
    ),
    Endpoint(
        "POST",
        f"{PATH}/abortTransaction/{OF_ID}",
        abort_transaction,
        END_TRANSACTION,
        "Aborts a transaction of any client.",
    ),
)
