"""All statistics: for each one its meaning, the field it is read from, and its series in /metrics.

Names, labels and types of series are those of Pulsar and BookKeeper. Like Apache Pulsar, the broker
exposes all series of topics as gauges, even the cumulative `_total` ones. To add a series, add a
row.
"""

from __future__ import annotations

from typing import NamedTuple

GAUGE = "gauge"
COUNTER = "counter"
HISTOGRAM = "histogram"
SUMMARY = "summary"


class Stat(NamedTuple):
    """One statistic of a topic, a subscription, another object or the whole broker.

    If `series` is empty, /metrics shows only the sum over all topics.
    """

    field: str  # attribute or key that it is read from
    help: str
    series: str
    broker_series: str = ""  # of the sum over all topics
    namespace_series: str | None = None  # if topics have no series; None: same as `series`
    namespace_label: str = ""  # additional label of the namespace's series
    kind: str = GAUGE
    only_set: bool = False  # the series exists, with the value 1, only if the field is not empty
    label: str = ""  # additional label of each series


# Series of topics. If they are disabled, these are series of namespaces, summed over the topics.
TOPIC = (
    Stat(
        "subscription_count",
        "Subscriptions, including those of readers.",
        "pulsar_subscriptions_count",
        "pulsar_broker_subscriptions_count",
    ),
    Stat(
        "producers",
        "Connected producers.",
        "pulsar_producers_count",
        "pulsar_broker_producers_count",
    ),
    Stat(
        "consumers",
        "Connected consumers.",
        "pulsar_consumers_count",
        "pulsar_broker_consumers_count",
    ),
    Stat(
        "rate_in",
        "Messages received per second.",
        "pulsar_rate_in",
        "pulsar_broker_rate_in",
    ),
    Stat(
        "rate_out",
        "Messages sent to consumers per second.",
        "pulsar_rate_out",
        "pulsar_broker_rate_out",
    ),
    Stat(
        "throughput_in",
        "Bytes received per second.",
        "pulsar_throughput_in",
        "pulsar_broker_throughput_in",
    ),
    Stat(
        "throughput_out",
        "Bytes sent to consumers per second.",
        "pulsar_throughput_out",
        "pulsar_broker_throughput_out",
    ),
    Stat(
        "msg_in",
        "Messages received since the topic was opened.",
        "pulsar_in_messages_total",
        "pulsar_broker_in_messages_total",
    ),
    Stat(
        "bytes_in",
        "Bytes received since the topic was opened.",
        "pulsar_in_bytes_total",
        "pulsar_broker_in_bytes_total",
    ),
    Stat(
        "msg_out",
        "Messages sent to consumers since the topic was opened.",
        "",
        "pulsar_broker_out_messages_total",
        "pulsar_out_messages_total",
    ),
    Stat(
        "bytes_out",
        "Bytes sent to consumers since the topic was opened.",
        "",
        "pulsar_broker_out_bytes_total",
        "pulsar_out_bytes_total",
    ),
    Stat(
        "storage_size",
        "Bytes of the stored messages.",
        "pulsar_storage_size",
        "pulsar_broker_storage_size",
    ),
    Stat(
        "storage_size",
        "Bytes of the stored messages, without copies.",
        "pulsar_storage_logical_size",
        "pulsar_broker_storage_logical_size",
    ),
    Stat(
        "backlog_size",
        "Bytes that the slowest subscription has not acknowledged.",
        "pulsar_storage_backlog_size",
        "pulsar_broker_storage_backlog_size",
    ),
    Stat(
        "backlog",
        "Unacknowledged entries, summed over subscriptions.",
        "pulsar_msg_backlog",
        "pulsar_broker_msg_backlog",
        namespace_label='remote_cluster="local"',
    ),
    Stat(
        "publish_rate_limited",
        "Number of times that a publish rate limit paused a connection.",
        "pulsar_publish_rate_limit_times",
        namespace_series="",
    ),
    Stat(
        "storage_write_rate",
        "Entries stored per second.",
        "pulsar_storage_write_rate",
        "pulsar_broker_storage_write_rate",
    ),
    Stat(
        "storage_read_rate",
        "Entries read per second from memory or disk.",
        "pulsar_storage_read_rate",
        "pulsar_broker_storage_read_rate",
    ),
    Stat(
        "read_miss_rate",
        "Entries read per second from disk.",
        "pulsar_storage_read_cache_misses_rate",
        "pulsar_broker_storage_read_cache_misses_rate",
    ),
    Stat(
        "mean_size",
        "Mean size of received messages in bytes; 0 without messages.",
        "pulsar_average_msg_size",
        namespace_series="",
    ),
    Stat(
        "backlog_age_s",
        "Age in seconds of the oldest message that a subscription has not acknowledged; -1 if"
        " none exists or its time is not known yet.",
        "pulsar_storage_backlog_age_seconds",
        namespace_series="",
    ),
    Stat(
        "delayed",
        "Delayed entries that are not due yet, summed over subscriptions.",
        "",
        namespace_series="pulsar_subscription_delayed",
    ),
    Stat(
        "delayed_index_bytes",
        "Memory in bytes for delayed entries that are not due yet.",
        "pulsar_delayed_message_index_size_bytes",
    ),
    Stat(
        "in_replay",
        "Entries waiting for redelivery, summed over subscriptions.",
        "",
        namespace_series="pulsar_subscription_in_replay",
    ),
    Stat(
        "rate_acked",
        "Messages acknowledged per second, summed over subscriptions.",
        "",
        namespace_series="pulsar_consumer_msg_ack_rate",
    ),
    Stat(
        "backlog_size_limit",
        "Quota of the backlog's size in bytes; -1 is no limit.",
        "pulsar_storage_backlog_quota_limit",
        namespace_series="",
    ),
    Stat(
        "backlog_age_limit",
        "Quota of the backlog's age in seconds; -1 is no limit.",
        "pulsar_storage_backlog_quota_limit_time",
        namespace_series="",
    ),
)


