"""Every counter and rate, once: what it means, where it is read, which series it is in /metrics.

Names, labels and types of series are Pulsar's and BookKeeper's. Apache Pulsar exposes its own topic
series as gauges, the ever-growing `_total` ones too; dashboards do not mind, and we do the same.
A new series is one more row.
"""

from __future__ import annotations

from typing import NamedTuple

GAUGE = "gauge"
COUNTER = "counter"
HISTOGRAM = "histogram"
SUMMARY = "summary"


class Stat(NamedTuple):
    """One number of a topic, a subscription, ... or of the whole.

    Where a series of its own has no name, only the sum over all topics is shown.
    """

    field: str  # of the statistics that it is read from
    help: str
    series: str
    broker_series: str = ""  # of the sum over all topics
    namespace_series: str | None = None  # where topics have none of their own; None: `series`
    namespace_label: str = ""  # that this one has besides
    kind: str = GAUGE
    only_set: bool = False  # there is a series, with the value 1, only where the field is not empty
    label: str = ""  # that each series has besides


# Of topics; of namespaces, as sums, where topics have no series of their own.
TOPIC = (
    Stat(
        "subscription_count",
        "Subscriptions, those of readers included.",
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
        "Bytes of the messages that are kept.",
        "pulsar_storage_size",
        "pulsar_broker_storage_size",
    ),
    Stat(
        "storage_size",
        "Bytes of the messages that are kept, each counted once.",
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
        "Entries that are not acknowledged, summed over subscriptions.",
        "pulsar_msg_backlog",
        "pulsar_broker_msg_backlog",
        namespace_label='remote_cluster="local"',
    ),
    Stat(
        "publish_rate_limited",
        "Times that a connection had to wait before it could publish more.",
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
        "Entries read per second, from memory or from a disk.",
        "pulsar_storage_read_rate",
        "pulsar_broker_storage_read_rate",
    ),
    Stat(
        "read_miss_rate",
        "Entries per second that were read from a disk.",
        "pulsar_storage_read_cache_misses_rate",
        "pulsar_broker_storage_read_cache_misses_rate",
    ),
    Stat(
        "mean_size",
        "Mean bytes of the messages received, 0 while none are.",
        "pulsar_average_msg_size",
        namespace_series="",
    ),
    Stat(
        "backlog_age_s",
        "Seconds since the oldest message that some subscription has not acknowledged was"
        " published; -1: there is none, or its time is not known yet.",
        "pulsar_storage_backlog_age_seconds",
        namespace_series="",
    ),
    Stat(
        "delayed",
        "Entries that are not due yet, summed over subscriptions.",
        "",
        namespace_series="pulsar_subscription_delayed",
    ),
    Stat(
        "delayed_index_bytes",
        "Bytes of memory for the entries that are not due yet.",
        "pulsar_delayed_message_index_size_bytes",
    ),
    Stat(
        "in_replay",
        "Entries that wait to be sent again, summed over subscriptions.",
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
        "Bytes that the backlog may have; -1: any number.",
        "pulsar_storage_backlog_quota_limit",
        namespace_series="",
    ),
    Stat(
        "backlog_age_limit",
        "Seconds that the oldest of the backlog may be old; -1: any number.",
        "pulsar_storage_backlog_quota_limit_time",
        namespace_series="",
    ),
)


def _adds() -> tuple[Stat, ...]:
    latency, size = "pulsar_storage_write_latency", "pulsar_entry_size"
    bounds_ms = ("0_5", "1", "5", "10", "20", "50", "100", "200", "1000")
    bounds = ("128", "512", "1_kb", "2_kb", "4_kb", "16_kb", "100_kb", "1_mb")
    last = "of the last period"
    below = "and more than the bound before it"
    return (
        *(
            Stat(
                "",
                f"Entries {last} that were stored within {each.replace('_', '.')} ms {below}.",
                f"{latency}_le_{each}",
            )
            for each in bounds_ms
        ),
        Stat("", f"Entries {last} that took longer to be stored.", f"{latency}_overflow"),
        Stat("", f"Entries {last}.", f"{latency}_count"),
        Stat("", f"Microseconds that all entries {last} took to be stored.", f"{latency}_sum"),
        *(Stat("", f"Entries {last} of {each} {below}.", f"{size}_le_{each}") for each in bounds),
        Stat("", f"Larger entries {last}.", f"{size}_le_overflow"),
        Stat("", f"Entries {last}.", f"{size}_count"),
        Stat("", f"Bytes of all entries {last}.", f"{size}_sum"),
    )


