"""A check that the metadata store answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyxbroker.metadata import paths
from pyxbroker.web.errors import HttpError

if TYPE_CHECKING:
    from pyxbroker.broker.broker import Broker
    from pyxbroker.metadata.store import GetResult

STORE_TIMEOUT_S = 4.0


async def record_of_cluster(broker: Broker) -> GetResult | None:
    """Return the record of this cluster.

    Raises HttpError 503 if the store does not answer in time, MetadataError.
    """
    found = broker.metadata.get(paths.cluster(broker.config.clusterName))
    try:
        return await asyncio.wait_for(found, STORE_TIMEOUT_S)
    except asyncio.TimeoutError:
        raise HttpError(
            503,
            f"The metadata store ({broker.config.metadataStoreUrl}) has not answered for"
            f" {STORE_TIMEOUT_S:g} s. Open topics continue, and no other topic can be opened or"
            " looked up until it answers.",
        ) from None