def _adds() -> tuple[Stat, ...]:
    latency, size = "pulsar_storage_write_latency", "pulsar_entry_size"
    bounds_ms = ("0_5", "1", "5", "10", "20", "50", "100", "200", "1000")
    bounds = ("128", "512", "1_kb", "2_kb", "4_kb", "16_kb", "100_kb", "1_mb")
    last = "of the last period"
    below = "and more than the bound below"
    return (
        *(
            Stat(
                "",
                f"Entries {last} stored within {each.replace('_', '.')} ms {below}.",
                f"{latency}_le_{each}",
            )
            for each in bounds_ms
        ),
        Stat("", f"Entries {last} that took longer to store.", f"{latency}_overflow"),
        Stat("", f"Entries {last}.", f"{latency}_count"),
        Stat("", f"Microseconds to store all entries {last}.", f"{latency}_sum"),
        *(
            Stat("", f"Entries {last} of up to {each} {below}.", f"{size}_le_{each}")
            for each in bounds
        ),
        Stat("", f"Larger entries {last}.", f"{size}_le_overflow"),
        Stat("", f"Entries {last}.", f"{size}_count"),
        Stat("", f"Bytes of all entries {last}.", f"{size}_sum"),
    )


# Series of topics in the order of `last_adds`, or sums of namespaces if those of topics are
# disabled. They are gauges. Buckets are not cumulative: Pulsar's le_5 does not include le_1. All
# counts restart with each period (managedLedgerStatsPeriodSeconds).
ADDS = _adds()

# Number of topics in a sum.
TOPICS = Stat("", "Open topics.", "pulsar_topics_count", "pulsar_broker_topics_count")