# Of topics, in the order of `last_adds`; of namespaces, as sums, where topics have no series of
# their own. They are gauges, and each bucket stands for itself: what Pulsar calls le_5 has nothing
# of le_1 in it, and all begin anew with each period (managedLedgerStatsPeriodSeconds).
ADDS = _adds()

# How many topics a sum is about.
TOPICS = Stat("", "Open topics.", "pulsar_topics_count", "pulsar_broker_topics_count")

SUBSCRIPTION = (
    Stat("backlog", "Entries that are not acknowledged.", "pulsar_subscription_back_log"),
    Stat(
        "due_backlog",
        "Entries that are not acknowledged, without those that are not due yet.",
        "pulsar_subscription_back_log_no_delayed",
    ),
    Stat("delayed", "Entries that are not due yet.", "pulsar_subscription_delayed"),
    Stat(
        "unacked_messages",
        "Messages sent to consumers and not acknowledged.",
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
        "1: nothing is sent, since too many messages of the subscription are unacknowledged.",
        "pulsar_subscription_blocked_on_unacked_messages",
    ),
    Stat("in_replay", "Entries that wait to be sent again.", "pulsar_subscription_in_replay"),
    Stat(
        "delayed_index_bytes",
        "Bytes of memory for the entries that are not due yet.",
        "pulsar_subscription_delayed_message_index_size_bytes",
    ),
    Stat(
        "rate_redelivered",
        "Messages sent again per second.",
        "pulsar_subscription_msg_rate_redeliver",
    ),
    Stat(
        "rate_acked",
        "Messages acknowledged per second.",
        "pulsar_subscription_msg_ack_rate",
    ),
    Stat(
        "rate_dropped",
        "Messages of a non-persistent topic per second that no consumer could take.",
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
        "Time of the last expiry, in ms since the epoch; 0: none.",
        "pulsar_subscription_last_expire_timestamp",
    ),
    Stat(
        "last_acked_ms",
        "Time of the last acknowledgement, in ms since the epoch; 0: none.",
        "pulsar_subscription_last_acked_timestamp",
    ),
    Stat(
        "last_flow_ms",
        "Time of the last FLOW of a consumer, in ms since the epoch; 0: none.",
        "pulsar_subscription_last_consumed_flow_timestamp",
    ),
    Stat(
        "last_sent_ms",
        "Time of the last message sent to a consumer, in ms since the epoch; 0: none.",
        "pulsar_subscription_last_consumed_timestamp",
    ),
    Stat(
        "last_advanced_ms",
        "Time when the mark-delete position last advanced, in ms since the epoch; 0: never.",
        "pulsar_subscription_last_mark_delete_advanced_timestamp",
    ),
    Stat(
        "backlog_age_s",
        "Seconds since the first message of the backlog was published; -1: there is none, or its"
        " time is not known yet.",
        "pulsar_subscription_storage_backlog_age_seconds",
    ),
    Stat(
        "stopped_by_damage",
        "1: nothing more is read, since too many entries in a row are lost.",
        "pyxbroker_subscription_stopped_by_damage",
        only_set=True,
    ),
)

_REASONS = ("subscription", "topic", "broker")

# Of subscriptions that a dispatch rate has held back since their topic was opened.
THROTTLED = tuple(
    Stat(
        f"{what}_{reason}",
        f"Times that a limit of {about} per second held the subscription back.",
        f"pulsar_subscription_dispatch_throttled_{what}_events",
        label=f'reason="{reason}"',
    )
    for what, about in (("msg", "messages"), ("bytes", "bytes"))
    for reason in _REASONS
)

# Of topics whose backlog exceeded a quota since they were opened; of the broker always.
EVICTIONS = tuple(
    Stat(
        kind,
        "Times that messages were evicted, since the backlog exceeded a quota.",
        "pulsar_storage_backlog_quota_exceeded_evictions_total",
        "pulsar_broker_storage_backlog_quota_exceeded_evictions_total",
        label=f'quota_type="{kind}"',
    )
    for kind in ("size", "time")
)

