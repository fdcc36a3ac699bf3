"""Averages of the load of bundles over time: Pulsar's BundleData and TimeAverageBrokerData."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.cluster.load_report import BundleStats

SHORT_SAMPLES = 10
LONG_SAMPLES = 1_000
UNSEEN_RATE = 50.0  # messages per second in each direction that an unseen bundle counts as
UNSEEN_THROUGHPUT = 50_000.0
RATES = ("msgThroughputIn", "msgThroughputOut", "msgRateIn", "msgRateOut")

Json = dict[str, Any]


class Average(NamedTuple):
    """Average rates over the last samples, with the weight of `max_samples` of them at most."""

    max_samples: int
    samples: int = 0
    throughput_in: float = UNSEEN_THROUGHPUT
    throughput_out: float = UNSEEN_THROUGHPUT
    rate_in: float = UNSEEN_RATE
    rate_out: float = UNSEEN_RATE

    @property
    def rate(self) -> float:
        """Messages in both directions."""
        return self.rate_in + self.rate_out

    @property
    def throughput(self) -> float:
        """Bytes in both directions."""
        return self.throughput_in + self.throughput_out

    def updated(self, stats: BundleStats) -> Average:
        """Return the average with a further sample."""
        samples = min(self.samples + 1, self.max_samples)
        new = (
            *(stats.msg_throughput_in, stats.msg_throughput_out),
            *(stats.msg_rate_in, stats.msg_rate_out),
        )
        rates = (
            ((samples - 1) * before + after) / samples
            for before, after in zip(self[2:], new, strict=True)
        )
        return Average(self.max_samples, samples, *rates)

    def fields(self) -> Json:
        """Return Pulsar's TimeAverageMessageData."""
        head = {"maxSamples": self.max_samples, "numSamples": self.samples}
        return head | dict(zip(RATES, map(float, self[2:]), strict=True))


class BundleData(NamedTuple):
    """The average load of a bundle over a short and a long time."""

    short: Average = Average(SHORT_SAMPLES)
    long: Average = Average(LONG_SAMPLES)
    topics: int = 0

    def updated(self, stats: BundleStats) -> BundleData:
        """Return the averages with a further sample."""
        return BundleData(self.short.updated(stats), self.long.updated(stats), stats.topics)

    def fields(self) -> Json:
        """Return Pulsar's BundleData."""
        return {
            "shortTermData": self.short.fields(),
            "longTermData": self.long.fields(),
            "topics": self.topics,
        }


UNSEEN = BundleData()


def read_bundle_data(fields: object) -> BundleData:
    """Return the averages in Pulsar's BundleData. What cannot be read counts as unseen."""
    if not isinstance(fields, dict):
        return UNSEEN
    return BundleData(
        _read(fields.get("shortTermData"), UNSEEN.short),
        _read(fields.get("longTermData"), UNSEEN.long),
        int(_number(fields.get("topics"), 0)),
    )


def of_quota(fields: Json) -> BundleData:
    """Return the averages of an unseen bundle with a ResourceQuota."""
    names = ("bandwidthIn", "bandwidthOut", "msgRateIn", "msgRateOut")
    rates = [_number(fields.get(name), 0.0) for name in names]
    return BundleData(
        Average(SHORT_SAMPLES, SHORT_SAMPLES, *rates), Average(LONG_SAMPLES, LONG_SAMPLES, *rates)
    )


def broker_averages(bundles: Iterable[BundleData]) -> Json:
    """Return Pulsar's TimeAverageBrokerData of the bundles of a broker."""
    averages = [(each.short, each.long) for each in bundles]
    fields = {}
    for at, term in enumerate(("shortTerm", "longTerm")):
        for column, name in enumerate(RATES, start=2):
            total = sum(float(pair[at][column]) for pair in averages)
            fields[term + name[0].upper() + name[1:]] = float(total)
    return fields


def _read(fields: object, default: Average) -> Average:
    if not isinstance(fields, dict):
        return default
    rates = [_number(fields.get(name), 0.0) for name in RATES]
    most = int(_number(fields.get("maxSamples"), 0)) or default.max_samples
    return Average(most, int(_number(fields.get("numSamples"), 0)), *rates)


def _number(value: object, default: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else default  # type: ignore[arg-type]
