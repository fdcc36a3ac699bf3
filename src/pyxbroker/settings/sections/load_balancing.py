"""Settings that decide which broker of a cluster serves which bundle."""

from __future__ import annotations

from pyxbroker.settings.schema import LONG_MAX, Section, limit, setting

_PACKAGE = "org.apache.pulsar.broker.loadbalance.impl."
AVG_SHEDDER = _PACKAGE + "AvgShedder"
THRESHOLD_SHEDDER = _PACKAGE + "ThresholdShedder"
OVERLOAD_SHEDDER = _PACKAGE + "OverloadShedder"
UNIFORM_SHEDDER = _PACKAGE + "UniformLoadShedder"
LEAST_RATE = _PACKAGE + "LeastLongTermMessageRate"
LEAST_USAGE = _PACKAGE + "LeastResourceUsageWithWeight"
ROUND_ROBIN = _PACKAGE + "RoundRobinBrokerSelector"

EQUAL_RANGES = "range_equally_divide"
EQUAL_COUNTS = "topic_count_equally_divide"
POSITIONS = "specified_positions_divide"
EQUAL_RATES = "flow_or_qps_equally_divide"
SPLIT_ALGORITHMS = (EQUAL_RANGES, EQUAL_COUNTS, POSITIONS, EQUAL_RATES)

PERCENT = 100