SUBSCRIPTION = (
    Stat("backlog", "Unacknowledged entries.", "pulsar_subscription_back_log"),
    Stat(
        "due_backlog",
        "Unacknowledged entries, without delayed ones that are not due yet.",
        "pulsar_subscription_back_log_no_delayed",
    ),
    Stat("delayed", "Delayed entries that are not due yet.", "pulsar_subscription_delayed"),
    Stat(
        "unacked_messages",
        "Unacknowledged messages of consumers.",
        "pulsar_subscription_unacked_messages",
    ),
    Stat("consumers", "Connected consumers.", "pulsar_subscription_consumers_count"),
    Stat(
        "rate_out",
        "Messages sent to consumers per second.",
        "pulsar_subscription_msg_rate_out",
    ),
    Stat(
        "throughput_out",
        "Bytes sent to consumers per second.",
        "pulsar_subscription_msg_throughput_out",
    ),
    Stat("msg_out", "Messages sent since the topic was opened.", "pulsar_out_messages_total"),
    Stat("bytes_out", "Bytes sent since the topic was opened.", "pulsar_out_bytes_total"),
    Stat(
        "is_blocked",
        "1 if dispatch is paused because too many messages are unacknowledged.",
        "pulsar_subscription_blocked_on_unacked_messages",
    ),
    Stat("in_replay", "Entries waiting for redelivery.", "pulsar_subscription_in_replay"),
    Stat(
        "delayed_index_bytes",
        "Memory in bytes for delayed entries that are not due yet.",
        "pulsar_subscription_delayed_message_index_size_bytes",
    ),
    Stat(
        "rate_redelivered",
        "Messages redelivered per second.",
        "pulsar_subscription_msg_rate_redeliver",
    ),
    Stat(
        "rate_acked",
        "Messages acknowledged per second.",
        "pulsar_subscription_msg_ack_rate",
    ),
    Stat(
        "rate_dropped",
        "Messages of a non-persistent topic dropped per second: no consumer could receive them.",
        "pulsar_subscription_msg_drop_rate",
    ),
    Stat("rate_expired", "Entries expired per second.", "pulsar_subscription_msg_rate_expired"),
    Stat(
        "expired",
        "Entries expired since the topic was opened.",
        "pulsar_subscription_total_msg_expired",
    ),
    Stat(
        "last_expired_ms",
        "Time of the last expiry, in ms since the epoch; 0 if there was none.",
        "pulsar_subscription_last_expire_timestamp",
    ),
    Stat(
        "last_acked_ms",
        "Time of the last acknowledgement, in ms since the epoch; 0 if there was none.",
        "pulsar_subscription_last_acked_timestamp",
    ),
    Stat(
        "last_flow_ms",
        "Time of the last FLOW of a consumer, in ms since the epoch; 0 if there was none.",
        "pulsar_subscription_last_consumed_flow_timestamp",
    ),
    Stat(
        "last_sent_ms",
        "Time of the last message sent to a consumer, in ms since the epoch; 0 if there was none.",
        "pulsar_subscription_last_consumed_timestamp",
    ),
    Stat(
        "last_advanced_ms",
        "Time when the mark-delete position last advanced, in ms since the epoch; 0 if never.",
        "pulsar_subscription_last_mark_delete_advanced_timestamp",
    ),
    Stat(
        "backlog_age_s",
        "Age in seconds of the oldest message of the backlog; -1 if none exists or its time is"
        " not known yet.",
        "pulsar_subscription_storage_backlog_age_seconds",
    ),
    Stat(
        "stopped_by_damage",
        "1 if the subscription has stopped because too many consecutive entries are lost.",
        "pyxbroker_subscription_stopped_by_damage",
        only_set=True,
    ),
)

_REASONS = ("subscription", "topic", "broker")

# Series of subscriptions that a dispatch rate has throttled since their topic was opened.
THROTTLED = tuple(
    Stat(
        f"{what}_{reason}",
        f"Number of times that a limit of {about} per second throttled the subscription.",
        f"pulsar_subscription_dispatch_throttled_{what}_events",
        label=f'reason="{reason}"',
    )
    for what, about in (("msg", "messages"), ("bytes", "bytes"))
    for reason in _REASONS
)

# Series of topics whose backlog has exceeded a quota since they were opened, and of the broker.
EVICTIONS = tuple(
    Stat(
        kind,
        "Number of evictions of messages because the backlog exceeded a quota.",
        "pulsar_storage_backlog_quota_exceeded_evictions_total",
        "pulsar_broker_storage_backlog_quota_exceeded_evictions_total",
        label=f'quota_type="{kind}"',
    )
    for kind in ("size", "time")
)

# Series of topics that were compacted since they were opened.
# Only of topics that have had transactions.
TRANSACTIONS = (
    Stat(
        "ongoing",
        "Open transactions with messages in the topic.",
        "pulsar_txn_tb_active_total",
    ),
    Stat(
        "aborted",
        "Transactions that were aborted in the topic since it was opened.",
        "pulsar_txn_tb_aborted_total",
    ),
    Stat(
        "committed",
        "Transactions that were committed in the topic since it was opened.",
        "pulsar_txn_tb_committed_total",
    ),
)
TRANSACTION_BOUNDS_MS = (
    *(10, 20, 50, 100, 500, 1_000, 5_000, 15_000, 30_000, 60_000),
    *(300_000, 1_500_000, 3_000_000),
)
COORDINATOR = (
    Stat("active", "Transactions that have not ended.", "pulsar_txn_active_count"),
    Stat("created", "Transactions that were begun.", "pulsar_txn_created_total"),
    Stat("committed", "Transactions that were committed.", "pulsar_txn_committed_total"),
    Stat("aborted", "Transactions that were aborted.", "pulsar_txn_aborted_total"),
    Stat("timed_out", "Transactions aborted after their timeout.", "pulsar_txn_timeout_total"),
    Stat("appended", "Records written to the log.", "pulsar_txn_append_log_total"),
)
"""The numbers of a transaction coordinator since it was opened."""
COORDINATOR_LATENCIES = tuple(
    Stat(
        "",
        "Transactions that ended, by the milliseconds since they were begun.",
        f"pulsar_txn_execution_latency_le_{bound}",
    )
    for bound in (*TRANSACTION_BOUNDS_MS, "overflow")
)
"""The numbers of ended transactions in each bucket; the buckets are not cumulative."""
COMPACTION = (
    Stat(
        "removed",
        "Messages removed by the last compaction of a topic.",
        "pulsar_compaction_removed_event_count",
    ),
    Stat("succeeded", "Successful compactions.", "pulsar_compaction_succeed_count"),
    Stat("failed", "Failed compactions.", "pulsar_compaction_failed_count"),
    Stat(
        "duration_ms",
        "Duration of the last compaction of a topic in milliseconds.",
        "pulsar_compaction_duration_time_in_mills",
    ),
    Stat(
        "entries",
        "Entries of the compacted ledger of a topic.",
        "pulsar_compaction_compacted_entries_count",
    ),
    Stat(
        "size",
        "Bytes of the compacted ledger of a topic.",
        "pulsar_compaction_compacted_entries_size",
    ),
)

