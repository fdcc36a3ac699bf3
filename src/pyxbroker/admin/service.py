"""What the web side needs of the broker: the broker's composition root has these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from pyxbroker.config import Config
from pyxbroker.metadata.store import MetadataStore
from pyxbroker.metrics import TopicStats


class LookupResult(Protocol):
    """The broker that owns a topic: `pulsar://host:port` and `http://host:port`."""

    @property
    def broker_url(self) -> str: ...

    @property
    def http_url(self) -> str: ...


class BrokerService(Protocol):
    """The broker, seen from its web port. Everything here belongs to the loop's thread."""

    @property
    def config(self) -> Config: ...

    @property
    def metadata(self) -> MetadataStore: ...

    async def lookup(self, topic: str) -> LookupResult:
        """The owner of a topic, by full name. Raises PulsarError."""

    async def partitions(self, topic: str) -> int:
        """Partitions of a topic, 0 when it is not partitioned. Raises PulsarError."""

    def failure(self) -> str | None:
        """Why the broker cannot do its work, as a sentence; None when it can."""

    def topic_stats(self) -> Iterable[TopicStats]:
        """The topics that are loaded."""

    def storage_stats(self) -> Mapping[str, int]:
        """The counters of the embedded bookie (storage.h, storage_stats); empty without one."""
