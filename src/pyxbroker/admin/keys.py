"""What the resources find in the application."""

from __future__ import annotations

from aiohttp import web

from pyxbroker.admin.service import BrokerService
from pyxbroker.metrics import Collector

SERVICE: web.AppKey[BrokerService] = web.AppKey("service", BrokerService)
COLLECTOR: web.AppKey[Collector] = web.AppKey("collector", Collector)