CONSUMER = (
    Stat(
        "rate_redelivered",
        "Messages redelivered per second.",
        "pulsar_consumer_msg_rate_redeliver",
    ),
    Stat(
        "unacked_messages",
        "Unacknowledged messages of the consumer.",
        "pulsar_consumer_unacked_messages",
    ),
    Stat(
        "is_blocked",
        "1 if dispatch to the consumer is paused because it has too many unacknowledged messages.",
        "pulsar_consumer_blocked_on_unacked_messages",
    ),
    Stat(
        "rate_out",
        "Messages sent to the consumer per second.",
        "pulsar_consumer_msg_rate_out",
    ),
    Stat(
        "rate_acked",
        "Messages acknowledged per second.",
        "pulsar_consumer_msg_ack_rate",
    ),
    Stat(
        "throughput_out",
        "Bytes sent to the consumer per second.",
        "pulsar_consumer_msg_throughput_out",
    ),
    Stat(
        "permits",
        "Permits: messages that the consumer has requested and not received yet.",
        "pulsar_consumer_available_permits",
    ),
    Stat("msg_out", "Messages sent to the consumer.", "pulsar_out_messages_total"),
    Stat("bytes_out", "Bytes sent to the consumer.", "pulsar_out_bytes_total"),
)

PRODUCER = (
    Stat("rate_in", "Messages received per second.", "pulsar_producer_msg_rate_in"),
    Stat("throughput_in", "Bytes received per second.", "pulsar_producer_msg_throughput_in"),
    Stat("message_size", "Mean size of a message in bytes.", "pulsar_producer_msg_average_Size"),
)

# Series of the embedded bookie (storage.h, storage_stats), with BookKeeper's names where one fits.
BOOKIE = (
    Stat("ledgers", "Stored ledgers.", "bookie_ledgers_count"),
    Stat("entries", "Stored entries.", "bookie_entries_count"),
    Stat(
        "queue_adds",
        "Entries waiting for the journal.",
        "bookie_journal_JOURNAL_QUEUE_SIZE",
    ),
    Stat("dirty_bytes", "Bytes that are only in the journal so far.", "bookie_write_cache_size"),
    Stat("cache_bytes", "Bytes of entries in memory.", "bookie_read_cache_size"),
    Stat("cache_bytes", "Bytes of entries in memory.", "pulsar_ml_cache_used_size"),
    Stat(
        "waiting_groups",
        "Groups of entries waiting for the journal's sync.",
        "bookie_journal_JOURNAL_FORCE_WRITE_QUEUE_SIZE",
    ),
    Stat("add_bytes", "Bytes of entries added.", "bookie_WRITE_BYTES", kind=COUNTER),
    Stat(
        "disk_read_bytes",
        "Bytes of entries read from the disk.",
        "bookie_READ_BYTES",
        kind=COUNTER,
    ),
    Stat(
        "journal_bytes",
        "Bytes written to the journal.",
        "bookie_journal_JOURNAL_WRITE_BYTES_total",
        kind=COUNTER,
    ),
    Stat(
        "cache_hits",
        "Entries read from memory.",
        "bookie_read_cache_hits_total",
        kind=COUNTER,
    ),
    Stat(
        "disk_reads",
        "Entries read from the disk.",
        "bookie_read_cache_misses_total",
        kind=COUNTER,
    ),
    Stat("adds", "Entries added.", "pyxbroker_bookie_adds_total", kind=COUNTER),
    Stat(
        "groups",
        "Groups of entries written to the journal.",
        "pyxbroker_bookie_journal_groups_total",
        kind=COUNTER,
    ),
    Stat(
        "sync_ns_max",
        "Longest journal sync since the start, in ns.",
        "pyxbroker_bookie_journal_sync_max_ns",
    ),
    Stat(
        "flushes",
        "Flushes of the write cache to entry logs.",
        "pyxbroker_bookie_flushes_total",
        kind=COUNTER,
    ),
    Stat(
        "flush_bytes",
        "Bytes written to entry logs.",
        "pyxbroker_bookie_flush_bytes_total",
        kind=COUNTER,
    ),
    Stat("entry_logs", "Entry log files.", "pyxbroker_bookie_entry_logs"),
    Stat("entry_log_bytes", "Bytes of entry log files.", "pyxbroker_bookie_entry_log_bytes"),
    Stat(
        "damaged_entries",
        "Reads of damaged entries.",
        "pyxbroker_bookie_damaged_entries_total",
        kind=COUNTER,
    ),
    Stat(
        "replayed_entries",
        "Entries recovered from the journal at the start.",
        "pyxbroker_bookie_replayed_entries",
    ),
    Stat(
        "trouble",
        "Error number (errno) of a persistent disk error, or 0.",
        "pyxbroker_bookie_trouble",
    ),
)

