"""One run of groups of producers and consumers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyxbroker.base.topic_name import TopicName
from pyxbroker.client import requests
from pyxbroker.client.addresses import Address
from pyxbroker.client.client import Client
from pyxbroker.client.connection import Connection
from pyxbroker.client.errors import ClientError
from pyxbroker.client.settings import ClientSettings
from pyxbroker.load_generator import Latencies, LoadPayload, LoadProducer, LoadStats, now_ns
from pyxbroker.perf.groups import ConsumerGroup, Group, ProducerGroup
from pyxbroker.perf.link import Link

SAMPLE_S = 1.0
DRAIN_S = 10.0
"""The time for which a run waits for the last receipts and messages."""
SAMPLE_PERCENTS = (50.0, 95.0, 99.0, 99.9, 100.0)


@dataclass(frozen=True)
class Sample:
    """The numbers of a group in one interval, by default of a second."""

    at_s: float
    """The end of the interval, in seconds since the begin of the run."""
    seconds: float
    messages: int
    bytes: int
    failures: int
    latencies_us: tuple[int, ...]
    """Values of SAMPLE_PERCENTS."""


@dataclass
class GroupNumbers:
    """The numbers of a group after the warm-up."""

    group: Group
    stats: LoadStats = field(default_factory=LoadStats)
    latencies: Latencies = field(default_factory=Latencies)
    since_sent: Latencies = field(default_factory=Latencies)
    samples: list[Sample] = field(default_factory=list)
    seconds: float = 0.0
    messages: int = 0
    bytes: int = 0
    failures: int = 0
    backlog: int = 0
    """Messages of a consumer group that were sent and not received when the producers ended."""


@dataclass(frozen=True)
class RunSettings:
    """Options of a run."""

    seconds: float = 0.0
    """The time for which producers send, after the warm-up; 0: until all messages are sent."""
    warm_up_s: float = 0.0
    links: int = 1
    """Connections to each broker for producers, and the number for consumers."""
    ack_delay_s: float = 0.1
    on_sample: Callable[[LoadRun], None] | None = None


class LoadRun:
    """A run. `run` opens everything, sends and receives, and closes everything."""

    def __init__(
        self, client: ClientSettings, groups: Sequence[Group], settings: RunSettings
    ) -> None:
        self.numbers = [GroupNumbers(each) for each in groups]
        self.cpu_share = 0.0
        """The share of one core that the load generator itself used."""
        self.refusal: str | None = None
        """The last reason for which the broker refused a message."""
        self._client_settings = client
        self._settings = settings
        # Producers and consumers have connections of their own: a broker that stops reading from a
        # fast producer must not miss the permits and acknowledgements of consumers.
        self._links: dict[tuple[Address, bool], list[Link]] = {}
        self._producers: list[tuple[GroupNumbers, list[LoadProducer]]] = []
        self._next_link = 0
        self.is_stopped = False
        """True after `stop`."""
        self.is_open = False
        """True once all producers and consumers are registered."""
        self.is_measuring = False
        """True after the warm-up."""
        self._started_ns = self._sampled_ns = 0

    async def run(self) -> None:
        """Run. Raises ClientError."""
        self._failed: asyncio.Future[ClientError] = asyncio.get_running_loop().create_future()
        async with Client(self._client_settings) as client:
            acks = asyncio.ensure_future(self._flush_acks())
            try:
                await self._open(client)
                await self._measure()
            finally:
                acks.cancel()
                for each in self._all_links():
                    self.refusal = self.refusal or each.refusal
                    each.close()

    def stop(self) -> None:
        """End the run early, with its numbers."""
        self.is_stopped = True

    def _all_links(self) -> list[Link]:
        return [each for links in self._links.values() for each in links]

    # --- opening --------------------------------------------------------------------------------

    async def _open(self, client: Client) -> None:
        """Open consumers first, so that they receive all messages."""
        for numbers in self.numbers:
            if isinstance(numbers.group, ConsumerGroup):
                await self._open_consumers(client, numbers, numbers.group)
        for numbers in self.numbers:
            if isinstance(numbers.group, ProducerGroup):
                await self._open_producers(client, numbers, numbers.group)

    async def _open_consumers(
        self, client: Client, numbers: GroupNumbers, group: ConsumerGroup
    ) -> None:
        for topic in await _single_topics(client, group.topics):
            for subscription in group.subscriptions:
                for _ in range(group.count):
                    link = await self._link_to(client, topic, True)
                    await link.add_consumer(topic, subscription, group, numbers.stats)

    async def _open_producers(
        self, client: Client, numbers: GroupNumbers, group: ProducerGroup
    ) -> None:
        chance = random.Random(1)
        payload = bytes(chance.randrange(65, 91) for _ in range(group.size))
        bodies: dict[Link, LoadPayload] = {}
        made: list[LoadProducer] = []
        topics = await _single_topics(client, group.topics)
        size = group.count * len(topics)
        for index in range(size):
            topic = topics[index % len(topics)]
            link = await self._link_to(client, topic, False)
            body = bodies.setdefault(link, link.payload_of(group, payload))
            place = (index, size)
            made.append(await link.add_producer(topic, group, body, numbers.stats, place))
        self._producers.append((numbers, made))

    async def _link_to(self, client: Client, topic: str, is_for_consumer: bool) -> Link:
        """Return the connection for the next producer or consumer of a topic."""
        address = await client.owner_of(topic)
        links = self._links.setdefault((address, is_for_consumer), [])
        if len(links) < self._settings.links:
            connection = await Connection.open(address, self._client_settings)
            links.append(Link(connection, self._failed))
        self._next_link += 1
        return links[self._next_link % len(links)]

    # --- measuring ------------------------------------------------------------------------------

    async def _measure(self) -> None:
        self._start()
        self.is_open = True
        warm_up_s, seconds = self._settings.warm_up_s, self._settings.seconds
        if warm_up_s:
            await self._wait(warm_up_s)
            self._take_samples(is_warm_up=True)
        self.is_measuring = True
        self._started_ns = self._sampled_ns
        cpu_ns = time.process_time_ns()
        end_ns = self._started_ns + int(seconds * 1e9) if seconds else None
        while not self._is_complete():
            left_s = SAMPLE_S
            if end_ns is not None:
                left_s = min(left_s, (end_ns - now_ns()) / 1e9)
            if left_s <= 0.001:
                break
            await self._wait(left_s, self._is_complete)
            self._take_samples()
        cpu_ns = time.process_time_ns() - cpu_ns
        self.cpu_share = cpu_ns / max(self._sampled_ns - self._started_ns, 1)
        await self._finish()

    def _start(self) -> None:
        started_ns = now_ns()
        for numbers, producers in self._producers:
            group = numbers.group
            assert isinstance(group, ProducerGroup)
            step_ns = 1e9 / group.rate if group.rate else 0.0
            for index, each in enumerate(producers):
                each.schedule(
                    started_ns + int(index * step_ns),
                    len(producers) * step_ns,
                    int(group.batch_delay_s * 1e9),
                )
        self._started_ns = self._sampled_ns = started_ns
        for link in self._all_links():
            link.start()

    async def _finish(self) -> None:
        """Stop the producers, and wait for the receipts and messages on their way."""
        for _, producers in self._producers:
            for producer in producers:
                producer.stop()
        self._note_backlog()
        end_ns = now_ns() + int(DRAIN_S * 1e9)
        while self._has_outstanding() and now_ns() < end_ns:
            await self._wait(0.02)
        for _, producers in self._producers:
            for producer in producers:
                producer.give_up()
        self._take_samples(is_last=True)
        for link in self._all_links():
            link.flush_acks()

    def _is_complete(self) -> bool:
        """Return True when each group with a number of messages has reached it, or after `stop`."""
        if self.is_stopped:
            return True
        wanted = [each for each in self.numbers if each.group.messages]
        return bool(wanted) and all(
            each.stats.messages + each.stats.failures >= each.group.messages for each in wanted
        )

    def _has_outstanding(self) -> bool:
        return any(each.outstanding for _, producers in self._producers for each in producers)

    def _note_backlog(self) -> None:
        sent = sum(numbers.stats.sent for numbers, _ in self._producers)
        for numbers in self.numbers:
            if isinstance(numbers.group, ConsumerGroup) and sent:
                wanted = sent * len(numbers.group.subscriptions)
                numbers.backlog = max(wanted - numbers.stats.messages, 0)

    async def _wait(self, seconds: float, is_over: Callable[[], bool] | None = None) -> None:
        """Wait; a lost connection ends the run. Raises ClientError."""
        end_ns = now_ns() + int(seconds * 1e9)
        while True:
            left_s = (end_ns - now_ns()) / 1e9
            if left_s <= 0 or (is_over is not None and is_over()):
                return
            pause_s = left_s if is_over is None else min(left_s, 0.05)
            await asyncio.wait((self._failed,), timeout=pause_s)
            if self._failed.done():
                raise self._failed.result()

    def _take_samples(self, is_warm_up: bool = False, is_last: bool = False) -> None:
        """Move the numbers since the last call to the totals, or drop those of a warm-up.

        The last receipts count for the messages, and not for the time.
        """
        at_ns = now_ns()
        seconds = (at_ns - self._sampled_ns) / 1e9
        self._sampled_ns = at_ns
        for each in self.numbers:
            messages, size, failures = each.stats.take()
            latencies = each.stats.latencies
            if not is_warm_up:
                each.messages += messages
                each.bytes += size
                each.failures += failures
                each.latencies.merge(latencies)
                each.since_sent.merge(each.stats.since_sent)
            if not is_warm_up and not is_last:
                each.seconds += seconds
                found = tuple(latencies.percentiles(SAMPLE_PERCENTS))
                at_s = (at_ns - self._started_ns) / 1e9
                each.samples.append(Sample(at_s, seconds, messages, size, failures, found))
            latencies.reset()
            each.stats.since_sent.reset()
        if not is_warm_up and not is_last and self._settings.on_sample is not None:
            self._settings.on_sample(self)

    async def _flush_acks(self) -> None:
        with contextlib.suppress(ClientError):  # the run ends by the lost connection
            while True:
                await asyncio.sleep(self._settings.ack_delay_s or 0.001)
                for each in self._all_links():
                    each.flush_acks()


async def _single_topics(client: Client, topics: Sequence[str]) -> list[str]:
    """Return topics with the partitions of those that have some. Raises ClientError."""
    found = []
    for topic in topics:
        name = TopicName.get(topic)
        count = await _partitions(client, str(name)) if name.partition_index < 0 else 0
        found += [str(name.partition(index)) for index in range(count)] or [str(name)]
    return found


async def _partitions(client: Client, topic: str) -> int:
    return await client.lookup.from_service(
        lambda each: requests.partitions(each, topic, may_create=True)
    )
