"""The load of the bundles of this broker, as measured from their open topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pyxbroker.base.slices import Slices, in_slices
from pyxbroker.broker.served_bundles import topics_by_bundle
from pyxbroker.broker.statistics.stats import read_stats
from pyxbroker.broker.topics.registry import TopicRegistry
from pyxbroker.cluster.load_report import BundleStats


async def stats_by_bundle(
    registry: TopicRegistry, boundaries: Callable[[str], Awaitable[list[int]]]
) -> dict[str, BundleStats]:
    """Return the load of each bundle with open topics, by its full name.

    `boundaries` returns the boundaries of a namespace's bundles.
    """
    found = {}
    slices = Slices()
    for (namespace, bundle), topics in sorted(
        (await topics_by_bundle(registry, boundaries)).items()
    ):
        sums = BundleStats()
        async for each in in_slices(read_stats(topics), slices):
            if each is not None:
                sums = BundleStats(
                    sums.msg_rate_in + each.rate_in,
                    sums.msg_throughput_in + each.throughput_in,
                    sums.msg_rate_out + each.rate_out,
                    sums.msg_throughput_out + each.throughput_out,
                    sums.consumer_count + each.consumers,
                    sums.producer_count + each.producers,
                    sums.topics + 1,
                )
        found[f"{namespace}/{bundle}"] = sums
    return found