# Series of the storage as a whole.
STORAGE = (
    # BookKeeper's values: 1 is writable, 0 is read-only.
    Stat(
        "is_healthy", "1 if the storage is writable, 0 if it is read-only.", "bookie_SERVER_STATUS"
    ),
    Stat(
        "is_healthy",
        "Writable ledger directories.",
        "bookie_ledger_writable_dirs",
    ),
    Stat(
        "refused_sends",
        "Sends refused because the storage refused writes.",
        "bookie_ADD_ENTRY_REJECTED_total",
        kind=COUNTER,
    ),
    Stat(
        "unknown_ledgers",
        "Stored ledgers that are unknown to the metadata.",
        "pyxbroker_bookie_unknown_ledgers",
    ),
)

PROCESS = (
    Stat("virtual_bytes", "Virtual memory in bytes.", "process_virtual_memory_bytes"),
    Stat("resident_bytes", "Resident memory in bytes.", "process_resident_memory_bytes"),
    Stat("start_s", "Start time in seconds since the epoch.", "process_start_time_seconds"),
    Stat(
        "cpu_s", "User and system CPU time in seconds.", "process_cpu_seconds_total", kind=COUNTER
    ),
    Stat("open_files", "Open file descriptors.", "process_open_fds"),
    Stat("open_files_max", "Maximum number of open file descriptors.", "process_max_fds"),
)

# Series of the open managed ledgers of a namespace: sums over its topics (fields of TOPIC).
LEDGERS = (
    Stat("storage_write_rate", "Entries stored per second.", "pulsar_ml_AddEntryMessagesRate"),
    Stat("storage_read_rate", "Entries read per second.", "pulsar_ml_ReadEntriesRate"),
    Stat(
        "read_miss_rate",
        "Entries read per second from disk.",
        "pulsar_ml_ReadEntriesOpsCacheMissesRate",
    ),
    Stat("storage_size", "Bytes of the stored entries.", "pulsar_ml_StoredMessagesSize"),
    Stat(
        "backlog",
        "Unacknowledged entries, summed over cursors.",
        "pulsar_ml_NumberOfMessagesInBacklog",
    ),
)
# Errors of managed ledgers in the current and the last period (managedLedgerStatsPeriodSeconds).
LEDGER_ERRORS = (
    Stat("add", "Managed ledgers that failed to store entries.", "pulsar_ml_AddEntryErrors"),
    Stat("read", "Failed reads of entries.", "pulsar_ml_ReadEntriesErrors"),
)

CURSOR = (
    Stat(
        "ack_ranges",
        "Ranges of entries acknowledged beyond the mark-delete position.",
        "pulsar_ml_cursor_nonContiguousDeletedMessagesRange",
    ),
)

# Rates of the embedded bookie's counters, under the names of the cache in Pulsar's broker.
CACHE_RATES = (
    Stat("cache_hits", "Entries read from memory per second.", "pulsar_ml_cache_hits_rate"),
    Stat("disk_reads", "Entries read from disk per second.", "pulsar_ml_cache_misses_rate"),
    Stat(
        "disk_read_bytes",
        "Bytes of entries read from disk per second.",
        "pulsar_ml_cache_misses_throughput",
    ),
)

