"""The metadata stores that the settings of a cluster's broker name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.properties import ConfigError
from pyxbroker.cluster.checks import Places, UnusableCluster
from pyxbroker.cluster.initialize import ClusterSettings as ClusterSettings
from pyxbroker.cluster.setup import Setup as Setup
from pyxbroker.cluster.setup import set_up, set_up_transactions
from pyxbroker.ledger.metadata import (
    NAMED_IN_STORE,
    LedgerMetadataStore,
    MalformedLedgerMetadata,
)
from pyxbroker.metadata import paths
from pyxbroker.metadata.routed import Route, RoutedStore
from pyxbroker.metadata.store import MetadataStore, NotFound, open_store
from pyxbroker.settings.config import Config

LEDGERS_CHECKED_MAX = 8  # newest ledgers whose password is compared with the setting
REPORT_AFTER_S = 0.5
_CONFIGURATION = "configurationMetadataStoreUrl"
_LEDGERS = "bookkeeperMetadataServiceUri"
_SHARED = "--configuration-metadata-store"
_METADATA_STORE = "metadata-store:"
_DRIVERS = ("zk+hierarchical", "zk+null", "zk")


class Place(NamedTuple):
    """A node of a ZooKeeper: hosts, and the path from the root ("" for the root)."""

    hosts: str
    path: str

    @property
    def url(self) -> str:
        return f"zk:{self.hosts}{self.path}"


def place_of(url: str, setting: str) -> Place:
    """Return the place of a metadata URL. Raises ConfigError for another store than ZooKeeper."""
    text = url.strip().removeprefix("zk:").removeprefix("//")
    hosts, slash, path = text.partition("/")
    if not hosts or url.startswith(("embedded:", "rocksdb:", "memory:", "oxia:", "etcd:")):
        raise ConfigError(
            f"{setting} is {url!r}: a broker of a cluster needs ZooKeeper, as in"
            " zk:host:2181[,host:2181][/chroot]."
        )
    return Place(hosts, (slash + path).rstrip("/"))


def ledgers_place(uri: str, metadata: Place) -> Place:
    """Return the place of the ledgers. Raises ConfigError for a URI that is not ZooKeeper's."""
    if not uri:
        return Place(metadata.hosts, f"{metadata.path}{paths.LEDGERS}")
    if uri.startswith(_METADATA_STORE):
        place = place_of(uri.removeprefix(_METADATA_STORE), _LEDGERS)
        return Place(place.hosts, f"{place.path}{paths.LEDGERS}")
    driver, colon, rest = uri.partition("://")
    hosts, _, path = rest.partition("/")
    if not colon or driver not in _DRIVERS or not hosts or not path.strip("/"):
        raise ConfigError(
            f"bookkeeperMetadataServiceUri is {uri!r}; expected"
            " zk+hierarchical://host:2181[;host:2181]/ledgers or metadata-store:zk:host:2181."
        )
    return Place(hosts.replace(";", ","), f"/{path.strip('/')}")


async def open_reporting(store: MetadataStore, hosts: str, on_wait: Callable[[str], None]) -> None:
    """Open a store; on_wait(what) is called if ZooKeeper does not answer soon. Raises
    MetadataError.
    """
    reporting = asyncio.create_task(_report(hosts, on_wait))
    try:
        await store.open()
    finally:
        reporting.cancel()


async def _report(hosts: str, on_wait: Callable[[str], None]) -> None:
    await asyncio.sleep(REPORT_AFTER_S)
    from pyxbroker.metadata.zookeeper import unknown_name  # imported by now

    unknown = await unknown_name(hosts)
    on_wait(f"ZooKeeper at {hosts}{unknown and f' ({unknown})'}")


