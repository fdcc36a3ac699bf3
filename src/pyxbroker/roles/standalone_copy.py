"""The parts that `pyxbroker ledgers copy` opens: a standalone's data, and the stores and bookies of
a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

from pyxbroker.add_stats import PublishLatency
from pyxbroker.base.properties import ConfigError
from pyxbroker.bookie.cookie import check_cookie
from pyxbroker.bookie.embedded import EmbeddedBookie
from pyxbroker.broker.listeners import Addresses
from pyxbroker.cluster.checks import StartRefused as StartRefused
from pyxbroker.cluster.checks import check_cluster
from pyxbroker.cluster.copy_ledgers import CopyState as CopyState
from pyxbroker.cluster.copy_nodes import ROOTS as ROOTS
from pyxbroker.cluster.copy_nodes import NodeState as NodeState
from pyxbroker.cluster.copying import Copying as Copying
from pyxbroker.cluster.copying import CopyOptions, Side
from pyxbroker.cluster.copying import CopyRefused as CopyRefused
from pyxbroker.cluster.copying import Plan as Plan
from pyxbroker.cluster.copying import Progress as Progress
from pyxbroker.cluster.copying import refusal as refusal
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import LedgerError as LedgerError
from pyxbroker.ledger.placement import LedgerQuorums
from pyxbroker.ledger.registered_bookies import RegisteredBookies
from pyxbroker.metadata import paths
from pyxbroker.roles import parts
from pyxbroker.roles.cluster_stores import ClusterStores, open_reporting
from pyxbroker.roles.data import StandaloneData
from pyxbroker.settings.config import Config
from pyxbroker.turn import Turn

LOCK_PATIENCE = 1.5  # times the session's timeout
PERSISTENCE = ("EnsembleSize", "WriteQuorum", "AckQuorum")


class CopyPlaces(NamedTuple):
    """The places of a copy, with their settings."""

    data: Path
    standalone: Config
    cluster: Config
    in_flight: int


@contextlib.asynccontextmanager
async def open_copy(
    places: CopyPlaces, report: Callable[[str], None], on_wait: Callable[[str], None]
) -> AsyncIterator[Copying]:
    """Open both sides of a copy. The caller has locked the data directory. on_wait(what) is called
    if ZooKeeper does not answer soon. Raises ConfigError, CopyRefused, StartRefused, DataError,
    MetadataError and OSError.
    """
    turn = Turn(asyncio.get_running_loop())
    async with contextlib.AsyncExitStack() as stack:
        source, instance_id = await _open_standalone(places, turn, stack)
        target = await _open_cluster(places.cluster, turn, stack, on_wait)
        session_s = places.cluster.metadataStoreSessionTimeoutMillis / 1000
        options = CopyOptions(places.in_flight, session_s * LOCK_PATIENCE)
        yield Copying(source, target, instance_id, options, report)


async def _open_standalone(
    places: CopyPlaces, turn: Turn, stack: contextlib.AsyncExitStack
) -> tuple[Side, str]:
    """Open the data of a standalone, as its start does, but without any new node or entry."""
    config = places.standalone
    data = StandaloneData(config, places.data, False, Addresses())
    layout = data.layout()
    cookie = layout.examine()
    if cookie is None:
        raise CopyRefused(f"{places.data} was never used by pyxbroker standalone")
    store = data.metadata
    await store.open()
    stack.push_async_callback(store.close)
    instance = await store.get(paths.INSTANCE_ID)
    if instance is None:
        raise CopyRefused(f"the metadata in {places.data} has no {paths.INSTANCE_ID}")
    instance_id = instance.value.decode()
    await check_cookie(cookie, layout.bookie, instance_id, store, alone=True)
    storage = await asyncio.get_running_loop().run_in_executor(None, data.open_storage, layout)
    bookie = EmbeddedBookie(storage, turn, cookie.bookie_id, lambda full: None, layout=layout)
    stack.push_async_callback(bookie.close)
    ledgers = LedgerClient(store, {cookie.bookie_id: bookie}, turn, LedgerQuorums())
    stack.push_async_callback(ledgers.stop)
    return Side(store, ledgers, config.clusterName), instance_id


async def _open_cluster(
    config: Config,
    turn: Turn,
    stack: contextlib.AsyncExitStack,
    on_wait: Callable[[str], None],
) -> Side:
    ensemble, write, ack = (getattr(config, f"managedLedgerDefault{each}") for each in PERSISTENCE)
    if not ensemble >= write >= ack >= 1:
        raise ConfigError(
            f"an ensemble of {ensemble}, a write quorum of {write} and an ack quorum of {ack} do"
            " not fit: each must be at least as large as the next one"
        )
    stores = ClusterStores(config, "--to")
    await open_reporting(stores.store, stores.hosts, on_wait)
    stack.push_async_callback(stores.store.close)
    places = stores.places._replace(cluster_setting="--cluster")
    await check_cluster(stores.store, config.clusterName, places)
    bookies = RegisteredBookies(stores.store)
    pool = parts.make_pool(config, bookies, turn, lambda full: None)
    stack.push_async_callback(pool.close)
    bookies.start()
    stack.push_async_callback(bookies.close)
    await bookies.wait_read()
    writable = len(bookies.view.writable)
    if writable < ensemble:
        raise CopyRefused(
            f"{ensemble} writable bookies are needed (--ensemble), {writable} are registered"
        )
    placement = parts.make_placement(config, bookies)
    ledgers = parts.make_ledgers(config, stores.store, pool, turn, PublishLatency(), placement)
    ledgers.custom_metadata = stores.custom_metadata
    stack.push_async_callback(ledgers.stop)
    return Side(stores.store, ledgers, config.clusterName)
