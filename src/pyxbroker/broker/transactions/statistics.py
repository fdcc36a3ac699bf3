"""The statistics of transactions for REST: Pulsar's TransactionCoordinatorStats and others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyxbroker.base.topic_name import SNAPSHOT_INDEXES, SNAPSHOT_SEGMENTS, SNAPSHOTS
from pyxbroker.broker.statistics.stats import CoordinatorStats
from pyxbroker.broker.transactions.ids import TxnId

if TYPE_CHECKING:
    from pyxbroker.broker.subscriptions.subscription import Subscription
    from pyxbroker.broker.topics.persistent import PersistentTopic
    from pyxbroker.broker.topics.transactional import TransactionBuffer
    from pyxbroker.broker.transactions.coordinator import Transaction
    from pyxbroker.broker.transactions.running_coordinator import RunningCoordinator
    from pyxbroker.mledger.managed_ledger import ManagedLedger
    from pyxbroker.settings.config import Config

Json = dict[str, Any]

NO_SNAPSHOT = "NoSnapshot"  # the state of a buffer without transactions
NOT_IN_BUFFER: Json = {"aborted": False}
"""TransactionInBufferStats of a topic without messages of the transaction."""


# --- coordinators -----------------------------------------------------------------------------


def of_coordinator(running: RunningCoordinator) -> Json:
    """Return TransactionCoordinatorStats."""
    state = running.state
    return {
        "state": "Close" if running.is_lost else "Ready",
        "leastSigBits": state.sequence,
        "lowWaterMark": state.low_water_mark,
        "ongoingTxnSize": len(state.transactions),
        "recoverStartTime": int(running.recovery_began_s * 1000),
        "recoverEndTime": int(running.recovery_ended_s * 1000),
    }


def numbers_of(running: RunningCoordinator) -> CoordinatorStats:
    """Return the numbers for /metrics."""
    state = running.state
    return CoordinatorStats(
        running.id,
        len(state.transactions),
        state.created,
        state.committed,
        state.aborted,
        state.timed_out,
        running.log.appended,
        tuple(running.latencies.counts),
    )


def of_closed_coordinator() -> Json:
    """Return TransactionCoordinatorStats of a coordinator that cannot be opened now."""
    return {
        "state": "None",
        "leastSigBits": -1,
        "lowWaterMark": 0,
        "ongoingTxnSize": 0,
        "recoverStartTime": 0,
        "recoverEndTime": 0,
    }


def of_transaction(txn: TxnId, found: Transaction) -> Json:
    """Return TransactionMetadata without what topics and subscriptions know."""
    acked: Json = {}
    for topic, subscription in found.subscriptions:
        acked.setdefault(topic, {})[subscription] = {}
    fields = {
        "txnId": str(txn),
        "status": found.status.name,
        "openTimestamp": found.start_ms,
        "timeoutAt": found.timeout_ms,
        "producedPartitions": dict.fromkeys(found.partitions, NOT_IN_BUFFER),
        "ackedPartitions": acked,
    }
    return fields if found.owner is None else fields | {"owner": found.owner}


# --- topics -----------------------------------------------------------------------------------


def snapshot_topics(config: Config) -> tuple[str, Mapping[str, str]]:
    """Return the type of snapshots, and the local names of their topics by fields of REST."""
    if config.transactionBufferSegmentedSnapshotEnabled:
        return "Segment", {
            "segmentInternalStats": SNAPSHOT_SEGMENTS,
            "segmentIndexInternalStats": SNAPSHOT_INDEXES,
        }
    return "Single", {"singleSnapshotSystemTopicInternalStats": SNAPSHOTS}


def of_buffer(
    topic: PersistentTopic, config: Config, with_marks: bool, with_segments: bool
) -> Json:
    """Return TransactionBufferStats. A topic without transactions has no buffer, and recovers
    nothing.
    """
    buffer = topic.transactions
    kind, _ = snapshot_topics(config)
    found: Json = {
        "state": NO_SNAPSHOT if buffer is None else buffer.state_name,
        "maxReadPosition": _text(_max_read(topic, buffer)),
        "lastSnapshotTimestamps": 0 if buffer is None else buffer.snapshot_ms,
    }
    if with_marks:
        marks = {} if buffer is None else buffer.low_water_marks
        found["lowWaterMarks"] = {str(each): mark for each, mark in marks.items()}
    found |= {
        "ongoingTxnSize": 0 if buffer is None else buffer.ongoing,
        "recoverStartTime": 0 if buffer is None else buffer.recover_start_ms,
        "recoverEndTime": 0 if buffer is None else buffer.recover_end_ms,
        "totalAbortedTransactions": 0 if buffer is None else buffer.aborted_count,
        "snapshotType": kind,
    }
    segments = None if buffer is None else buffer.segments_stats(with_segments)
    return found if segments is None else found | {"segmentsStats": segments}


def _max_read(topic: PersistentTopic, buffer: TransactionBuffer | None) -> tuple[int, int]:
    """Return the position of the last entry that consumers may receive; (-1, -1): they may receive
    none.
    """
    if buffer is None:
        return topic.last_confirmed
    return (-1, -1) if buffer.is_recovering else buffer.max_read


def of_transaction_in_buffer(topic: PersistentTopic, txn: TxnId) -> Json:
    """Return TransactionInBufferStats."""
    buffer = topic.transactions
    if buffer is None:
        return NOT_IN_BUFFER
    start = buffer.start_of(txn)
    found: Json = {} if start is None else {"startPosition": _text(start)}
    return found | {"aborted": buffer.is_aborted(txn)}


def _text(position: tuple[int, int]) -> str:
    return "{}:{}".format(*position)


# --- subscriptions ----------------------------------------------------------------------------


def of_pending_acks(subscription: Subscription, with_marks: bool) -> Json:
    """Return TransactionPendingAckStats."""
    handle = subscription.pending_acks
    found: Json = {"state": "None" if handle is None else handle.state.value}
    if with_marks:
        marks = {} if handle is None else handle.acks.low_water_marks
        found["lowWaterMarks"] = {str(each): mark for each, mark in marks.items()}
    return found | {
        "ongoingTxnSize": 0 if handle is None else handle.acks.transaction_count,
        "recoverStartTime": 0 if handle is None else handle.recover_start_ms,
        "recoverEndTime": 0 if handle is None else handle.recover_end_ms,
    }


def of_pending_ack(subscription: Subscription, txn: TxnId) -> Json:
    """Return TransactionInPendingAckStats."""
    handle = subscription.pending_acks
    position = None if handle is None else handle.cumulative_position(txn)
    return {} if position is None else {"cumulativeAckPosition": position}


def log_of_pending_acks(subscription: Subscription) -> ManagedLedger | None:
    """Return the log of a subscription's pending acknowledgements; None if it is not open."""
    handle = subscription.pending_acks
    return None if handle is None else handle.managed_ledger


def state_of_position(
    subscription: Subscription, position: tuple[int, int], batch_index: int | None
) -> str:
    """Return the state in PositionInPendingAckStats."""
    handle = subscription.pending_acks
    if handle is None:
        return "PendingAckNotReady"
    return handle.position_state(*position, batch_index)
