"""A check that the metadata stores answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyxbroker.metadata import paths
from pyxbroker.metadata.store import Unavailable
from pyxbroker.web.errors import HttpError

if TYPE_CHECKING:
    from pyxbroker.broker.broker import Broker
    from pyxbroker.metadata.store import GetResult

STORE_TIMEOUT_S = 4.0


async def record_of_cluster(broker: Broker) -> GetResult | None:
    """Return the record of this cluster.

    Raises HttpError 503 if a store does not answer in time, MetadataError.
    """
    config = broker.config
    shared = config.configurationMetadataStoreUrl
    if broker.cluster is None or shared in ("", config.metadataStoreUrl):
        record = paths.cluster(config.clusterName)
        return await _answer(broker, f"metadata store ({config.metadataStoreUrl})", record)
    # The first node exists when a setting was changed; the answer counts.
    await _answer(broker, f"metadata store ({config.metadataStoreUrl})", paths.CONFIGURATION)
    return await _answer(
        broker, f"configuration store ({shared})", paths.cluster(config.clusterName)
    )


async def _answer(broker: Broker, store: str, path: str) -> GetResult | None:
    try:
        return await asyncio.wait_for(broker.metadata.get(path), STORE_TIMEOUT_S)
    except asyncio.TimeoutError:
        reason = f"has not answered for {STORE_TIMEOUT_S:g} s"
    except Unavailable as error:
        reason = f"cannot be reached: {error}"
    raise HttpError(
        503,
        f"The {store} {reason}. Open topics continue, and no other topic can be opened or looked"
        " up until it answers.",
    )