# The cache of a broker whose bookies are other processes.
ENTRY_CACHE = (
    Stat("used_bytes", "Bytes of entries in memory.", "pulsar_ml_cache_used_size"),
    Stat("entries", "Entries in memory.", "pulsar_ml_cache_entries"),
    Stat(
        "inserted",
        "Entries that the cache has taken.",
        "pulsar_ml_cache_inserted_entries_total",
        kind=COUNTER,
    ),
    Stat(
        "evicted",
        "Entries that were evicted.",
        "pulsar_ml_cache_evicted_entries_total",
        kind=COUNTER,
    ),
    Stat("evictions", "Evictions for lack of memory.", "pulsar_ml_cache_evictions"),
)
ENTRY_CACHE_RATES = (
    *CACHE_RATES,
    Stat(
        "hit_bytes",
        "Bytes of entries read from memory per second.",
        "pulsar_ml_cache_hits_throughput",
    ),
)

_CONNECTION = 'metric="broker_connection"'
_LOADING = 'metric="pulsar_topic_load_times"'
_LOAD = 'metric="loadBalancing"'

# Series of the broker as a whole. A series with a label also has the broker's host as a label.
BROKER = (
    Stat("connections", "Open connections.", "pulsar_active_connections", label=_CONNECTION),
    Stat(
        "connections_opened",
        "Connections opened since the start.",
        "pulsar_connection_created_total_count",
        label=_CONNECTION,
    ),
    Stat(
        "connections_closed",
        "Connections closed since the start.",
        "pulsar_connection_closed_total_count",
        label=_CONNECTION,
    ),
    Stat(
        "connects_succeeded",
        "CONNECT commands accepted since the start.",
        "pulsar_connection_create_success_count",
        label=_CONNECTION,
    ),
    Stat(
        "connects_failed",
        "CONNECT commands refused since the start.",
        "pulsar_connection_create_fail_count",
        label=_CONNECTION,
    ),
    Stat(
        "garbage_ledgers_deleted",
        "Ledgers deleted since the start that a crash had left behind.",
        "pyxbroker_garbage_ledgers_deleted_total",
        kind=COUNTER,
    ),
    Stat(
        "unreached_peers",
        "Registered brokers of this kind that this broker does not reach.",
        "pyxbroker_unreached_brokers",
    ),
    Stat(
        "removed_peers",
        "Failed brokers whose bundles this broker has given up since the start.",
        "pyxbroker_removed_brokers_total",
        kind=COUNTER,
    ),
    Stat(
        "is_healthy",
        "1 if the broker stores messages, 0 if it refuses them.",
        "pulsar_health",
        label='metric="broker_health"',
    ),
    Stat(
        "loads_failed",
        "Topics that failed to open since the start.",
        "pulsar_topic_load_failed_count",
        label=_LOADING,
    ),
    Stat(
        "loads_failed",
        "Topics that failed to open.",
        "topic_load_failed_total",
        kind=COUNTER,
    ),
    Stat(
        "loads_pending",
        "Topics that are being opened or wait to be opened.",
        "pulsar_broker_topic_load_pending_requests",
    ),
    Stat(
        "lookups_pending",
        "Lookups in progress.",
        "pulsar_broker_lookup_pending_requests",
    ),
    Stat(
        "lookups_answered",
        "Lookups answered with the address of a broker.",
        "pulsar_broker_lookup_answers_total",
        kind=COUNTER,
    ),
    Stat("lookups_failed", "Lookups refused.", "pulsar_broker_lookup_failures_total", kind=COUNTER),
    Stat(
        "lookups_redirected",
        "Lookups redirected to another broker; a standalone broker redirects none.",
        "pulsar_broker_lookup_redirects_total",
        kind=COUNTER,
    ),
    Stat(
        "waiting_bytes",
        "Bytes waiting to be sent to clients.",
        "pulsar_broker_pending_bytes_to_dispatch",
    ),
    Stat(
        "paused_connections",
        "Connections whose reading is paused by a rate or another limit.",
        "pulsar_broker_throttled_connections",
    ),
    Stat("managed_ledgers", "Open managed ledgers.", "pulsar_ml_count"),
    Stat(
        "cpu_percent",
        "CPU use of the process, in percent of all cores.",
        "pulsar_lb_cpu_usage",
        label=_LOAD,
    ),
    Stat(
        "memory_percent",
        "Resident memory of the process, in percent of the machine's memory.",
        "pulsar_lb_memory_usage",
        label=_LOAD,
    ),
)