# Of topics that were compacted since they were opened.
COMPACTION = (
    Stat(
        "removed",
        "Messages that the last compaction of a topic left out.",
        "pulsar_compaction_removed_event_count",
    ),
    Stat("succeeded", "Compactions that went well.", "pulsar_compaction_succeed_count"),
    Stat("failed", "Compactions that failed.", "pulsar_compaction_failed_count"),
    Stat(
        "duration_ms",
        "Milliseconds that the last compaction of a topic took.",
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
        "Messages sent again per second.",
        "pulsar_consumer_msg_rate_redeliver",
    ),
    Stat(
        "unacked_messages",
        "Messages sent to the consumer and not acknowledged.",
        "pulsar_consumer_unacked_messages",
    ),
    Stat(
        "is_blocked",
        "1: it gets nothing, since it has too many messages unacknowledged.",
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
        "Messages that the consumer still wants.",
        "pulsar_consumer_available_permits",
    ),
    Stat("msg_out", "Messages sent to the consumer.", "pulsar_out_messages_total"),
    Stat("bytes_out", "Bytes sent to the consumer.", "pulsar_out_bytes_total"),
)

PRODUCER = (
    Stat("rate_in", "Messages received per second.", "pulsar_producer_msg_rate_in"),
    Stat("throughput_in", "Bytes received per second.", "pulsar_producer_msg_throughput_in"),
    Stat("message_size", "Mean bytes of a message.", "pulsar_producer_msg_average_Size"),
)

# Of the embedded bookie (storage.h, storage_stats), where a counter has one of BookKeeper's names.
BOOKIE = (
    Stat("ledgers", "Ledgers that are stored.", "bookie_ledgers_count"),
    Stat("entries", "Entries that are stored.", "bookie_entries_count"),
    Stat(
        "queue_adds",
        "Entries that wait for the journal.",
        "bookie_journal_JOURNAL_QUEUE_SIZE",
    ),
    Stat("dirty_bytes", "Bytes that are in the journal only.", "bookie_write_cache_size"),
    Stat("cache_bytes", "Bytes of entries in memory.", "bookie_read_cache_size"),
    Stat("cache_bytes", "Bytes of entries in memory.", "pulsar_ml_cache_used_size"),
    Stat(
        "waiting_groups",
        "Groups of entries that wait for the journal's sync.",
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
        "The longest journal sync since the start, in ns.",
        "pyxbroker_bookie_journal_sync_max_ns",
    ),
    Stat(
        "flushes",
        "Parts of the write cache written to entry logs.",
        "pyxbroker_bookie_flushes_total",
        kind=COUNTER,
    ),
    Stat(
        "flush_bytes",
        "Bytes written to entry logs.",
        "pyxbroker_bookie_flush_bytes_total",
        kind=COUNTER,
    ),
    Stat("entry_logs", "Entry logs that are kept.", "pyxbroker_bookie_entry_logs"),
    Stat("entry_log_bytes", "Bytes of entry logs.", "pyxbroker_bookie_entry_log_bytes"),
    Stat(
        "damaged_entries",
        "Reads of entries whose bytes are damaged.",
        "pyxbroker_bookie_damaged_entries_total",
        kind=COUNTER,
    ),
    Stat(
        "replayed_entries",
        "Entries that the start took from the journal.",
        "pyxbroker_bookie_replayed_entries",
    ),
    Stat(
        "trouble",
        "The error (errno) that the disk goes on giving the storage, 0: none.",
        "pyxbroker_bookie_trouble",
    ),
)

# Of what is stored as a whole.
STORAGE = (
    # BookKeeper's words: 1 takes entries, 0 only reads.
    Stat("is_healthy", "1: entries are stored; 0: they are only read.", "bookie_SERVER_STATUS"),
    Stat(
        "is_healthy",
        "Directories of ledgers that can be written.",
        "bookie_ledger_writable_dirs",
    ),
    Stat(
        "refused_sends",
        "Sends refused, since nothing could be stored.",
        "bookie_ADD_ENTRY_REJECTED_total",
        kind=COUNTER,
    ),
    Stat(
        "unknown_ledgers",
        "Ledgers that are stored and that no metadata names.",
        "pyxbroker_bookie_unknown_ledgers",
    ),
)

