"""What the web side needs of the broker: the broker's composition root has these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from pyxbroker.base.topic_name import TopicName
from pyxbroker.metadata.store import MetadataStore
from pyxbroker.settings.config import Config
from pyxbroker.stats.metrics import TopicStats


class LookupResult(Protocol):
    """The broker that owns a topic: `pulsar://host:port` and `http://host:port`."""

    @property
    def broker_url(self) -> str: ...

    @property
    def http_url(self) -> str: ...


class PartitionedTopic(Protocol):
    """What metadata says of a partitioned topic; of one that is none, 0 partitions."""

    @property
    def partitions(self) -> int: ...

    @property
    def fields(self) -> Mapping[str, Any]: ...


class PartitionedTopics(Protocol):
    """The partitioned topics of all namespaces. All raise PulsarError and MetadataError."""

    async def read(self, name: TopicName) -> PartitionedTopic: ...

    async def metadata(self, name: TopicName, auto_create: bool) -> int: ...

    async def create(
        self, name: TopicName, count: int, properties: dict[str, str] | None = None
    ) -> None: ...

    async def update(self, name: TopicName, count: int) -> None: ...

    async def delete(self, name: TopicName, force: bool = False) -> None: ...


class Topics(Protocol):
    """The topics of all namespaces. All raise PulsarError and MetadataError."""

    @property
    def partitioned(self) -> PartitionedTopics: ...

    async def exists(self, name: TopicName) -> bool: ...

    async def check_name(self, name: TopicName) -> Any: ...

    async def make(self, name: TopicName, properties: Mapping[str, str] = ...) -> Any: ...

    async def delete_by_name(self, name: TopicName, force: bool = False) -> None: ...

    async def terminate(self, name: TopicName) -> tuple[int, int]: ...

    def open_names(self, namespace: str, domain: str) -> list[TopicName]: ...


class BrokerService(Protocol):
    """The broker, seen from its web port. Everything here belongs to the loop's thread."""

    @property
    def config(self) -> Config: ...

    @property
    def metadata(self) -> MetadataStore: ...

    @property
    def topics(self) -> Topics: ...

    async def lookup(self, topic: str) -> LookupResult:
        """The owner of a topic, by full name. Raises PulsarError."""

    def failure(self) -> str | None:
        """Why the broker cannot do its work, as a sentence; None when it can."""

    def disk_usage(self) -> Mapping[str, tuple[int, int]]:
        """(free, total) bytes of each file system, by a directory on it."""

    def refused_sends(self) -> int:
        """SENDs that were refused because nothing could be stored."""

    def unknown_ledgers(self) -> Sequence[int]:
        """Ledgers that are stored, that metadata does not know, and that are kept for that."""

    def topic_stats(self) -> Iterable[TopicStats]:
        """The topics that are loaded."""

    def storage_stats(self) -> Mapping[str, int]:
        """The counters of the embedded bookie (storage.h, storage_stats); empty without one."""
