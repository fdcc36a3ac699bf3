"""Settings that all topics of a broker share: rates, limits, and broker entry metadata."""

from __future__ import annotations

import asyncio
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyxbroker.policies.values import DispatchRate, Rate
from pyxbroker.settings.config import Config

if TYPE_CHECKING:
    from pyxbroker.broker.dispatch.dispatch_limiter import DispatchLimiter
    from pyxbroker.broker.topics.publish_rate import PublishLimiter
    from pyxbroker.turn import Turn


class DeduplicationLimits(NamedTuple):
    """Limits on the state that topics store about producers for deduplication."""

    entries_interval: int = 1000  # a snapshot is stored after so many entries
    producers_max: int = 10_000
    inactive_s: float = 360 * 60.0


TIMESTAMP_INTERCEPTOR = (
    "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor"
)
INDEX_INTERCEPTOR = "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"


class EntryMetadataKinds(NamedTuple):
    """The fields of the broker entry metadata."""

    timestamps: bool = False
    indexes: bool = False


NO_ENTRY_METADATA = EntryMetadataKinds()

COMPACTIONS_MAX = 2  # concurrent ones per broker: each needs memory for its keys


class CompactionLimits:
    """Limits that all compactions of a broker share."""

    def __init__(self, retains_keyless: bool = False, directory: Path | None = None) -> None:
        self.turns = asyncio.Semaphore(COMPACTIONS_MAX)
        self.retains_keyless = retains_keyless
        self.directory = directory  # for files of keys; None: the default


class BrokerLimits:
    """The limits from the settings."""

    def __init__(self) -> None:
        self.publish: PublishLimiter | None = None  # None without such a rate
        self.dispatch: DispatchLimiter | None = None
        self.message_bytes_max = 2**32 - 1
        self.deduplication = DeduplicationLimits()
        self.entry_metadata = NO_ENTRY_METADATA
        self.retains_keyless = False  # messages without a key, in compacted topics
        self.spill_directory: Path | None = None  # for keys of compactions; None: the default

    @cached_property
    def compaction(self) -> CompactionLimits:
        """Limits that all compactions share."""
        return CompactionLimits(self.retains_keyless, self.spill_directory)

    def set_rates(self, config: Config, turn: Turn) -> bool:
        """Apply the rates of the settings. Return True if they have changed; topics must be
        notified then.
        """
        is_other = self._set_publish(
            Rate(
                config.brokerPublisherThrottlingMaxMessageRate,
                config.brokerPublisherThrottlingMaxByteRate,
            ),
            turn,
        )
        rate = DispatchRate(config.dispatchThrottlingRateInMsg, config.dispatchThrottlingRateInByte)
        if rate == (DispatchRate() if self.dispatch is None else self.dispatch.rate):
            return is_other
        # Imported here: most brokers have no rates.
        from pyxbroker.broker.dispatch.dispatch_limiter import updated_limiter

        self.dispatch = updated_limiter(self.dispatch, rate, turn, None)
        return True

    def _set_publish(self, rate: Rate, turn: Turn) -> bool:
        limiter = self.publish
        if rate == (Rate() if limiter is None else limiter.rate):
            return False
        if limiter is None:
            from pyxbroker.broker.topics.publish_rate import PublishLimiter

            self.publish = PublishLimiter(turn, rate)
        elif rate == Rate():
            self.publish = None
            for go_on in limiter.stop():
                go_on()
        else:
            limiter.change(rate)
        return True


NO_BROKER_LIMITS = BrokerLimits()


def broker_limits(config: Config, turn: Turn) -> BrokerLimits:
    """Return the limits from the settings."""
    limits = BrokerLimits()
    limits.message_bytes_max = config.maxMessageSize
    limits.deduplication = DeduplicationLimits(
        config.brokerDeduplicationEntriesInterval,
        config.brokerDeduplicationMaxNumberOfProducers,
        config.brokerDeduplicationProducerInactivityTimeoutMinutes * 60.0,
    )
    limits.retains_keyless = config.topicCompactionRetainNullKey
    interceptors = {each.strip() for each in config.brokerEntryMetadataInterceptors.split(",")}
    limits.entry_metadata = EntryMetadataKinds(
        TIMESTAMP_INTERCEPTOR in interceptors, INDEX_INTERCEPTOR in interceptors
    )
    limits.set_rates(config, turn)
    return limits