class LoadBalancing(Section, title="Load balancing"):
    loadBalancerEnabled: bool = setting(
        True,
        "If true, the leader of a cluster moves and splits bundles by their load. Where brokers"
        " authenticate REST requests, it needs brokerClientAuthenticationPlugin. In standalone,"
        " only the settings for splits by REST have an effect.",
    )
    loadBalancerLoadPlacementStrategy: str = setting(
        AVG_SHEDDER,
        "Strategy that chooses a broker for a bundle. AvgShedder, the default of Pulsar 5.0, does"
        " it by long-term rates here. Pulsar 4.2's own default is LeastLongTermMessageRate.",
        choices=(AVG_SHEDDER, LEAST_RATE, LEAST_USAGE, ROUND_ROBIN),
    )
    loadBalancerLoadSheddingStrategy: str = setting(
        AVG_SHEDDER,
        "Strategy that chooses the bundles to move. Pulsar 4.2's own default is ThresholdShedder.",
        choices=(AVG_SHEDDER, THRESHOLD_SHEDDER, OVERLOAD_SHEDDER, UNIFORM_SHEDDER),
        dynamic=True,
    )
    loadBalancerReportUpdateMinIntervalMillis: int = setting(
        5_000, "Time between two checks of the load report.", unit="ms", minimum=1, dynamic=True
    )
    loadBalancerReportUpdateThresholdPercentage: int = setting(
        10,
        "Change of a rate or of the number of bundles after which a broker writes its load report,"
        " and of its resource usage in points.",
        unit="percent",
        dynamic=True,
    )
    loadBalancerReportUpdateMaxIntervalMinutes: int = setting(
        15,
        "Time after which a broker writes its load report without a change.",
        unit="min",
        minimum=1,
        dynamic=True,
    )
    loadBalancerResourceQuotaUpdateIntervalMinutes: int = setting(
        15,
        "Time between two writes of the bundles' average loads by the leader.",
        unit="min",
        minimum=1,
    )
    loadBalancerMaxNumberOfBundlesInBundleLoadReport: int = limit(
        10,
        "Bundles per broker whose average loads the leader stores, largest first; 0 means all.",
        dynamic=True,
    )
    loadBalancerHostUsageCheckIntervalMinutes: int = setting(
        1, "Time between two measurements of resource usage.", unit="min", minimum=1, dynamic=True
    )
    loadBalancerOverrideBrokerNicSpeedGbps: float | None = setting(
        None,
        "Speed of the network interfaces; empty means that the kernel reports it.",
        unit="Gbit/s",
    )
    loadBalancerCPUResourceWeight: float = setting(
        1.0, "Weight of CPU in the resource usage of a broker.", dynamic=True
    )
    loadBalancerDirectMemoryResourceWeight: float = setting(
        0.0, "Weight of direct memory in the resource usage of a broker.", dynamic=True
    )
    loadBalancerBandwidthInResourceWeight: float = setting(
        1.0, "Weight of received bytes in the resource usage of a broker.", dynamic=True
    )
    loadBalancerBandwidthOutResourceWeight: float = setting(
        1.0, "Weight of sent bytes in the resource usage of a broker.", dynamic=True
    )
    loadBalancerHistoryResourcePercentage: float = setting(
        0.9,
        "Weight of earlier values in the averages of ThresholdShedder and"
        " LeastResourceUsageWithWeight.",
        maximum=1,
        dynamic=True,
    )
    loadBalancerBrokerMaxTopics: int = setting(
        50_000, "Topics of a broker above which it gets no further bundles.", dynamic=True
    )
    loadBalancerDistributeBundlesEvenlyEnabled: bool = setting(
        False,
        "If true, a bundle goes to a broker with the fewest bundles of its namespace. AvgShedder"
        " needs false, as Pulsar 5.0 has it. Pulsar 4.2's own default is true.",
        dynamic=True,
    )
    preferLaterVersions: bool = setting(
        False, "If true, bundles go to the brokers with the latest version.", dynamic=True
    )
    failureDomainsEnabled: bool = setting(
        False,
        "If true, the namespaces of an anti-affinity group are spread over failure domains first.",
        dynamic=True,
    )
    loadBalancerBrokerOverloadedThresholdPercentage: int = setting(
        85,
        "Resource usage above which a broker is overloaded.",
        unit="percent",
        maximum=PERCENT,
        dynamic=True,
    )
    loadBalancerAverageResourceUsageDifferenceThresholdPercentage: int = setting(
        10,
        "Points below the average that make a broker a candidate of LeastResourceUsageWithWeight.",
        unit="percent",
        maximum=PERCENT,
        dynamic=True,
    )
    loadBalancerSheddingEnabled: bool = setting(
        True, "If true, the leader moves bundles from loaded brokers to others.", dynamic=True
    )
    loadBalancerSheddingIntervalMinutes: int = setting(
        1, "Time between two checks for bundles to move.", unit="min", minimum=1, dynamic=True
    )
    loadBalancerSheddingGracePeriodMinutes: int = setting(
        30, "Time in which a bundle is not moved again.", unit="min", minimum=1, dynamic=True
    )
    loadBalancerSheddingExcludedNamespaces: str = setting(
        "",
        "Namespaces whose bundles are not moved and are placed in turn, separated by commas.",
        dynamic=True,
    )
    loadBalancerAvgShedderLowThreshold: int = setting(
        5,
        "Points between the usages of two brokers from which AvgShedder moves bundles between them,"
        " after loadBalancerAvgShedderHitCountLowThreshold checks. Pulsar's own default is 15.",
        unit="percent",
        minimum=1,
        maximum=PERCENT,
        dynamic=True,
    )
    loadBalancerAvgShedderHighThreshold: int = setting(
        40,
        "Points from which loadBalancerAvgShedderHitCountHighThreshold checks are enough.",
        unit="percent",
        minimum=1,
        maximum=PERCENT,
        dynamic=True,
    )
    loadBalancerAvgShedderHitCountLowThreshold: int = setting(
        2,
        "Consecutive checks with a difference of loadBalancerAvgShedderLowThreshold before"
        " AvgShedder moves bundles. Pulsar's own default is 8.",
        minimum=1,
        dynamic=True,
    )
    loadBalancerAvgShedderHitCountHighThreshold: int = setting(
        2,
        "Consecutive checks with a difference of loadBalancerAvgShedderHighThreshold before"
        " AvgShedder moves bundles.",
        minimum=1,
        dynamic=True,
    )
    maxUnloadPercentage: float = setting(
        0.5,
        "Part of the difference between two brokers that AvgShedder and UniformLoadShedder move in"
        " one check, as in Pulsar 5.0. Pulsar 4.2's own default is 0.2.",
        maximum=1,
        dynamic=True,
    )
    minUnloadMessage: int = setting(
        1_000,
        "Least load that AvgShedder and UniformLoadShedder move in one check, in messages.",
        unit="per second",
        dynamic=True,
    )
    minUnloadMessageThroughput: int = setting(
        1 << 20,
        "Least load that AvgShedder and UniformLoadShedder move in one check, in bytes.",
        unit="bytes per second",
        maximum=LONG_MAX,
        dynamic=True,
    )
    maxUnloadBundleNumPerShedding: int = setting(
        -1,
        "Bundles that UniformLoadShedder moves in one check; -1 means any number.",
        minimum=-1,
        dynamic=True,
    )
    loadBalancerMsgRateDifferenceShedderThreshold: float = limit(
        50.0,
        "Difference between the most and the least messages of a broker from which"
        " UniformLoadShedder moves bundles; 0 means off.",
        unit="percent",
        dynamic=True,
    )
    loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold: float = limit(
        4.0,
        "Ratio of the most to the least bytes of a broker from which UniformLoadShedder moves"
        " bundles; 0 means off.",
        dynamic=True,
    )
    loadBalancerBrokerThresholdShedderPercentage: int = setting(
        10,
        "Points above the average usage from which ThresholdShedder moves bundles.",
        unit="percent",
        maximum=PERCENT,
        dynamic=True,
    )
    loadBalancerBundleUnloadMinThroughputThreshold: float = setting(
        10.0, "Least load that ThresholdShedder moves in one check.", unit="MiB/s", dynamic=True
    )
    lowerBoundarySheddingEnabled: bool = setting(
        False,
        "If true, ThresholdShedder also moves bundles when a broker is below the average by"
        " loadBalancerBrokerThresholdShedderPercentage.",
    )
    loadBalancerAutoBundleSplitEnabled: bool = setting(
        True, "If true, the leader splits large bundles.", dynamic=True
    )
    loadBalancerAutoUnloadSplitBundlesEnabled: bool = setting(
        True, "If true, other brokers may take the parts of a bundle after a split.", dynamic=True
    )
    loadBalancerNamespaceMaximumBundles: int = setting(
        128, "Bundles of a namespace up to which they are split automatically.", dynamic=True
    )
    loadBalancerNamespaceBundleMaxTopics: int = setting(
        1_000, "Topics of a bundle above which it is split.", dynamic=True
    )
    loadBalancerNamespaceBundleMaxSessions: int = limit(
        1_000,
        "Producers and consumers of a bundle above which it is split; 0 means any number.",
        dynamic=True,
    )
    loadBalancerNamespaceBundleMaxMsgRate: int = setting(
        30_000, "Messages of a bundle above which it is split.", unit="per second", dynamic=True
    )
    loadBalancerNamespaceBundleMaxBandwidthMbytes: int = setting(
        100, "Bytes of a bundle above which it is split.", unit="MiB/s", dynamic=True
    )
    defaultNamespaceBundleSplitAlgorithm: str = setting(
        EQUAL_RANGES,
        "Algorithm of splits, unless REST names another one.",
        choices=SPLIT_ALGORITHMS,
        dynamic=True,
    )
    flowOrQpsDifferenceThresholdPercentage: int = setting(
        10,
        f"Load in excess of a bundle's maximum from which {EQUAL_RATES} splits it.",
        unit="percent",
        dynamic=True,
    )