# Series of bundles, by the fields of Pulsar's NamespaceBundleStats.
BUNDLE = (
    Stat("topics", "Open topics of the bundle.", "pulsar_bundle_topics_count"),
    Stat("producerCount", "Connected producers.", "pulsar_bundle_producer_count"),
    Stat("consumerCount", "Connected consumers.", "pulsar_bundle_consumer_count"),
    Stat("msgRateIn", "Messages received per second.", "pulsar_bundle_msg_rate_in"),
    Stat("msgRateOut", "Messages sent per second.", "pulsar_bundle_msg_rate_out"),
    Stat("msgThroughputIn", "Bytes received per second.", "pulsar_bundle_msg_throughput_in"),
    Stat("msgThroughputOut", "Bytes sent per second.", "pulsar_bundle_msg_throughput_out"),
)

# Series of the web port, with the names of Jetty, Pulsar's web server, because dashboards use them.
WEB = (
    Stat("requests", "Requests received.", "jetty_requests_total", kind=COUNTER),
    Stat("active", "Requests in progress.", "jetty_requests_active"),
    Stat("active_max", "Largest number of concurrent requests.", "jetty_requests_active_max"),
    Stat(
        "seconds",
        "Total time in seconds from a request until its response was written.",
        "jetty_request_time_seconds_total",
        kind=COUNTER,
    ),
    Stat(
        "seconds_max",
        "Longest time from a request until its response was written.",
        "jetty_request_time_max_seconds",
    ),
    Stat(
        "response_bytes",
        "Bytes of responses.",
        "jetty_responses_bytes_total",
        kind=COUNTER,
    ),
)
WEB_RESPONSES = Stat("", "Responses by class of status.", "jetty_responses_total", kind=COUNTER)

# Series of authentication, if enabled, by provider, method and reason of a refusal.
LOGINS = Stat("", "Credentials accepted.", "pulsar_authentication_success_total", kind=COUNTER)
FAILED_LOGINS = Stat(
    "", "Credentials refused.", "pulsar_authentication_failures_total", kind=COUNTER
)
EXPIRED_TOKENS = Stat(
    "", "Tokens refused because they had expired.", "pulsar_expired_token_total", kind=COUNTER
)
TOKEN_MINUTES = Stat(
    "",
    "Remaining lifetime of accepted tokens in minutes.",
    "pulsar_expiring_token_minutes",
    kind=HISTOGRAM,
)

QUOTA_CHECKS = Stat(
    "",
    "Duration of a check of all backlog quotas in seconds.",
    "pulsar_storage_backlog_quota_check_duration_seconds",
    kind=HISTOGRAM,
)

# Series of operations on the schemas of a namespace, in milliseconds, without quantiles.
SCHEMA_LATENCIES = tuple(
    Stat(
        each,
        f"Duration of {about} in milliseconds.",
        f"pulsar_schema_{each}_ops_latency",
        kind=SUMMARY,
    )
    for each, about in (
        ("get", "reads of a schema"),
        ("put", "registrations of a schema"),
        ("del", "deletions of a schema"),
    )
)
SCHEMA_FAILURES = tuple(
    Stat(
        each,
        f"Failed {each} operations on schemas.",
        f"pulsar_schema_{each}_ops_failed_total",
        kind=COUNTER,
    )
    for each in ("get", "put", "del")
)
SCHEMA_CHECKS = (
    Stat("compatible", "Schemas found compatible.", "pulsar_schema_compatible_total", kind=COUNTER),
    Stat(
        "incompatible",
        "Schemas found incompatible.",
        "pulsar_schema_incompatible_total",
        kind=COUNTER,
    ),
)

# Defects of this broker, by the logger that reported them.
DEFECTS = Stat(
    "",
    "Unexpected errors. Each one fails the operation that it occurs in and is in the log.",
    "pyxbroker_defects_total",
    kind=COUNTER,
)

