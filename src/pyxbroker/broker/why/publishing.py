"""Reasons why messages cannot be published to an open topic."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyxbroker.base.slices import Slices
from pyxbroker.broker.topics import quotas
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.why.rules import Rule
from pyxbroker.ledger.ensemble import EnsembleHandle
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.mledger.state import State
from pyxbroker.policies.values import PRODUCER_EXCEPTION, PRODUCER_REQUEST_HOLD

if TYPE_CHECKING:
    from pyxbroker.broker.broker import Broker
    from pyxbroker.broker.topics.topic import Topic
    from pyxbroker.policies.values import BacklogQuota, Rate

NAMES_MAX = 10  # producers that an answer names
UNCONFIRMED_MS = 1000  # age from which an entry is late


@dataclass
class PublishingState:
    """An open topic as its producers meet it."""

    topic: str
    is_persistent: bool = True
    # Producers
    producers: int = 0
    pending_sends: int = 0  # unanswered SENDs
    exclusive_producer: str = ""
    waiting_producers: list[str] = field(default_factory=list)  # for exclusive access
    undecided_producers: list[str] = field(default_factory=list)  # names
    pauses: dict[str, int] = field(default_factory=dict)  # paused producers, by cause
    throttled_by_topic: int = 0  # producers
    throttled_by_broker: int = 0
    publish_rate: str = ""  # the exceeded rate
    last_refusal: dict[str, str] | None = None  # of a producer
    refused_error: str = ""
    refused_message: str = ""
    refused_ms: int = 0
    # Storage
    storage_refusal: str | None = None
    storage_failed: bool = False  # until the process restarts
    is_gate_closed: bool = False  # SENDs are dropped, their producers closed
    storage_trouble: str | None = None  # of storage or metadata
    is_terminated: bool = False
    ledger_state: str = ""
    ledger_id: int = -1
    write_failure: str = ""
    lack_of_bookies: str = ""
    runs_waiting: int = 0  # for the next ledger
    unconfirmed_entries: int = 0
    unconfirmed_ms: int = 0  # age of the oldest one
    failed_bookies: list[str] = field(default_factory=list)  # of the ledger, not replaced yet
    last_confirmed_entry: str = ""
    last_published_ms: int = 0
    is_write_cache_full: bool = False
    publish_buffer_bytes: int = 0
    publish_buffer_bytes_max: int = 0
    sends_per_connection_max: int = 0
    # Policies
    quota: str = ""  # the exceeded backlog quota
    quota_limit: int = 0
    quota_policy: str = ""
    backlog_bytes: int = 0


async def publishing_state(broker: Broker, topic: Topic) -> PublishingState:
    """Return the snapshot of an open topic."""
    state = PublishingState(str(topic.name), topic.name.is_persistent)
    await _add_producers(state, topic)
    refusal = broker.last_refusals.recent(topic.name)
    if refusal is not None:
        state.last_refusal = refusal.as_json()
        state.refused_error, state.refused_message = refusal.error, refusal.message
        state.refused_ms = int(refusal.time_s * 1000)
    connections = broker.connections
    state.publish_buffer_bytes = connections.publish_bytes
    state.publish_buffer_bytes_max = connections.publish_bytes_max
    state.is_write_cache_full = connections.full
    state.sends_per_connection_max = connections.sends_max
    if isinstance(topic, PersistentTopic):
        state.storage_refusal = broker.storage.refusal
        state.storage_failed = broker.storage.has_failed
        state.is_gate_closed = broker.publish_gate.is_closed
        state.storage_trouble = broker.failure()
        _add_ledger(state, topic)
        await _add_quotas(state, topic)
    return state


async def _add_producers(state: PublishingState, topic: Topic) -> None:
    slices = Slices()
    pauses: Counter[str] = Counter()
    for producer in list(topic.producers.values()):
        state.producers += 1
        state.pending_sends += producer.pending_sends
        pauses.update(producer.connection.pauses)
        of_broker, of_topic = topic.publish_rates_of(producer.connection)
        state.throttled_by_broker += of_broker is not None
        state.throttled_by_topic += of_topic is not None
        state.publish_rate = _rate_text(of_topic or of_broker) or state.publish_rate
        dedup = topic.deduplication
        if dedup is not None and dedup.is_undecided(producer):
            state.undecided_producers.append(producer.name)
        await slices.pause()
    state.pauses = dict(pauses)
    del state.undecided_producers[NAMES_MAX:]
    access = topic.access
    if access is not None:
        state.exclusive_producer = access.holder.name if access.holder is not None else ""
        state.waiting_producers = [each.name for each in access.waiting_producers()[:NAMES_MAX]]


def _rate_text(rate: Rate | None) -> str:
    """Return the limits of a rate; empty without one."""
    if rate is None:
        return ""
    parts = ((rate.messages, "messages/s"), (rate.bytes, "bytes/s"))
    return ", ".join(f"{limit} {unit}" for limit, unit in parts if limit)


def _add_ledger(state: PublishingState, topic: PersistentTopic) -> None:
    log = topic.managed_ledger
    state.is_terminated = log.is_terminated
    state.ledger_state = log.state.value
    state.write_failure = str(log.write_failure or "")
    state.lack_of_bookies = log.lack_of_bookies if log.state is State.TOO_FEW_BOOKIES else ""
    state.runs_waiting = log.waiting_runs
    state.last_confirmed_entry = _text(log.last_confirmed)
    state.last_published_ms = int(log.last_added_s * 1000)
    current = log.current
    if current is not None:
        state.ledger_id = current.ledger_id
        state.unconfirmed_entries = current.pending.next - current.pending.first
        runs = current.pending.unconfirmed()
        state.unconfirmed_ms = runs[0].age_ms if runs else 0
        if isinstance(current, EnsembleHandle):
            writer = current.writer
            state.failed_bookies = [writer.ensemble[index] for index in sorted(writer.absent)]


async def _add_quotas(state: PublishingState, topic: PersistentTopic) -> None:
    def exceeded(name: str, quota: BacklogQuota) -> None:
        if quota.policy in quotas.REFUSALS:
            state.quota, state.quota_limit = name, quota.limit
            state.quota_policy = quota.policy

    policies = topic.policies
    try:
        if await quotas.is_age_exceeded(topic):
            exceeded("message_age", policies.backlog_age)
        if await quotas.is_size_exceeded(topic):
            exceeded("destination_storage", policies.backlog_size)
    except LedgerError:
        return  # the age is unknown; a producer is admitted then, too
    if state.quota:
        marks = (each.acks.mark_delete for each in topic.subscriptions.values())
        state.backlog_bytes = topic.bytes_after(min(marks, default=topic.last_confirmed))


def _text(position: tuple[int, int]) -> str:
    return "{}:{}".format(*position)


PRODUCERS = ("producers", "pending_sends")
LEDGER = ("ledger_state", "ledger_id", "last_confirmed_entry")

RULES: tuple[Rule[PublishingState], ...] = (
    Rule(
        "terminated",
        lambda s: s.is_terminated,
        "The topic is terminated: it takes no more messages. Its last entry is"
        " {last_confirmed_entry}.",
        LEDGER,
    ),
    Rule(
        "journal_failed",
        lambda s: s.write_failure,
        "The storage has failed, and stores nothing until the broker is restarted:"
        " {write_failure}.",
        ("storage_refusal", *LEDGER),
    ),
    Rule(
        "storage_refuses",
        lambda s: s.storage_refusal is not None and s.is_gate_closed,
        "The storage accepts no writes, so producers are closed and refused: {storage_refusal}.",
        ("storage_refusal", "storage_failed", *LEDGER),
    ),
    Rule(
        "storage_holds",
        lambda s: s.storage_refusal is not None,
        "The storage accepts no writes, and SENDs wait in memory: {storage_refusal}.",
        ("storage_refusal", "publish_buffer_bytes", "publish_buffer_bytes_max", *LEDGER),
    ),
    Rule(
        "not_enough_bookies",
        lambda s: s.lack_of_bookies,
        "The topic has no ledger to write to: {lack_of_bookies}.",
        ("lack_of_bookies", *LEDGER),
    ),
    Rule(
        "backlog_quota_hold",
        lambda s: s.quota_policy == PRODUCER_REQUEST_HOLD,
        "The backlog quota {quota} is exceeded, so producers are closed and have to wait"
        " (producer_request_hold).",
        ("quota", "quota_limit", "quota_policy", "backlog_bytes"),
    ),
    Rule(
        "backlog_quota_exception",
        lambda s: s.quota_policy == PRODUCER_EXCEPTION,
        "The backlog quota {quota} is exceeded, so producers are closed with an error"
        " (producer_exception).",
        ("quota", "quota_limit", "quota_policy", "backlog_bytes"),
    ),
    Rule(
        "waits_for_ledger",
        lambda s: s.ledger_state == State.CREATING_LEDGER.value,
        "SENDs wait until the next ledger of the topic is created.",
        ("runs_waiting", "storage_trouble", *LEDGER),
    ),
    Rule(
        "waits_for_exclusive_access",
        lambda s: s.waiting_producers,
        "Producers wait for exclusive access to the topic, which {exclusive_producer} has.",
        ("exclusive_producer", "waiting_producers"),
    ),
    Rule(
        "topic_publish_rate",
        lambda s: s.throttled_by_topic,
        "The publish rate of the topic ({publish_rate}) is exceeded: the connections of"
        " {throttled_by_topic} of its {producers} producers are not read for a while.",
        ("publish_rate", "throttled_by_topic"),
    ),
    Rule(
        "broker_publish_rate",
        lambda s: s.throttled_by_broker,
        "The publish rate of the broker ({publish_rate}) is exceeded: the connections of"
        " {throttled_by_broker} of the topic's {producers} producers are not read for a while.",
        ("publish_rate", "throttled_by_broker"),
    ),
    Rule(
        "write_cache_full",
        lambda s: s.is_write_cache_full,
        "The write cache of the storage is full: the broker reads no publishing connection until"
        " a part of it is on the disk.",
        ("is_write_cache_full", "publish_buffer_bytes", "storage_trouble"),
    ),
    Rule(
        "publish_buffer_full",
        lambda s: "gate" in s.pauses,
        "Too many bytes of all topics wait to be stored ({publish_buffer_bytes}): the broker reads"
        " no publishing connection (maxMessagePublishBufferSizeInMB).",
        ("publish_buffer_bytes", "publish_buffer_bytes_max", "unconfirmed_entries"),
    ),
    Rule(
        "deduplication_waits",
        lambda s: s.undecided_producers,
        "Deduplication cannot decide yet if messages are duplicates: SENDs that these producers"
        " made before they reconnected are neither stored nor failed.",
        ("undecided_producers", "unconfirmed_entries"),
    ),
    Rule(
        "pending_sends_limit",
        lambda s: "sends" in s.pauses,
        "Producers have too many unanswered SENDs on their connection, which is not read until some"
        " are stored.",
        ("pauses", "sends_per_connection_max", "unconfirmed_entries", "failed_bookies"),
    ),
    Rule(
        "producer_does_not_read",
        lambda s: "output" in s.pauses,
        "A producer's client does not read what the broker sends, so the broker does not read its"
        " connection either.",
        ("pauses",),
    ),
    Rule(
        "connection_busy",
        lambda s: "commands" in s.pauses or "acks" in s.pauses,
        "Too many commands or acknowledgements on a producer's connection are in progress; it is"
        " read again when some are answered.",
        ("pauses",),
    ),
    Rule(
        "waits_for_storage",
        lambda s: s.unconfirmed_entries and s.unconfirmed_ms >= UNCONFIRMED_MS,
        "The storage has not confirmed all entries that it got: {unconfirmed_entries} wait.",
        ("unconfirmed_entries", "unconfirmed_ms", "failed_bookies", "storage_trouble", *LEDGER),
    ),
    Rule(
        "schema_incompatible",
        lambda s: not s.producers and s.refused_error == "IncompatibleSchema",
        "No producer is connected. The schema of the last one was refused: {refused_message}",
        ("last_refusal",),
        "refused_ms",
    ),
    Rule(
        "producer_refused",
        lambda s: not s.producers and s.last_refusal,
        "No producer is connected. The last one was refused: {refused_message}",
        ("last_refusal",),
        "refused_ms",
    ),
    Rule(
        "no_producer",
        lambda s: not s.producers,
        "No producer is connected to the topic.",
        ("last_confirmed_entry",),
        "last_published_ms",
    ),
    Rule(
        "publishing",
        lambda s: True,
        "Nothing prevents the connected producers ({producers}) from publishing.",
        ("last_confirmed_entry",),
    ),
)
