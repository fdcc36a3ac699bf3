"""The refusal of a request that only a broker that does not answer could serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.base.times import iso_ms
from pyxbroker.cluster.addresses import read_fields
from pyxbroker.metadata import paths
from pyxbroker.web.errors import HttpError

if TYPE_CHECKING:
    from pyxbroker.broker.broker import Broker
    from pyxbroker.broker.lookup import Redirect


async def check_answers(broker: Broker, to: Redirect) -> None:
    """Raise HttpError 503, which says what is known of the other broker, if it does not answer."""
    reason = "" if broker.peers is None else await broker.peers.silence(to)
    if not reason:
        return
    name = to.urls.web_name
    what = "serves the topic" if to.is_owner else "decides which broker serves the topic"
    session_s = broker.config.metadataStoreSessionTimeoutMillis / 1000
    raise HttpError(
        503,
        f"Broker {name} {what}, and does not answer ({reason}). {await _registration(broker, name)}"
        f" If its process has ended, its session ends within {session_s:g} s"
        " (metadataStoreSessionTimeoutMillis), and another broker takes over. If its process"
        " runs, restart it.",
    )


async def _registration(broker: Broker, name: str) -> str:
    node = await broker.metadata.get(paths.broker(name))
    if node is None:
        return "It is not registered any more."
    started_ms = read_fields(node.value).get("startTimestamp")
    since = f", since its start at {iso_ms(started_ms)}" if isinstance(started_ms, int) else ""
    return f"It is still registered{since}."
