"""Samples of all brokers of a cluster, taken by REST."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from pyxbroker.cli.top.samples import Sample, Snapshot, read_metrics, snapshot
from pyxbroker.client.admin import AdminClient, topic_path
from pyxbroker.client.errors import ClientError
from pyxbroker.client.settings import ClientSettings

TIMEOUT_S = 10.0


class Watch:
    """The clients of the brokers, and their last samples."""

    def __init__(self, settings: ClientSettings, all_brokers: bool) -> None:
        self._settings = replace(settings, operation_timeout_s=TIMEOUT_S)
        self._service = AdminClient(self._settings)
        self._all_brokers = all_brokers
        self._clients: dict[str, AdminClient] = {}
        self._before: dict[str, Sample] = {}

    async def sample(self) -> Snapshot:
        """Ask all brokers. Raises ClientError if none answers."""
        brokers = await self._brokers()
        answers = await asyncio.gather(
            *(self._metrics(each) for each in brokers), return_exceptions=True
        )
        samples, failures = {}, {}
        for broker, answer in zip(brokers, answers, strict=True):
            if isinstance(answer, Sample):
                samples[broker] = answer
            elif isinstance(answer, ClientError):
                failures[broker] = str(answer)
            else:
                raise answer
        if not samples:
            raise next(each for each in answers if isinstance(each, ClientError))
        before, self._before = self._before, samples
        return snapshot(samples, before, failures)

    async def topic(self, name: str) -> dict[str, Any]:
        """Return the statistics of a topic from the broker that serves it. Raises ClientError."""
        found = await self._service.get(topic_path(name, "stats"))
        if not isinstance(found, dict):
            raise ClientError(f"the statistics of {name} are no JSON object")
        return found

    def close(self) -> None:
        for each in (self._service, *self._clients.values()):
            each.close()

    async def _brokers(self) -> list[str]:
        """Return HOST:PORT of the brokers; the one that was named if it is alone."""
        parts = urlsplit(self._settings.service_url)
        if self._all_brokers:
            found = await self._service.get("/admin/v2/brokers")
            if isinstance(found, list) and len(found) > 1:
                return sorted(map(str, found))
        self._clients.setdefault(parts.netloc, self._service)
        return [parts.netloc]

    async def _metrics(self, broker: str) -> Sample:
        client = self._clients.get(broker)
        if client is None:
            scheme = urlsplit(self._settings.service_url).scheme
            settings = replace(self._settings, service_url=f"{scheme}://{broker}")
            client = self._clients[broker] = AdminClient(settings)
        answer = await client.request("GET", "/metrics/")
        return read_metrics(answer.body.decode(errors="replace"), time.monotonic())