PROCESS = (
    Stat("virtual_bytes", "Virtual memory in bytes.", "process_virtual_memory_bytes"),
    Stat("resident_bytes", "Resident memory in bytes.", "process_resident_memory_bytes"),
    Stat("start_s", "Start, in seconds since the epoch.", "process_start_time_seconds"),
    Stat("cpu_s", "User and system CPU, in seconds.", "process_cpu_seconds_total", kind=COUNTER),
    Stat("open_files", "Open file descriptors.", "process_open_fds"),
    Stat("open_files_max", "File descriptors that may be open.", "process_max_fds"),
)

# Of the open managed ledgers of a namespace: sums over its topics (fields of TOPIC).
LEDGERS = (
    Stat("storage_write_rate", "Entries stored per second.", "pulsar_ml_AddEntryMessagesRate"),
    Stat("storage_read_rate", "Entries read per second.", "pulsar_ml_ReadEntriesRate"),
    Stat(
        "read_miss_rate",
        "Entries per second that were read from a disk.",
        "pulsar_ml_ReadEntriesOpsCacheMissesRate",
    ),
    Stat("storage_size", "Bytes of the entries that are kept.", "pulsar_ml_StoredMessagesSize"),
    Stat(
        "backlog",
        "Entries that are not acknowledged, summed over cursors.",
        "pulsar_ml_NumberOfMessagesInBacklog",
    ),
)
# Of the same, in the current period and the last one (managedLedgerStatsPeriodSeconds).
LEDGER_ERRORS = (
    Stat("add", "Managed ledgers that could not store entries.", "pulsar_ml_AddEntryErrors"),
    Stat("read", "Reads of entries that failed.", "pulsar_ml_ReadEntriesErrors"),
)

CURSOR = (
    Stat(
        "ack_ranges",
        "Ranges of entries acknowledged beyond the mark-delete position.",
        "pulsar_ml_cursor_nonContiguousDeletedMessagesRange",
    ),
)

# Rates of counters of the embedded bookie, where Pulsar has a cache in the broker.
CACHE_RATES = (
    Stat("cache_hits", "Entries read from memory per second.", "pulsar_ml_cache_hits_rate"),
    Stat("disk_reads", "Entries read from a disk per second.", "pulsar_ml_cache_misses_rate"),
    Stat(
        "disk_read_bytes",
        "Bytes of entries read from a disk per second.",
        "pulsar_ml_cache_misses_throughput",
    ),
)

_CONNECTION = 'metric="broker_connection"'
_LOADING = 'metric="pulsar_topic_load_times"'
_LOAD = 'metric="loadBalancing"'

# Of the broker as a whole. A series with a label also has the broker's host as one.
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
        "is_healthy",
        "1: the broker stores messages; 0: it refuses them.",
        "pulsar_health",
        label='metric="broker_health"',
    ),
    Stat(
        "loads_failed",
        "Topics that could not be opened, since the start.",
        "pulsar_topic_load_failed_count",
        label=_LOADING,
    ),
    Stat(
        "loads_failed",
        "Topics that could not be opened.",
        "topic_load_failed_total",
        kind=COUNTER,
    ),
    Stat(
        "loads_pending",
        "Topics that are being opened, or wait for that.",
        "pulsar_broker_topic_load_pending_requests",
    ),
    Stat(
        "lookups_pending",
        "Lookups that are not answered yet.",
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
        "Lookups sent on to another broker: a standalone broker sends none on.",
        "pulsar_broker_lookup_redirects_total",
        kind=COUNTER,
    ),
    Stat(
        "waiting_bytes",
        "Bytes that wait to be sent to clients.",
        "pulsar_broker_pending_bytes_to_dispatch",
    ),
    Stat(
        "paused_connections",
        "Connections from which the broker reads nothing for now, for a rate or another limit.",
        "pulsar_broker_throttled_connections",
    ),
    Stat("managed_ledgers", "Open managed ledgers.", "pulsar_ml_count"),
    Stat(
        "cpu_percent",
        "CPU of the process, in percent of that of all cores.",
        "pulsar_lb_cpu_usage",
        label=_LOAD,
    ),
    Stat(
        "memory_percent",
        "Resident memory of the process, in percent of the machine's.",
        "pulsar_lb_memory_usage",
        label=_LOAD,
    ),
)

