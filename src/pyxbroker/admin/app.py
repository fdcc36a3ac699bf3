"""The application of one broker: what its resources share."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING

from pyxbroker.base.off_loop import OffLoop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pyxbroker.admin.request import Request
    from pyxbroker.broker.broker import Broker
    from pyxbroker.stats.load import Load
    from pyxbroker.stats.metrics import Collector, MetricsSource
    from pyxbroker.web.long_answers import LongAnswers
    from pyxbroker.web.response import Response


ENTRIES_READ_MAX = 4  # concurrently, of up to 5 MB; decompressed up to 32 MiB each

# Long answers that are produced concurrently, by kind. "metrics" may need no authentication.
CONCURRENT_MAX = {
    "topics": 4,
    "bundle-topics": 4,
    "subscriptions": 4,
    "broker-stats": 2,
    "metrics": 2,
}
# Bytes of statistics that are produced concurrently; small answers do not count.
STATISTICS_BYTES = 64 << 20
STATISTICS_FREE_BYTES = 64 << 10


class Application:
    """The state that resources share, in `request.app`."""

    def __init__(self, broker: Broker, make_metrics_source: Callable[[], MetricsSource]) -> None:
        self.broker = broker
        self._make_metrics_source = make_metrics_source
        # Imported with the first request, so that the start does not wait for it.
        self._answer = OffLoop(_import_answer)
        # Takes samples for /metrics and remembers the previous ones.
        self.collector = OffLoop(_make_collector)

    @cached_property
    def metrics_source(self) -> MetricsSource:
        """The metrics of the process, created with the first scrape."""
        return self._make_metrics_source()

    @cached_property
    def entries_read(self) -> asyncio.Semaphore:
        """A semaphore held while an entry is read and decompressed; the answer itself is
        charged.
        """
        return asyncio.Semaphore(ENTRIES_READ_MAX)

    @cached_property
    def long_answers(self) -> dict[str, LongAnswers]:
        """The queues of long answers, by kind."""
        from pyxbroker.web.long_answers import LongAnswers

        return {kind: LongAnswers(count) for kind, count in CONCURRENT_MAX.items()}

    @cached_property
    def statistics(self) -> LongAnswers:
        """The limit on the memory of topic statistics."""
        from pyxbroker.web.long_answers import LongAnswers

        return LongAnswers(STATISTICS_BYTES, STATISTICS_FREE_BYTES)

    @cached_property
    def load(self) -> Load:
        """The share of the machine that this process has used since the last call."""
        from pyxbroker.stats.load import Load

        return Load(nic_gbit=self.broker.config.loadBalancerOverrideBrokerNicSpeedGbps)

    async def answer(self, request: Request) -> Response:
        """Answer a request; exceptions become answers."""
        request.app = self
        answer = await self._answer.get()
        return await answer(request)


def _import_answer() -> Callable[[Request], Awaitable[Response]]:
    from pyxbroker.admin.answering import answer

    return answer


def _make_collector() -> Collector:
    from pyxbroker.stats.metrics import Collector

    return Collector()
