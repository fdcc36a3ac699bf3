"""Settings that limit memory, queues and the number of objects."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, limit, setting


class Limits(Section, title="Limits"):
    maxMessagePublishBufferSizeInMB: int = limit(
        64,
        "Bytes of published messages that may wait for the disk, over all connections. Above the"
        " limit the broker stops reading from producers until half of the bytes are written. 0 is"
        " no limit: everything that producers send while the disk is slow stays in memory."
        " Pulsar's own default is half of the JVM's direct memory.",
        unit="MiB",
        dynamic=True,
    )
    maxPendingPublishRequestsPerConnection: int = setting(
        1000,
        "Publishes of one connection that may wait for the disk. Above the limit the broker stops"
        " reading from that connection.",
        minimum=1,
    )
    maxClientStateSizeInMB: int = limit(
        1024,
        "Memory for the open objects and requests of all clients: producers, consumers, topic"
        " watchers and commands in progress. Above the limit the broker closes the connection that"
        " uses most, or refuses its request. Connections that are not authenticated yet may use a"
        " quarter of it and are closed first. REST responses that clients have not read yet may use"
        " an additional quarter of the limit, and the bodies of REST requests another one, so the"
        " total may be six quarters. While connections use the whole limit, responses and bodies of"
        " more than 64 KiB are refused (503). 0 is no limit. Apache Pulsar has no such limit.",
        unit="MiB",
    )
    maxClientStateSizeInMBPerConnection: int = limit(
        256,
        "The same limit for one connection: requests above it are refused. 0 is no limit.",
        unit="MiB",
    )
    maxBatchAckStateSizeInMB: int = limit(
        1024,
        "Memory for acknowledgements of single messages in batches, of all subscriptions. Above the"
        " limit, subscriptions that use more than 1 MiB store no acknowledgements of further"
        " batches until the whole batch is acknowledged. 0 is no limit. One subscription uses at"
        " most 256 MiB in any case.",
        unit="MiB",
    )
    maxDelayedDeliveryStateSizeInMB: int = limit(
        1024,
        "Memory for the positions and times of delayed messages, 16 to 20 bytes each, of all"
        " subscriptions. Above the limit, subscriptions that use more than 1 MiB stop reading until"
        " some of their messages are due. 0 is no limit. Apache Pulsar has no such limit.",
        unit="MiB",
    )
    maxConcurrentLookupRequest: int = setting(
        50_000,
        "Lookups in progress. The broker refuses further ones with TooManyRequests.",
        minimum=1,
        dynamic=True,
    )
    maxConcurrentTopicLoadRequest: int = setting(
        5_000,
        "Topics that the broker opens at the same time. Further ones wait.",
        minimum=1,
        dynamic=True,
    )
    brokerMaxConnections: int = limit(
        0,
        "Connections of this broker. At the limit the broker closes an unauthenticated connection,"
        " as with maxHalfOpenConnections, or refuses the new one. 0 is no limit.",
    )
    brokerMaxConnectionsPerIp: int = limit(
        0,
        "Connections from one client address. Each IPv6 address counts separately, even if a client"
        " has a whole network of them. 0 is no limit.",
    )
    maxHttpServerConnections: int = limit(
        2048,
        "Connections of the web ports, including those in a TLS handshake. At the limit the broker"
        " closes one that waits for its client or is not authenticated yet: of the address with"
        " most such connections (an IPv6 network of 64 bits counts as one address) the one that has"
        " waited longest. A quarter of the connections may be in a handshake. 0 is no limit.",
    )
    maxHalfOpenConnections: int = limit(
        4096,
        "Connections of the binary protocol that have not sent CONNECT yet or wait for the answer"
        " to it. Above the limit the broker closes the oldest connection of the address that has"
        " most of them (an IPv6 network of 64 bits counts as one address). 0 is no limit. Apache"
        " Pulsar has no such limit.",
    )
    connectionHandshakeTimeoutSeconds: int = setting(
        10,
        "Longest time for each step of opening a connection. On the binary port: from accepting the"
        " connection to CONNECT. On the web ports: to the end of the TLS handshake, and from there,"
        " or from the start of a later request, to the end of the request's headers.",
        unit="s",
        minimum=1,
        maximum=3600,
    )
    maxTenants: int = limit(0, "Tenants of this instance; 0 is no limit.", dynamic=True)
    maxNamespacesPerTenant: int = limit(
        0,
        "Namespaces of one tenant. As in Pulsar, one more than the limit is accepted. 0 is no"
        " limit.",
        dynamic=True,
    )
    maxTopicsPerNamespace: int = limit(0, "Topics of one namespace; 0 is no limit.", dynamic=True)
    maxProducersPerTopic: int = limit(0, "Producers of one topic; 0 is no limit.")
    maxConsumersPerTopic: int = limit(0, "Consumers of one topic; 0 is no limit.")
    maxConsumersPerSubscription: int = limit(0, "Consumers of one subscription; 0 is no limit.")
    maxSubscriptionsPerTopic: int = limit(0, "Subscriptions of one topic; 0 is no limit.")
    maxSameAddressProducersPerTopic: int = limit(
        0, "Producers of one topic from one client address; 0 is no limit."
    )
    maxSameAddressConsumersPerTopic: int = limit(
        0, "Consumers of one topic from one client address; 0 is no limit."
    )
    maxNumPartitionsPerPartitionedTopic: int = limit(
        0,
        "Partitions of one partitioned topic. 0 means 100,000; in Pulsar 0 is no limit.",
        dynamic=True,
    )
    maxUnackedMessagesPerConsumer: int = limit(
        50_000,
        "Unacknowledged messages that a consumer of a shared subscription may hold; 0 is no limit.",
    )
    maxUnackedMessagesPerSubscription: int = limit(
        200_000,
        "Unacknowledged messages that the consumers of a shared subscription may hold together; 0"
        " is no limit.",
    )
    maxUnackedMessagesPerBroker: int = limit(
        0,
        "Unacknowledged messages that all consumers of shared subscriptions may hold together. At"
        " the limit only subscriptions that hold few messages receive more, until the total has"
        " fallen to half. 0 is no limit.",
    )
    maxUnackedMessagesPerSubscriptionOnBrokerBlocked: float = setting(
        0.16,
        "Fraction of maxUnackedMessagesPerBroker that one subscription may hold while the broker is"
        " at that limit.",
        minimum=0,
        maximum=1,
    )