# Of bundles, by the fields of Pulsar's NamespaceBundleStats.
BUNDLE = (
    Stat("topics", "Open topics of the bundle.", "pulsar_bundle_topics_count"),
    Stat("producerCount", "Connected producers.", "pulsar_bundle_producer_count"),
    Stat("consumerCount", "Connected consumers.", "pulsar_bundle_consumer_count"),
    Stat("msgRateIn", "Messages received per second.", "pulsar_bundle_msg_rate_in"),
    Stat("msgRateOut", "Messages sent per second.", "pulsar_bundle_msg_rate_out"),
    Stat("msgThroughputIn", "Bytes received per second.", "pulsar_bundle_msg_throughput_in"),
    Stat("msgThroughputOut", "Bytes sent per second.", "pulsar_bundle_msg_throughput_out"),
)

# Of the web port. Pulsar's web server is Jetty, and dashboards ask for its names.
WEB = (
    Stat("requests", "Requests received.", "jetty_requests_total", kind=COUNTER),
    Stat("active", "Requests that are being answered.", "jetty_requests_active"),
    Stat("active_max", "The most of them at a time.", "jetty_requests_active_max"),
    Stat(
        "seconds",
        "Seconds from a request until its answer was written, summed.",
        "jetty_request_time_seconds_total",
        kind=COUNTER,
    ),
    Stat("seconds_max", "The longest of them.", "jetty_request_time_max_seconds"),
    Stat(
        "response_bytes",
        "Bytes of answers.",
        "jetty_responses_bytes_total",
        kind=COUNTER,
    ),
)
WEB_RESPONSES = Stat("", "Answers by kind of status.", "jetty_responses_total", kind=COUNTER)

# Of authentication, where it is on; by provider and method, and by the reason of a refusal.
LOGINS = Stat("", "Credentials accepted.", "pulsar_authentication_success_total", kind=COUNTER)
FAILED_LOGINS = Stat(
    "", "Credentials refused.", "pulsar_authentication_failures_total", kind=COUNTER
)
EXPIRED_TOKENS = Stat(
    "", "Tokens refused, since they have expired.", "pulsar_expired_token_total", kind=COUNTER
)
TOKEN_MINUTES = Stat(
    "",
    "Minutes that accepted tokens were still valid.",
    "pulsar_expiring_token_minutes",
    kind=HISTOGRAM,
)

QUOTA_CHECKS = Stat(
    "",
    "Seconds that checks of the backlog quotas of all topics took.",
    "pulsar_storage_backlog_quota_check_duration_seconds",
    kind=HISTOGRAM,
)

