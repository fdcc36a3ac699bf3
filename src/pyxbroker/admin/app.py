"""All resources of one broker."""

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


ENTRIES_READ_MAX = 4  # at a time, of up to 5 MB; unpacked they may have 32 MiB each

# Long answers that are made at a time, each kind by itself; for the last one strangers may ask.
MADE_AT_ONCE = {"topics": 4, "subscriptions": 4, "broker-stats": 2, "metrics": 2}
# Bytes of statistics that are made at a time; short ones do not count.
STATISTICS_BYTES = 64 << 20
STATISTICS_FREE_BYTES = 64 << 10


class Application:
    """What the resources find in `request.app`."""

    def __init__(self, broker: Broker, make_metrics_source: Callable[[], MetricsSource]) -> None:
        self.broker = broker
        self._make_metrics_source = make_metrics_source
        # With the first request: a start does not wait for routes and refusals.
        self._answer = OffLoop(_import_answer)
        # Takes the samples of /metrics, and knows the ones before.
        self.collector = OffLoop(_make_collector)

    @cached_property
    def metrics_source(self) -> MetricsSource:
        """The numbers of the process, which are made ready when they are first asked for."""
        return self._make_metrics_source()

    @cached_property
    def entries_read(self) -> asyncio.Semaphore:
        """Held while an entry is read and unpacked; who writes an answer counts it."""
        return asyncio.Semaphore(ENTRIES_READ_MAX)

    @cached_property
    def long_answers(self) -> dict[str, LongAnswers]:
        """The lines of those that are made a few at a time, by their kinds."""
        from pyxbroker.web.long_answers import LongAnswers

        return {kind: LongAnswers(count) for kind, count in MADE_AT_ONCE.items()}

    @cached_property
    def statistics(self) -> LongAnswers:
        """The room for statistics of topics, in bytes."""
        from pyxbroker.web.long_answers import LongAnswers

        return LongAnswers(STATISTICS_BYTES, STATISTICS_FREE_BYTES)

    @cached_property
    def load(self) -> Load:
        """What this process takes of its machine, since it was asked last."""
        from pyxbroker.stats.load import Load

        return Load()

    async def answer(self, request: Request) -> Response:
        """The answer to a request, whatever happens."""
        request.app = self
        answer = await self._answer.get()
        return await answer(request)


def _import_answer() -> Callable[[Request], Awaitable[Response]]:
    from pyxbroker.admin.answering import answer

    return answer


def _make_collector() -> Collector:
    from pyxbroker.stats.metrics import Collector

    return Collector()