# Memory that clients use.
CLIENT_STATE = (
    Stat(
        "used",
        "Memory in bytes for producers, consumers, watchers and commands in progress.",
        "pyxbroker_client_state_bytes",
    ),
    Stat(
        "refused",
        "Commands refused because a memory limit of their connection or of the broker was reached.",
        "pyxbroker_client_state_refused_total",
        kind=COUNTER,
    ),
    Stat(
        "closed",
        "Connections closed because they used most memory when the broker's limit was reached.",
        "pyxbroker_client_state_closed_total",
        kind=COUNTER,
    ),
    Stat(
        "answer_bytes",
        "Bytes of long REST responses that clients have not read yet.",
        "pyxbroker_rest_answer_bytes",
    ),
    Stat(
        "answers_refused",
        "REST responses refused because unread ones use too much memory.",
        "pyxbroker_rest_answers_refused_total",
        kind=COUNTER,
    ),
    Stat(
        "body_bytes",
        "Bytes of long REST requests in progress.",
        "pyxbroker_rest_body_bytes",
    ),
    Stat(
        "bodies_refused",
        "REST requests refused because those in progress use too much memory.",
        "pyxbroker_rest_bodies_refused_total",
        kind=COUNTER,
    ),
    Stat(
        "batch_ack_bytes",
        "Memory in bytes for acknowledgements of single messages in batches.",
        "pyxbroker_batch_ack_state_bytes",
    ),
    Stat(
        "batch_acks_refused",
        "Acknowledgements of single messages in batches dropped because of the memory limit.",
        "pyxbroker_batch_ack_state_refused_total",
        kind=COUNTER,
    ),
    Stat(
        "entry_set_bytes",
        "Memory in bytes for the sets of individually acknowledged entries and of entries to"
        " redeliver, with a bit per entry.",
        "pyxbroker_entry_set_bytes",
    ),
    Stat(
        "delayed_bytes",
        "Memory in bytes for delayed messages that are not due yet.",
        "pyxbroker_delayed_delivery_state_bytes",
    ),
)

# Series of connections, by the setting of the limit.
REFUSED_CONNECTIONS = Stat(
    "",
    "Connections refused because the limit of a setting was reached.",
    "pyxbroker_refused_connections_total",
    kind=COUNTER,
)
CLOSED_CONNECTIONS = Stat(
    "",
    "Idle or unauthenticated connections closed for new ones because the limit of a setting was"
    " reached.",
    "pyxbroker_closed_connections_total",
    kind=COUNTER,
)

# Series of commands without effect, by the command's name.
STRAY_COMMANDS = Stat(
    "",
    "Commands dropped because their producer or consumer is not open on the connection.",
    "pyxbroker_stray_commands_total",
    kind=COUNTER,
)

# Series of the event loop; bounds and counts come from turn_watch.
TURNS = Stat(
    "",
    "Duration of event-loop turns in seconds, from one poll of the sockets to the next.",
    "pyxbroker_loop_turn_seconds",
    kind=HISTOGRAM,
)


class Summary(NamedTuple):
    """A series of quantiles over the last minute, with a count and a sum since the start."""

    field: str  # of MetricsSource.latencies
    help: str
    series: str
    label: str  # additional label
    quantiles: tuple[str, ...]


_PULSAR = ("0.0", "0.5", "0.95", "0.99", "0.999", "0.9999", "1.0")
_BOOKKEEPER = ("0.5", "0.75", "0.95", "0.99", "0.999", "0.9999", "1.0")
_SUCCESS, _FAILURE = 'success="true"', 'success="false"'
_ADD_ABOUT = "Milliseconds from the first entry of a group until the group was durable."
_READ_ABOUT = "Duration of reads from disk in milliseconds."

# In milliseconds. Rows with the same name must be adjacent.
LATENCIES = (
    Summary(
        "publish",
        "Milliseconds from reading a message from its connection until it was stored.",
        "pulsar_broker_publish_latency",
        "",
        _PULSAR,
    ),
    Summary(
        "lookup",
        "Milliseconds until a lookup was answered.",
        "pulsar_broker_lookup",
        "",
        ("0.5", "0.99", "0.999", "1.0"),
    ),
    Summary(
        "load",
        "Milliseconds to open a topic.",
        "pulsar_topic_load_times",
        "",
        ("0.5", "0.75", "0.95", "0.99", "0.999", "0.9999", "1.0"),
    ),
    Summary("add", _ADD_ABOUT, "bookie_journal_JOURNAL_ADD_ENTRY", _SUCCESS, _BOOKKEEPER),
    Summary(
        "sync",
        "Milliseconds of a journal sync.",
        "bookie_journal_JOURNAL_SYNC",
        _SUCCESS,
        _BOOKKEEPER,
    ),
    Summary("add", _ADD_ABOUT, "bookkeeper_server_ADD_ENTRY_REQUEST", _SUCCESS, _BOOKKEEPER),
    Summary("read", _READ_ABOUT, "bookkeeper_server_READ_ENTRY_REQUEST", _SUCCESS, _BOOKKEEPER),
    Summary(
        "failed_read",
        _READ_ABOUT,
        "bookkeeper_server_READ_ENTRY_REQUEST",
        _FAILURE,
        _BOOKKEEPER,
    ),
)
