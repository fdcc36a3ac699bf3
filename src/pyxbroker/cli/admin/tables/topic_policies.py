"""Commands about the policies of topics."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from pyxbroker.cli.admin.output import pretty
from pyxbroker.cli.admin.rows import (
    Command,
    Encoded,
    Option,
    choice,
    delete,
    flag,
    get,
    option,
    post,
    seconds,
    words,
)
from pyxbroker.cli.admin.tables import policies
from pyxbroker.cli.admin.tables.policies import (
    APPLIED,
    APPLIED_SHORT,
    GLOBAL,
    TOPIC,
    number,
    of_topic,
)

RATE = "/admin/v2/{topic}/{rate}"


def _rate_of(subscription: str) -> Encoded:
    return Encoded(f"{quote(subscription, safe='')}/dispatchRate")


SUBSCRIPTION = option(
    "-s --subscription",
    "The policy of one subscription.",
    "{rate}",
    _rate_of,
    default=Encoded("subscriptionDispatchRate"),
)


def shared(scope: tuple[Option, ...]) -> dict[str, Command]:
    """Return the commands that `topics` has, too. scope: --global, or nothing."""

    def of(
        name: str, resource: str, about: str, *options: Option, **more: Any
    ) -> dict[str, Command]:
        return of_topic(name, resource, about, *options, scope=scope, **more)

    return {
        **of("retention", "retention", "the retention of messages", *policies.RETENTION),
        **of("persistence", "persistence", "how ledgers are stored", *policies.PERSISTENCE),
        **of(
            "deduplication",
            "deduplicationEnabled",
            "the deduplication of messages",
            *policies.DEDUPLICATION,
        ),
        **of(
            "deduplication-snapshot-interval",
            "deduplicationSnapshotInterval",
            "how often the state of deduplication is stored",
            number("-i --interval", "Seconds."),
            applied=None,
        ),
        **of(
            "delayed-delivery",
            "delayedDelivery",
            "the delayed delivery of messages",
            *policies.DELAYED_DELIVERY,
        ),
        **of(
            "compaction-threshold",
            "compactionThreshold",
            "the size at which the topic is compacted",
            *policies.COMPACTION_THRESHOLD,
        ),
        **of(
            "inactive-topic-policies",
            "inactiveTopicPolicies",
            "the deletion of the topic while it is inactive",
            *policies.INACTIVE_TOPICS,
        ),
        **of(
            "max-message-size",
            "maxMessageSize",
            "the largest size of a message",
            number("-m --max-message-size", "Bytes; 0: no limit."),
            applied=None,
        ),
        **of(
            "max-producers",
            "maxProducers",
            "the largest number of producers",
            number("-p --max-producers", "The number; 0: no limit."),
        ),
        **of(
            "max-consumers",
            "maxConsumers",
            "the largest number of consumers",
            number("-c --max-consumers", "The number; 0: no limit."),
        ),
        **of(
            "max-consumers-per-subscription",
            "maxConsumersPerSubscription",
            "the largest number of consumers of a subscription",
            number("-c --max-consumers-per-subscription", "The number; 0: no limit."),
            applied=None,
        ),
        **of(
            "max-unacked-messages-per-consumer",
            "maxUnackedMessagesOnConsumer",
            "the largest number of unacknowledged messages of a consumer",
            number("-m --maxNum", "The number; 0: no limit."),
        ),
        **of(
            "max-unacked-messages-per-subscription",
            "maxUnackedMessagesOnSubscription",
            "the largest number of unacknowledged messages of a subscription",
            number("-m --maxNum", "The number; 0: no limit."),
        ),
        **of(
            "subscription-types-enabled",
            "subscriptionTypesEnabled",
            "the types of subscriptions that are allowed",
            *policies.SUBSCRIPTION_TYPES,
            applied=None,
            printed=pretty,
        ),
        **of("dispatch-rate", "dispatchRate", "the rate of dispatch", *policies.DISPATCH_RATE),
        **of(
            "replicator-dispatch-rate",
            "replicatorDispatchRate",
            "the rate of replication",
            *policies.DISPATCH_RATE,
        ),
        **of(
            "publish-rate",
            "publishRate",
            "the rate of publishing",
            *policies.PUBLISH_RATE,
            applied=None,
        ),
        **of(
            "subscribe-rate",
            "subscribeRate",
            "the rate of subscribing of a consumer",
            *policies.SUBSCRIBE_RATE,
        ),
    }


COMMANDS = {
    **shared((GLOBAL,)),
    **of_topic(
        "message-ttl",
        "messageTTL",
        "the time after which messages count as acknowledged",
        option(
            "-t --ttl",
            "The time: 90 (seconds), 10m, 3h; 0: never.",
            "?messageTTL",
            seconds,
            required=True,
        ),
    ),
    "get-backlog-quota": get(
        "Print the quotas of the backlog.",
        "/admin/v2/{topic}/backlogQuotaMap",
        TOPIC,
        GLOBAL,
        APPLIED,
        printed=policies.quotas_text,
    ),
    "set-backlog-quota": policies.set_quota("/admin/v2/{topic}/backlogQuota", TOPIC, GLOBAL),
    "remove-backlog-quota": delete(
        "Remove a quota of the backlog.",
        "/admin/v2/{topic}/backlogQuota",
        TOPIC,
        policies.QUOTA_TYPE,
        GLOBAL,
    ),
    "get-subscription-dispatch-rate": get(
        "Print the rate of dispatch of subscriptions.", RATE, TOPIC, SUBSCRIPTION, APPLIED, GLOBAL
    ),
    "set-subscription-dispatch-rate": post(
        "Set the rate of dispatch of subscriptions.",
        RATE,
        TOPIC,
        *policies.DISPATCH_RATE,
        SUBSCRIPTION,
        GLOBAL,
    ),
    "remove-subscription-dispatch-rate": delete(
        "Remove the rate of dispatch of subscriptions.", RATE, TOPIC, SUBSCRIPTION, GLOBAL
    ),
    **of_topic(
        "max-subscriptions-per-topic",
        "maxSubscriptionsPerTopic",
        "the largest number of subscriptions",
        number("-s --max-subscriptions-per-topic", "The number; 0: no limit."),
        applied=None,
    ),
    **of_topic(
        "subscription-expiration-time",
        "subscriptionExpirationTime",
        "the time after which unused subscriptions are deleted",
        number("-t --time", "Minutes; 0: never.", to="?subscriptionExpirationTime"),
    ),
    **of_topic(
        "replication-clusters",
        "replication",
        "the clusters that replicate the topic",
        option("-c --clusters", "Clusters, separated by commas.", "=", words, required=True),
        printed=pretty,
    ),
    "delete": delete("Remove all policies of a topic.", "/admin/v2/{topic}/policies", TOPIC),
    **of_topic(
        "schema-compatibility-strategy",
        "schemaCompatibilityStrategy",
        "which schemas are compatible",
        option(
            "-s --strategy",
            f"{', '.join(policies.STRATEGIES)}.",
            "=",
            choice(*policies.STRATEGIES),
            required=True,
        ),
        method="PUT",
        scope=(),
    ),
    **of_topic(
        "entry-filters-per-topic", "entryFilters", "the filters of entries", *policies.ENTRY_FILTERS
    ),
    **of_topic(
        "auto-subscription-creation",
        "autoSubscriptionCreation",
        "the creation of subscriptions by clients",
        flag("-e --enable", "Allow it.", "allowAutoSubscriptionCreation"),
        applied=APPLIED_SHORT,
    ),
    **of_topic(
        "dispatcher-pause-on-ack-state-persistent",
        "dispatcherPauseOnAckStatePersistent",
        "whether dispatch pauses while acknowledgements cannot be stored",
        applied=APPLIED_SHORT,
    ),
    **of_topic(
        "offload-policies",
        "offloadPolicies",
        "where ledgers are offloaded to",
        *policies.offload_options(),
        body=policies.OFFLOAD_FIELDS,
    ),
}