# Of the operations on the schemas of a namespace; in milliseconds, without quantiles.
SCHEMA_LATENCIES = tuple(
    Stat(
        each, f"Milliseconds that {about} took.", f"pulsar_schema_{each}_ops_latency", kind=SUMMARY
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
        f"Failed operations of the kind {each} on schemas.",
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

# Of defects in this broker, by the part that met them, whose name the log's lines have as well.
DEFECTS = Stat(
    "",
    "Errors that nobody foresaw; each costs what it was met for, and is in the log.",
    "pyxbroker_defects_total",
    kind=COUNTER,
)

# Of what clients make the broker remember.
CLIENT_STATE = (
    Stat(
        "used",
        "Bytes remembered for connections: producers, consumers, watchers, commands under way.",
        "pyxbroker_client_state_bytes",
    ),
    Stat(
        "refused",
        "Commands refused, since too much is remembered for their connection or for all.",
        "pyxbroker_client_state_refused_total",
        kind=COUNTER,
    ),
    Stat(
        "closed",
        "Connections closed, since most was remembered for them and too much for all.",
        "pyxbroker_client_state_closed_total",
        kind=COUNTER,
    ),
    Stat(
        "answer_bytes",
        "Bytes of long answers of REST that clients have not read yet.",
        "pyxbroker_rest_answer_bytes",
    ),
    Stat(
        "answers_refused",
        "Answers of REST refused, since those that clients have not read yet are too long.",
        "pyxbroker_rest_answers_refused_total",
        kind=COUNTER,
    ),
    Stat(
        "body_bytes",
        "Bytes of long requests of REST that are not answered yet.",
        "pyxbroker_rest_body_bytes",
    ),
    Stat(
        "bodies_refused",
        "Requests of REST refused, since those that are not answered yet are too long.",
        "pyxbroker_rest_bodies_refused_total",
        kind=COUNTER,
    ),
    Stat(
        "batch_ack_bytes",
        "Bytes remembered of acknowledgements of single messages of batches.",
        "pyxbroker_batch_ack_state_bytes",
    ),
    Stat(
        "batch_acks_refused",
        "Acknowledgements of single messages of batches that were too much to be remembered.",
        "pyxbroker_batch_ack_state_refused_total",
        kind=COUNTER,
    ),
    Stat(
        "entry_set_bytes",
        "Bytes of the entries that are acknowledged one by one, or are to be sent again: a bit"
        " each.",
        "pyxbroker_entry_set_bytes",
    ),
    Stat(
        "delayed_bytes",
        "Bytes remembered of messages that are not due yet.",
        "pyxbroker_delayed_delivery_state_bytes",
    ),
)

# Of connections to the ports, by the setting that forbade them.
REFUSED_CONNECTIONS = Stat(
    "",
    "Connections refused, since there are as many as a setting allows.",
    "pyxbroker_refused_connections_total",
    kind=COUNTER,
)
CLOSED_CONNECTIONS = Stat(
    "",
    "Connections that waited for their client, closed for others, since there are as many as a"
    " setting allows.",
    "pyxbroker_closed_connections_total",
    kind=COUNTER,
)

# Of commands that change nothing, by their names.
STRAY_COMMANDS = Stat(
    "",
    "Commands for a producer or consumer that is not open on their connection, and dropped.",
    "pyxbroker_stray_commands_total",
    kind=COUNTER,
)

# Of the event loop; bounds and counts are turn_watch's.
TURNS = Stat(
    "",
    "Seconds that the turns of the event loop took, between two looks at the sockets.",
    "pyxbroker_loop_turn_seconds",
    kind=HISTOGRAM,
)


class Summary(NamedTuple):
    """A series of quantiles over the last minute, with a count and a sum since the start."""

    field: str  # of MetricsSource.latencies
    help: str
    series: str
    label: str  # that it has besides
    quantiles: tuple[str, ...]


_PULSAR = ("0.0", "0.5", "0.95", "0.99", "0.999", "0.9999", "1.0")
_BOOKKEEPER = ("0.5", "0.75", "0.95", "0.99", "0.999", "0.9999", "1.0")
_WELL, _NOT_WELL = 'success="true"', 'success="false"'
_ADD_ABOUT = "Milliseconds from the first entry of a group until the group was durable."
_READ_ABOUT = "Milliseconds that reads took which memory could not answer."

# In milliseconds; those of a name follow each other.
LATENCIES = (
    Summary(
        "publish",
        "Milliseconds from the reading of a message until it was stored.",
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
        "Milliseconds that the opening of a topic took.",
        "pulsar_topic_load_times",
        "",
        ("0.5", "0.75", "0.95", "0.99", "0.999", "0.9999", "1.0"),
    ),
    Summary("add", _ADD_ABOUT, "bookie_journal_JOURNAL_ADD_ENTRY", _WELL, _BOOKKEEPER),
    Summary(
        "sync",
        "Milliseconds of a journal sync.",
        "bookie_journal_JOURNAL_SYNC",
        _WELL,
        _BOOKKEEPER,
    ),
    Summary("add", _ADD_ABOUT, "bookkeeper_server_ADD_ENTRY_REQUEST", _WELL, _BOOKKEEPER),
    Summary("read", _READ_ABOUT, "bookkeeper_server_READ_ENTRY_REQUEST", _WELL, _BOOKKEEPER),
    Summary(
        "failed_read",
        _READ_ABOUT,
        "bookkeeper_server_READ_ENTRY_REQUEST",
        _NOT_WELL,
        _BOOKKEEPER,
    ),
)
