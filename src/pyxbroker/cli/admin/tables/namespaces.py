"""Commands about namespaces."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from pyxbroker.cli.admin.output import pairs_of, pretty, text_of
from pyxbroker.cli.admin.rows import (
    argument,
    bundle,
    choice,
    delete,
    flag,
    function,
    get,
    milliseconds,
    option,
    pair,
    post,
    put,
    seconds,
    size,
    switch,
    words,
)
from pyxbroker.cli.admin.tables import policies
from pyxbroker.cli.admin.tables.policies import NAMESPACE, number, of_namespace
from pyxbroker.client.admin import AdminClient

PATH = "/admin/v2/namespaces/{namespace}"
BUNDLE = option("-b --bundle", "One bundle, such as 0x00000000_0x40000000.", "{/bundle}", bundle)
ROLE = option("-r --role", "A role.", "{role}", required=True)
LONG_ROLE = option("--role", "A role.", "{role}", required=True)
SUBSCRIPTION = option("-s --subscription", "A subscription.", "{subscription}", required=True)
CLUSTERS = option("-c --clusters", "Clusters, separated by commas.", "=", words, required=True)
KEY = option("-k --key", "The name of the property.", "{key}", required=True)


async def _create(client: AdminClient, values: Namespace) -> None:
    body: dict[str, Any] = {}
    if values.clusters:
        body["replication_clusters"] = values.clusters
    if values.bundles:
        body["bundles"] = {"numBundles": values.bundles}
    await client.put(f"/admin/v2/namespaces/{values.namespace}", body)


def _check_unload(values: Namespace) -> str:
    is_wrong = values.destinationBroker and not values.bundle
    return "--destinationBroker needs --bundle." if is_wrong else ""


def _check_split(values: Namespace) -> str:
    if bool(values.bundle) == bool(values.bundle_type):
        return "Exactly one of --bundle and --bundle-type is needed."
    by_positions = values.split_algorithm_name == "specified_positions_divide"
    if by_positions and not values.split_boundaries:
        return "--split-algorithm-name specified_positions_divide needs --split-boundaries."
    return ""


async def _get_offload_threshold(client: AdminClient, values: Namespace) -> dict[str, Any]:
    path = f"/admin/v2/namespaces/{values.namespace}"
    return {
        "offloadThresholdInBytes": await client.get(f"{path}/offloadThreshold"),
        "offloadThresholdInSeconds": await client.get(f"{path}/offloadThresholdInSeconds"),
    }


def _thresholds(answer: Any) -> str:
    return "\n".join(f"{name}: {value}" for name, value in answer.items())


async def _set_offload_threshold(client: AdminClient, values: Namespace) -> None:
    path = f"/admin/v2/namespaces/{values.namespace}"
    await client.put(f"{path}/offloadThreshold", values.size)
    await client.put(f"{path}/offloadThresholdInSeconds", values.time)


def _lag(answer: Any) -> str:
    if answer is None:
        return "Unset for namespace. Defaulting to broker setting."
    minutes = answer / 60_000
    return f"{answer} minute(s)" if minutes < 0 else f"{minutes:g} minute(s)"


def _name(answer: Any) -> str:
    """Return a name, or nothing."""
    return "" if answer is None else text_of(answer)


COMMANDS = {
    "list": get(
        "List the namespaces of a tenant.",
        "/admin/v2/namespaces/{tenant}",
        argument("tenant", "The tenant."),
    ),
    "topics": get(
        "List the topics of a namespace.",
        f"{PATH}/topics",
        NAMESPACE,
        option(
            "-m --mode",
            "persistent, non_persistent or all.",
            "?mode",
            choice("PERSISTENT", "NON_PERSISTENT", "ALL"),
        ),
        flag(
            "-ist --include-system-topic", "List topics of the system, too.", "?includeSystemTopic"
        ),
    ),
    "destinations": get("List the topics of a namespace.", f"{PATH}/topics", NAMESPACE),
    "bundles": get("Print the bundles of a namespace.", f"{PATH}/bundles", NAMESPACE),
    "policies": get("Print the policies of a namespace.", PATH, NAMESPACE),
    "create": function(
        "Create a namespace.",
        _create,
        NAMESPACE,
        option("-c --clusters", "Its clusters, separated by commas.", "", words),
        option("-b --bundles", "The number of its bundles.", "", int),
    ),
    "delete": delete(
        "Delete a namespace.",
        PATH,
        NAMESPACE,
        flag("-f --force", "Delete its topics, too.", "?force"),
        destroys="deletes the namespace {namespace} with all its topics",
        unless="-force",
    ),
    # Rights
    "permissions": get(
        "Print the rights of roles.", f"{PATH}/permissions", NAMESPACE, printed=pairs_of
    ),
    "grant-permission": post(
        "Grant rights to a role.",
        f"{PATH}/permissions/{{role}}",
        NAMESPACE,
        LONG_ROLE,
        option(
            "--actions",
            "produce, consume, sources, sinks, functions, packages, separated by commas.",
            "=",
            words,
            required=True,
        ),
    ),
    "revoke-permission": delete(
        "Revoke the rights of a role.", f"{PATH}/permissions/{{role}}", NAMESPACE, LONG_ROLE
    ),
    "subscription-permission": get(
        "Print the roles that may administer single subscriptions.",
        f"{PATH}/permissions/subscription",
        NAMESPACE,
        printed=pairs_of,
    ),
    "grant-subscription-permission": post(
        "Let roles administer a subscription.",
        f"{PATH}/permissions/subscription/{{subscription}}",
        NAMESPACE,
        SUBSCRIPTION,
        option("-rs --roles", "Roles, separated by commas.", "=", words, required=True),
    ),
    "revoke-subscription-permission": delete(
        "Let a role no longer administer a subscription.",
        f"{PATH}/permissions/{{subscription}}/{{role}}",
        NAMESPACE,
        SUBSCRIPTION,
        ROLE,
    ),
    # Clusters
    **of_namespace(
        "clusters",
        "replication",
        "the clusters that replicate the namespace",
        CLUSTERS,
        commands=("get", "set"),
    ),
    **of_namespace(
        "allowed-clusters",
        "allowedClusters",
        "the clusters that may have the namespace",
        CLUSTERS,
        commands=("get", "set"),
    ),
    "update-migration-state": post(
        "Mark the namespace as migrated to another cluster.",
        f"{PATH}/migration",
        NAMESPACE,
        flag("--migrated", "It is migrated.", "="),
    ),
    # Bundles
    "unload": put(
        "Unload a namespace or one of its bundles from its broker.",
        f"{PATH}{{/bundle}}/unload",
        NAMESPACE,
        BUNDLE,
        option("-d --destinationBroker", "The broker that gets the bundle.", "?destinationBroker"),
        check=_check_unload,
    ),
    "split-bundle": put(
        "Split a bundle.",
        f"{PATH}{{/bundle}}{{/type}}/split",
        NAMESPACE,
        BUNDLE,
        option("-bt --bundle-type", "LARGEST or HOT.", "{/type}", choice("LARGEST", "HOT")),
        flag("-u --unload", "Unload the new bundles.", "?unload"),
        option(
            "-san --split-algorithm-name",
            "range_equally_divide, topic_count_equally_divide, specified_positions_divide or"
            " flow_or_qps_equally_divide.",
            "?splitAlgorithmName",
        ),
        option(
            "-sb --split-boundaries",
            "A hash at which it is split. The option may be repeated.",
            "=",
            lambda text: [int(each) for each in words(text)],
        ),
        check=_check_split,
    ),
    "get-topic-positions": get(
        "Print the hashes of the topics of a bundle.",
        f"{PATH}{{/bundle}}/topicHashPositions",
        NAMESPACE,
        BUNDLE._replace(is_required=True),
        option("-tl --topic-list", "Topics, separated by commas.", "?topics"),
    ),
    # Backlogs and subscriptions
    "clear-backlog": post(
        "Acknowledge all messages of the subscriptions.",
        f"{PATH}{{/bundle}}/clearBacklog{{/sub}}",
        NAMESPACE,
        option("-s --sub", "One subscription.", "{/sub}"),
        BUNDLE,
        flag("--force -force", "Do not ask for a confirmation."),
        destroys="clears the backlogs of subscriptions in {namespace}",
        unless="force",
    ),
    "unsubscribe": post(
        "Delete a subscription of all topics.",
        f"{PATH}{{/bundle}}/unsubscribe{{/sub}}",
        NAMESPACE,
        option("-s --sub", "The subscription.", "{/sub}", required=True),
        BUNDLE,
        destroys="deletes the subscription {sub} of all topics in {namespace}",
    ),
    "get-backlog-quotas": get(
        "Print the quotas of backlogs.",
        f"{PATH}/backlogQuotaMap",
        NAMESPACE,
        printed=policies.quotas_text,
    ),
    "set-backlog-quota": policies.set_quota(
        "/admin/v2/namespaces/{namespace}/backlogQuota", NAMESPACE
    ),
    "remove-backlog-quota": delete(
        "Remove a quota of backlogs.", f"{PATH}/backlogQuota", NAMESPACE, policies.QUOTA_TYPE
    ),
    # Messages
    **of_namespace("retention", "retention", "the retention of messages", *policies.RETENTION),
    **of_namespace(
        "message-ttl",
        "messageTTL",
        "the time after which messages count as acknowledged",
        option(
            "-ttl --messageTTL",
            "The time: 90 (seconds), 10m, 3h; 0: never.",
            "=",
            seconds,
            required=True,
        ),
    ),
    **of_namespace("persistence", "persistence", "how ledgers are stored", *policies.PERSISTENCE),
    **of_namespace(
        "deduplication", "deduplication", "the deduplication of messages", *policies.DEDUPLICATION
    ),
    **of_namespace(
        "deduplication-snapshot-interval",
        "deduplicationSnapshotInterval",
        "how often the state of deduplication is stored",
        number("-i --interval", "Seconds."),
        commands=("get", "set"),
    ),
    "remove-deduplication-snapshot-interval": post(
        "Remove how often the state of deduplication is stored.",
        f"{PATH}/deduplicationSnapshotInterval",
        NAMESPACE,
    ),
    **of_namespace(
        "delayed-delivery",
        "delayedDelivery",
        "the delayed delivery of messages",
        *policies.DELAYED_DELIVERY,
    ),
    **of_namespace(
        "compaction-threshold",
        "compactionThreshold",
        "the size at which topics are compacted",
        *policies.COMPACTION_THRESHOLD,
        method="PUT",
    ),
    **of_namespace(
        "encryption-required",
        "encryptionRequired",
        "whether messages must be encrypted",
        *switch("-e --enable", "-d --disable", "the check", "="),
        commands=("get", "set"),
    ),
    # Topics
    **of_namespace(
        "inactive-topic-policies",
        "inactiveTopicPolicies",
        "the deletion of inactive topics",
        *policies.INACTIVE_TOPICS,
    ),
    **of_namespace(
        "auto-topic-creation",
        "autoTopicCreation",
        "the creation of topics by clients",
        *switch("-e --enable", "-d --disable", "it", "allowAutoTopicCreation"),
        option(
            "-t --type",
            "partitioned or non-partitioned.",
            "topicType",
            choice("partitioned", "non-partitioned"),
            default="non-partitioned",
        ),
        option("-n --num-partitions", "The number of partitions.", "defaultNumPartitions", int),
    ),
    **of_namespace(
        "auto-subscription-creation",
        "autoSubscriptionCreation",
        "the creation of subscriptions by clients",
        flag("-e --enable", "Allow it.", "allowAutoSubscriptionCreation"),
    ),
    **of_namespace(
        "max-topics-per-namespace",
        "maxTopicsPerNamespace",
        "the largest number of topics",
        number("-t --max-topics-per-namespace", "The number; 0: no limit."),
    ),
    # Subscriptions, producers and consumers
    **of_namespace(
        "subscription-types-enabled",
        "subscriptionTypesEnabled",
        "the types of subscriptions that are allowed",
        *policies.SUBSCRIPTION_TYPES,
        printed=pretty,
    ),
    **of_namespace(
        "subscription-expiration-time",
        "subscriptionExpirationTime",
        "the time after which unused subscriptions are deleted",
        number("-t --time", "Minutes; 0: never."),
    ),
    **of_namespace(
        "subscription-auth-mode",
        "subscriptionAuthMode",
        "which names of subscriptions a role may use",
        option(
            "-m --subscription-auth-mode",
            "None, or Prefix: those that begin with the role.",
            "=",
            choice("None", "Prefix"),
            required=True,
        ),
        commands=("get", "set"),
        printed=pretty,
    ),
    **of_namespace(
        "max-subscriptions-per-topic",
        "maxSubscriptionsPerTopic",
        "the largest number of subscriptions of a topic",
        number("-m --max-subscriptions-per-topic", "The number; 0: no limit."),
    ),
    **of_namespace(
        "max-producers-per-topic",
        "maxProducersPerTopic",
        "the largest number of producers of a topic",
        number("-p --max-producers-per-topic", "The number; 0: no limit."),
    ),
    **of_namespace(
        "max-consumers-per-topic",
        "maxConsumersPerTopic",
        "the largest number of consumers of a topic",
        number("-c --max-consumers-per-topic", "The number; 0: no limit."),
    ),
    **of_namespace(
        "max-consumers-per-subscription",
        "maxConsumersPerSubscription",
        "the largest number of consumers of a subscription",
        number("-c --max-consumers-per-subscription", "The number; 0: no limit."),
    ),
    **of_namespace(
        "max-unacked-messages-per-subscription",
        "maxUnackedMessagesPerSubscription",
        "the largest number of unacknowledged messages of a subscription",
        number("-c --max-unacked-messages-per-subscription", "The number; 0: no limit."),
    ),
    **of_namespace(
        "max-unacked-messages-per-consumer",
        "maxUnackedMessagesPerConsumer",
        "the largest number of unacknowledged messages of a consumer",
        number("-c --max-unacked-messages-per-topic", "The number; 0: no limit."),
    ),
    # Rates
    **of_namespace(
        "dispatch-rate", "dispatchRate", "the rate of dispatch of a topic", *policies.DISPATCH_RATE
    ),
    **of_namespace(
        "subscription-dispatch-rate",
        "subscriptionDispatchRate",
        "the rate of dispatch of a subscription",
        *policies.DISPATCH_RATE,
    ),
    **of_namespace(
        "replicator-dispatch-rate",
        "replicatorDispatchRate",
        "the rate of replication of a topic",
        *policies.REPLICATOR_RATE,
        body={"relativeToPublishRate": False},
    ),
    **of_namespace(
        "publish-rate", "publishRate", "the rate of publishing to a topic", *policies.PUBLISH_RATE
    ),
    **of_namespace(
        "subscribe-rate",
        "subscribeRate",
        "the rate of subscribing of a consumer",
        *policies.SUBSCRIBE_RATE,
    ),
    # Schemas
    **of_namespace(
        "schema-compatibility-strategy",
        "schemaCompatibilityStrategy",
        "which schemas are compatible",
        option(
            "-c --compatibility",
            f"{', '.join(policies.STRATEGIES)}.",
            "=",
            choice(*policies.STRATEGIES),
            required=True,
        ),
        method="PUT",
        commands=("get", "set"),
    ),
    **of_namespace(
        "schema-autoupdate-strategy",
        "schemaAutoUpdateCompatibilityStrategy",
        "which schemas of producers are compatible",
        option(
            "-c --compatibility",
            "AutoUpdateDisabled, Backward, Forward, Full, AlwaysCompatible, BackwardTransitive,"
            " ForwardTransitive or FullTransitive.",
            "=",
            choice(
                *("AutoUpdateDisabled", "Backward", "Forward", "Full", "AlwaysCompatible"),
                *("BackwardTransitive", "ForwardTransitive", "FullTransitive"),
            ),
            one_of="strategy",
        ),
        flag(
            "-d --disabled",
            "Producers may not update schemas.",
            "=",
            value="AutoUpdateDisabled",
            one_of="strategy",
        ),
        method="PUT",
        commands=("get", "set"),
        printed=lambda answer: text_of(answer and answer.upper()),
    ),
    **of_namespace(
        "is-allow-auto-update-schema",
        "isAllowAutoUpdateSchema",
        "whether producers may update schemas",
        *switch("-e --enable", "-d --disable", "it", "="),
        commands=("get", "set"),
    ),
    "get-schema-validation-enforce": get(
        "Print whether producers need a schema.",
        f"{PATH}/schemaValidationEnforced",
        NAMESPACE,
        policies.APPLIED,
    ),
    **of_namespace(
        "schema-validation-enforce",
        "schemaValidationEnforced",
        "whether producers need a schema",
        *switch("-e --enable", "-d --disable", "the check", "="),
        commands=("set",),
    ),
    # Placement
    **of_namespace(
        "anti-affinity-group",
        "antiAffinity",
        "the group of namespaces whose bundles are on different brokers",
        option("-g --group", "The group.", "=", required=True),
        printed=_name,
        commands=("get", "set"),
    ),
    "delete-anti-affinity-group": delete(
        "Remove the namespace from its anti-affinity group.", f"{PATH}/antiAffinity", NAMESPACE
    ),
    "get-anti-affinity-namespaces": get(
        "List the namespaces of an anti-affinity group.",
        "/admin/v2/namespaces/{cluster}/antiAffinity/{group}",
        option("-p --tenant", "A tenant, for authorization.", "?tenant"),
        option("-c --cluster", "The cluster.", "{cluster}", required=True),
        option("-g --group", "The group.", "{group}", required=True),
    ),
    **of_namespace(
        "bookie-affinity-group",
        "persistence/bookieAffinity",
        "the groups of bookies that store the namespace",
        option(
            "-pg --primary-group",
            "Groups, separated by commas.",
            "bookkeeperAffinityGroupPrimary",
            required=True,
        ),
        option(
            "-sg --secondary-group",
            "Groups that are used if the primary ones are too small.",
            "bookkeeperAffinityGroupSecondary",
        ),
        commands=("get", "set"),
    ),
    "delete-bookie-affinity-group": delete(
        "Remove the groups of bookies that store the namespace.",
        f"{PATH}/persistence/bookieAffinity",
        NAMESPACE,
    ),
    # Offloading
    "get-offload-threshold": function(
        "Print the size and the age above which ledgers are offloaded.",
        _get_offload_threshold,
        NAMESPACE,
        printed=_thresholds,
    ),
    "set-offload-threshold": function(
        "Set the size and the age above which ledgers are offloaded.",
        _set_offload_threshold,
        NAMESPACE,
        option("-s --size", "The size: 10M, 16G; -1: never.", "", size, default=-1),
        option("-t --time", "The age: 10m, 5h; -1: never.", "", seconds, default=-1),
    ),
    "get-offload-deletion-lag": get(
        "Print how long offloaded ledgers stay on bookies.",
        f"{PATH}/offloadDeletionLagMs",
        NAMESPACE,
        printed=_lag,
    ),
    "set-offload-deletion-lag": put(
        "Set how long offloaded ledgers stay on bookies.",
        f"{PATH}/offloadDeletionLagMs",
        NAMESPACE,
        option(
            "-l --lag", "The time: 10m, 5h, 3d; -1: for ever.", "=", milliseconds, required=True
        ),
    ),
    "clear-offload-deletion-lag": delete(
        "Remove how long offloaded ledgers stay on bookies.",
        f"{PATH}/offloadDeletionLagMs",
        NAMESPACE,
    ),
    **of_namespace(
        "offload-policies",
        "offloadPolicies",
        "where ledgers are offloaded to",
        *policies.offload_options(**policies.WITH_UNITS),
        body=policies.OFFLOAD_FIELDS,
        commands=("get", "set"),
    ),
    "remove-offload-policies": delete(
        "Remove where ledgers are offloaded to.", f"{PATH}/removeOffloadPolicies", NAMESPACE
    ),
    # Properties and others
    "set-property": put(
        "Set a property.",
        f"{PATH}/property/{{key}}/{{value}}",
        NAMESPACE,
        KEY,
        option("-v --value", "Its value.", "{value}", required=True),
    ),
    "get-property": get("Print a property.", f"{PATH}/property/{{key}}", NAMESPACE, KEY),
    "remove-property": delete("Remove a property.", f"{PATH}/property/{{key}}", NAMESPACE, KEY),
    "set-properties": put(
        "Set properties.",
        f"{PATH}/properties",
        NAMESPACE,
        option("-p --properties", "key=value. May be repeated.", "=", pair, required=True),
    ),
    "get-properties": get("Print the properties.", f"{PATH}/properties", NAMESPACE),
    "clear-properties": delete("Remove all properties.", f"{PATH}/properties", NAMESPACE),
    "get-resource-group": get(
        "Print the resource group.", f"{PATH}/resourcegroup", NAMESPACE, printed=_name
    ),
    "set-resource-group": post(
        "Set the resource group.",
        f"{PATH}/resourcegroup/{{group}}",
        NAMESPACE,
        option("-rgn --resource-group-name", "The group.", "{group}", required=True),
    ),
    "remove-resource-group": delete(
        "Remove the resource group.", f"{PATH}/resourcegroup", NAMESPACE
    ),
    **of_namespace(
        "entry-filters", "entryFilters", "the filters of entries", *policies.ENTRY_FILTERS
    ),
    **of_namespace(
        "dispatcher-pause-on-ack-state-persistent",
        "dispatcherPauseOnAckStatePersistent",
        "whether dispatch pauses while acknowledgements cannot be stored",
    ),
    **of_namespace(
        "allowed-topic-property-keys-for-metrics",
        "allowedTopicPropertyKeysForMetrics",
        "the properties of topics that become labels of metrics",
        option("-k --keys", "Keys, separated by commas.", "=", words, required=True),
    ),
}