class ClusterStores:
    """The stores of one broker as one, which is not open yet. Messages say that the URL of the
    metadata comes from `setting`. Raises ConfigError.
    """

    def __init__(self, config: Config, setting: str = "metadataStoreUrl") -> None:
        if not config.metadataStoreUrl:
            raise ConfigError(
                f"{setting} is empty: a broker of a cluster needs ZooKeeper, as in"
                f" {setting}=zk:host:2181. For a broker with its own data run pyxbroker"
                " standalone."
            )
        self._config = config
        metadata = place_of(config.metadataStoreUrl, setting)
        configuration = metadata
        if config.configurationMetadataStoreUrl:
            configuration = place_of(config.configurationMetadataStoreUrl, _CONFIGURATION)
        ledgers = ledgers_place(config.bookkeeperMetadataServiceUri, metadata)
        self.hosts = metadata.hosts
        self.ledgers_url = ledgers.url
        self.places = Places(
            configuration.url,
            ledgers.url,
            setting if configuration == metadata else _CONFIGURATION,
            _LEDGERS if config.bookkeeperMetadataServiceUri else setting,
        )
        self._stores: dict[Place, MetadataStore] = {}
        main = self._store_at(metadata, setting)
        routes = []
        own_ledgers = Place(metadata.hosts, f"{metadata.path}{paths.LEDGERS}")
        self.has_own_ledgers = ledgers == own_ledgers  # other clusters may share those elsewhere
        self.custom_metadata = {NAMED_IN_STORE: b"1"} if self.has_own_ledgers else {}
        if not self.has_own_ledgers:
            if ledgers.hosts == metadata.hosts and ledgers.path.startswith(f"{metadata.path}/"):
                there = Route(paths.LEDGERS, main, ledgers.path.removeprefix(metadata.path))
            else:
                root = self._store_at(Place(ledgers.hosts, ""), _LEDGERS)
                there = Route(paths.LEDGERS, root, ledgers.path)
            routes.append(there)
        if configuration != metadata:
            shared = self._store_at(configuration, _CONFIGURATION)
            routes.append(Route(paths.ADMINISTRATION, shared, paths.ADMINISTRATION))
            routes += [Route(path, main, path) for path in paths.LOCAL_ADMINISTRATION]
        self.store = main
        if routes:
            self.store = RoutedStore(main, [*routes, Route("", main, "")])

    def _store_at(self, place: Place, setting: str) -> MetadataStore:
        config = self._config
        if place not in self._stores:
            self._stores[place] = open_store(
                place.url,
                session_timeout_ms=config.metadataStoreSessionTimeoutMillis,
                operation_timeout_ms=config.metadataStoreOperationTimeoutSeconds * 1000,
                makes_chroot=False,
                setting=setting,
            )
        return self._stores[place]

    async def check_password(self) -> None:
        """Raise UnusableCluster if the newest ledger of a topic has another password than the
        setting.
        """
        ledgers = LedgerMetadataStore(self.store)
        password = self._config.managedLedgerPassword.encode()
        async for ledger_id in ledgers.newest(LEDGERS_CHECKED_MAX):
            try:
                metadata = (await ledgers.read(ledger_id)).metadata
            except (NotFound, MalformedLedgerMetadata):
                continue
            if metadata.custom_metadata.get("component") != b"managed-ledger":
                continue
            if metadata.digest_type is not None and metadata.password != password:
                raise UnusableCluster(
                    f"ledger {ledger_id} at {self.ledgers_url} has another password: set"
                    " managedLedgerPassword to the password of the cluster"
                )
            return


async def set_up_cluster(
    local: str,
    shared: str,
    session_timeout_ms: int,
    setup: Setup,
    on_wait: Callable[[str], None],
) -> list[str]:
    """Create the metadata of a cluster in the stores of two URLs; return the paths that were
    written. on_wait(what) is called if a store does not answer soon. Raises ConfigError and
    MetadataError.
    """
    places = {place_of(local, "--metadata-store"): "--metadata-store"}
    places.setdefault(place_of(shared, _SHARED), _SHARED)
    async with _opened(places, session_timeout_ms, on_wait) as stores:
        return await set_up(stores[0], stores[-1], setup)


async def set_up_coordinators(
    shared: str,
    session_timeout_ms: int,
    cluster: str,
    coordinators: int,
    on_wait: Callable[[str], None],
) -> list[str]:
    """Create the metadata of transactions in the store of a URL, like set_up_cluster."""
    option = "--configuration-store"
    places = {place_of(shared, option): option}
    async with _opened(places, session_timeout_ms, on_wait) as [store]:
        return await set_up_transactions(store, cluster, coordinators)


@asynccontextmanager
async def _opened(
    places: dict[Place, str], session_timeout_ms: int, on_wait: Callable[[str], None]
) -> AsyncIterator[list[MetadataStore]]:
    """Open the stores of places, each with the option that names it, and close them."""
    stores = [
        open_store(place.url, session_timeout_ms=session_timeout_ms, setting=option)
        for place, option in places.items()
    ]
    try:
        for place, each in zip(places, stores, strict=True):
            await open_reporting(each, place.hosts, on_wait)
        yield stores
    finally:
        for each in stores:
            await each.close()
