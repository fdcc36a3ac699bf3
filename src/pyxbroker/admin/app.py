"""All resources of one broker, and what becomes of their errors."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pyxbroker.admin.errors import refusal, refusal_of
from pyxbroker.admin.request import Request
from pyxbroker.admin.response import Response
from pyxbroker.admin.router import Router
from pyxbroker.base.log import get_logger

if TYPE_CHECKING:
    from pyxbroker.broker.broker import Broker
    from pyxbroker.stats.metrics import Collector, MetricsSource

_log = get_logger(__name__)

# For each prefix of paths, the files of this folder that have its routes.
RESOURCES = {
    "/admin/v2/brokers": ("brokers",),
    "/admin/v2/clusters": ("clusters",),
    "/admin/v2/non-persistent": ("partitions", "subscriptions", "topics"),
    "/admin/v2/persistent": ("partitions", "subscriptions", "topics"),
    "/lookup/v2/topic": ("lookup",),
    "/metrics": ("metrics",),
}


class Application:
    """What the resources find in `request.app`."""

    def __init__(self, broker: Broker, metrics_source: MetricsSource) -> None:
        self.broker = broker
        self.metrics_source = metrics_source
        self._router = Router(
            {
                prefix: tuple(f"{__package__}.resources.{name}" for name in names)
                for prefix, names in RESOURCES.items()
            }
        )

    @cached_property
    def collector(self) -> Collector:
        """Takes the samples of /metrics, and knows the ones before."""
        from pyxbroker.stats.metrics import Collector

        return Collector()

    async def answer(self, request: Request) -> Response:
        """The answer to a request; what a resource raises becomes a refusal.

        Only a fault of ours reaches the log.
        """
        request.app = self
        try:
            return await self._router.find(request)(request)
        except Exception as error:
            answer = refusal_of(error)
            if answer is None:
                _log.exception("request failed", method=request.method, path=request.path)
                reason = "The broker failed to answer this request; its log says why."
                answer = refusal(500, reason)
            return answer
