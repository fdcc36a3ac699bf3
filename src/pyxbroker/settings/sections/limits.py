"""Upper bounds: of what waits, and of how many there may be of a thing."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, limit, setting


class Limits(Section, title="Limits"):
    maxMessagePublishBufferSizeInMB: int = limit(
        64,
        "Bytes of published messages that may wait for the disk, over all connections; beyond it"
        " the broker stops reading from producers until half of them are done. 0 is no limit: what"
        " producers send while the disk is slow is then in memory. Pulsar's own default is half of"
        " the JVM's direct memory.",
        unit="MiB",
        dynamic=True,
    )
    maxPendingPublishRequestsPerConnection: int = setting(
        1000,
        "Publishes of one connection that may wait for the disk; beyond it the broker stops reading"
        " from that connection.",
        minimum=1,
    )
    maxClientStateSizeInMB: int = limit(
        1024,
        "Memory for what clients have open or ask for: producers, consumers, watchers of topics and"
        " commands under way, of all connections. Beyond it the connection with most is closed, or"
        " refused what it asks for; 0 is no limit. Clients that are not let in yet have a quarter"
        " of it, and give way first. Answers of REST that are not read yet have a quarter as much"
        " besides, and so have the bodies of its requests: together it may be six quarters. Both"
        " begin where connections leave room for them, and while these use all of it those of more"
        " than 64 KiB are refused (503). Apache Pulsar has no such limit.",
        unit="MiB",
    )
    maxClientStateSizeInMBPerConnection: int = limit(
        256,
        "The same of one connection: what it asks for beyond it is refused; 0 is no limit.",
        unit="MiB",
    )
    maxBatchAckStateSizeInMB: int = limit(
        1024,
        "Memory for acknowledgements of single messages of batches, of all subscriptions. Beyond it"
        " those with more than 1 MiB of it remember no further batch until it is acknowledged as a"
        " whole; 0 is no limit. One subscription has at most 256 MiB in any case.",
        unit="MiB",
    )
    maxDelayedDeliveryStateSizeInMB: int = limit(
        1024,
        "Memory for the positions and times of delayed messages, 16 to 20 bytes each, of all"
        " subscriptions. Beyond it those with more than 1 MiB of it read no further until some of"
        " them are due; 0 is no limit. Apache Pulsar has no such limit.",
        unit="MiB",
    )
    maxConcurrentLookupRequest: int = setting(
        50_000,
        "Lookups in progress; further ones are refused with TooManyRequests.",
        minimum=1,
        dynamic=True,
    )
    maxConcurrentTopicLoadRequest: int = setting(
        5_000,
        "Topics that are opened at the same time; further ones wait.",
        minimum=1,
        dynamic=True,
    )
    brokerMaxConnections: int = limit(
        0,
        "Connections of this broker; beyond it one that is not known yet gives way as with"
        " maxHalfOpenConnections, or who comes is refused. 0 is no limit.",
    )
    brokerMaxConnectionsPerIp: int = limit(
        0,
        "Connections of one client address, each address of IPv6 by itself, also where a client has"
        " a network of them; 0 is no limit.",
    )
    maxHttpServerConnections: int = limit(
        2048,
        "Connections of the web ports, those counted whose TLS handshake is not over; beyond it one"
        " that waits for its client, or to know who that is, gives way: of the address that has"
        " most of these (of IPv6 a network of 64 bits counts as one) the one that has waited"
        " longest. A quarter of them may be in a handshake. 0 is no limit.",
    )
    maxHalfOpenConnections: int = limit(
        4096,
        "Connections of the binary protocol whose client has not sent its CONNECT yet, or waits for"
        " the answer to it; beyond it, of the address that has most of them (of IPv6 a network of"
        " 64 bits counts as one), the oldest one is closed. 0 is no limit. Apache Pulsar has no"
        " such limit.",
    )
    connectionHandshakeTimeoutSeconds: int = setting(
        10,
        "Longest time from a connection to its CONNECT, and on the web ports to the end of a TLS"
        " handshake, and from there, or the beginning of a next request, to the end of its head.",
        unit="s",
        minimum=1,
        maximum=3600,
    )
    maxTenants: int = limit(0, "Tenants of this instance; 0 is no limit.", dynamic=True)
    maxNamespacesPerTenant: int = limit(
        0,
        "Namespaces of one tenant; one more is taken, as by Pulsar. 0 is no limit.",
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
        "Partitions of one partitioned topic; 0 is 100,000, where Pulsar's 0 is no limit.",
        dynamic=True,
    )
    maxUnackedMessagesPerConsumer: int = limit(
        50_000,
        "Messages that a consumer of a shared subscription may hold unacknowledged; 0 is no limit.",
    )
    maxUnackedMessagesPerSubscription: int = limit(
        200_000,
        "Messages that all consumers of a shared subscription may hold unacknowledged; 0 is no"
        " limit.",
    )
    maxUnackedMessagesPerBroker: int = limit(
        0,
        "Messages that all consumers of shared subscriptions may hold unacknowledged; 0 is no"
        " limit. At the limit only subscriptions that hold little go on, until half of it is left.",
    )
    maxUnackedMessagesPerSubscriptionOnBrokerBlocked: float = setting(
        0.16,
        "The part of maxUnackedMessagesPerBroker that one subscription may hold while the broker"
        " is at that limit.",
        minimum=0,
        maximum=1,
    )
