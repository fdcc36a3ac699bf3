"""The data of a standalone broker: its metadata, and the storage of its bookie.

Nothing is created or changed before all parts of the data directory are known to be present
(bookie/layout.py). If a later step fails, whatever is open is closed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyxbroker import _native
from pyxbroker.base.log import get_logger
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.properties import ConfigError
from pyxbroker.bookie.cookie import (
    Cookie,
    check_cookie,
    cookie_text,
    find_copy,
    store_copy,
    write_cookie,
)
from pyxbroker.bookie.errors import BookieMissing
from pyxbroker.bookie.layout import Layout
from pyxbroker.bookie.space import METADATA_BYTES, Need, StorageState, file_systems_of
from pyxbroker.broker.listeners import Addresses
from pyxbroker.cluster.initialize import ClusterSettings, initialize
from pyxbroker.entry import ENTRY_HEADER_SIZE_MAX
from pyxbroker.frames import FRAME_PADDING
from pyxbroker.metadata.store import MetadataStore
from pyxbroker.roles.early_parts import make_metadata_store
from pyxbroker.settings.config import ENTRY_METADATA_BYTES_MAX, Config

log = get_logger("pyxbroker.standalone")

BOOKIE_PORT = 3181  # part of the embedded bookie's id; nothing listens on it
LOSS_ACCEPTED = "a loss is accepted"


def examine(layout: Layout, accept_loss: bool) -> Cookie | None:
    """Return the cookie of a data directory, or None if it is new. Creates nothing.

    With `accept_loss`, missing parts are accepted, and the log names them. Raises DataError and
    OSError.
    """
    if not accept_loss:
        return layout.examine()
    cookie, losses = layout.accept_losses()
    for each in losses:
        log.error(LOSS_ACCEPTED, what=each)
    return cookie


def ignore_step(step: str) -> None:
    """Ignore a step of the start."""


class DataOpening(NamedTuple):
    """The steps that open the parts of one data directory."""

    layout: Layout
    cookie: Cookie | None  # what `examine` found
    metadata: MetadataStore
    open_storage: Callable[[], _native.Storage]  # blocking
    cluster: ClusterSettings
    bookie_id: str  # for a new bookie
    accept_loss: bool
    on_step: Callable[[str], None] = ignore_step

    async def run(self) -> tuple[_native.Storage, str]:
        """Open both parts, concurrently if they are known to belong together.

        Returns the storage and the id of its bookie. Raises DataError, MetadataError or OSError,
        and leaves nothing open then.
        """
        loop = asyncio.get_running_loop()
        storage: asyncio.Future[_native.Storage] | None = None
        if self.cookie is not None or self.layout.is_new():
            storage = loop.run_in_executor(None, self.open_storage)
        try:
            await self.metadata.open()
            identity = await initialize(self.metadata, self.cluster)
            bookie_id, text = await self._find_bookie_id(identity.instance_id)
            if storage is None:
                storage = loop.run_in_executor(None, self.open_storage)
            self.on_step(f"the bookie's storage in {self.layout.bookie}: its journal is read")
            opened = await asyncio.shield(storage)
            if text is not None:
                write_cookie(self.layout.bookie, text)
                await store_copy(bookie_id, text, self.metadata)
            return opened, bookie_id
        except BaseException:
            await self._close(storage)
            raise

    async def _find_bookie_id(self, instance_id: str) -> tuple[str, str | None]:
        """Return the bookie id of the directory, and the text of a cookie to write, if it
        has none.
        """
        directory, store = self.layout.bookie, self.metadata
        alone = self.layout.metadata is not None
        if self.cookie is not None:
            await check_cookie(self.cookie, directory, instance_id, store, alone=alone)
            return self.cookie.bookie_id, None
        copy = await find_copy(store, self.bookie_id, alone=alone)
        if copy is None:
            return self.bookie_id, cookie_text(self.bookie_id, directory, instance_id)
        if not self.layout.has_entries():
            missing = BookieMissing(directory, copy.bookie_id)
            if not self.accept_loss:
                raise missing
            log.error(LOSS_ACCEPTED, what=missing)
        return copy.bookie_id, copy.text

    async def _close(self, storage: asyncio.Future[_native.Storage] | None) -> None:
        """Close what has been opened, without hiding the error of the other part."""
        opened = await asyncio.gather(storage, return_exceptions=True) if storage else []
        for each in opened:
            if isinstance(each, _native.Storage):
                each.close(flush=False)
        await self.metadata.close()


class StandaloneData:
    """The data of a standalone process: its metadata, and the storage of its bookie."""

    def __init__(
        self,
        config: Config,
        data_directory: Path,
        accept_loss: bool,
        addresses: Addresses,
        on_step: Callable[[str], None] = ignore_step,
    ) -> None:
        self.on_step = on_step
        self.config = config
        self.data_directory = data_directory
        self.accept_loss = accept_loss
        self.addresses = addresses
        self.metadata = make_metadata_store(config, data_directory)
        self.storage_state: StorageState

    async def open(self) -> tuple[_native.Storage, str]:
        """Open metadata and storage concurrently; return the storage and its bookie's id.

        Threads do the work; they are started before the first await. Raises DataError,
        MetadataError and OSError.
        """
        config = self.config
        layout = self.layout()
        self.on_step(f"the files in {self.data_directory}")
        cookie = examine(layout, self.accept_loss)
        self.storage_state = self._make_storage_state(layout)
        self._check_sizes(is_new=cookie is None)
        self.storage_state.make_room("the disk is full at the start")
        run_in_executor = asyncio.get_running_loop().run_in_executor
        self.storage_state.run_blocking = partial(run_in_executor, None)
        self.metadata.on_no_space = self._make_space_for_metadata
        self.on_step(f"the metadata store {config.metadataStoreUrl or self.metadata.directory}")
        return await DataOpening(
            layout=layout,
            cookie=cookie,
            metadata=self.metadata,
            open_storage=partial(self.open_storage, layout),
            cluster=ClusterSettings(
                cluster=config.clusterName,
                web_service_url=self.addresses.web_url,
                broker_service_url=self.addresses.broker_url,
                web_service_url_tls=self.addresses.web_url_tls,
                broker_service_url_tls=self.addresses.broker_url_tls,
                namespace_bundles=config.defaultNumberOfNamespaceBundles,
                # As in Pulsar's standalone.
                transaction_coordinators=int(config.transactionCoordinatorEnabled),
            ),
            bookie_id=f"{config.advertisedAddress}:{BOOKIE_PORT}",
            accept_loss=self.accept_loss,
            on_step=self.on_step,
        ).run()

    def _make_storage_state(self, layout: Layout) -> StorageState:
        config = self.config
        cache_bytes = config.dbStorage_writeCacheMaxSizeMb << 20
        file_bytes = config.journalMaxSizeMB << 20
        needs = [
            Need(layout.ledgers, 2 * cache_bytes),
            # The journal file in use and its spare stay.
            Need(layout.journal, file_bytes, occupied=2 * file_bytes),
        ]
        if self.metadata.directory is not None:
            needs.append(Need(self.metadata.directory, METADATA_BYTES, METADATA_BYTES))
        reserve_bytes = config.diskReserveSizeMB << 20
        return StorageState(file_systems_of(needs, reserve_bytes), config.diskUsageThreshold)

    def _check_sizes(self, is_new: bool) -> None:
        """Raise ConfigError if a file system is too small for a new data directory.

        Existing data is served, with a warning.
        """
        for each in self.storage_state.file_systems:
            sentence = each.too_small(self.config.diskReserveSizeMB << 20)
            if sentence is not None and is_new:
                raise ConfigError(sentence)
            if sentence is not None:
                log.warning("a file system is too small", reason=sentence)

    def _make_space_for_metadata(self) -> bool:
        """Free disk space for the metadata. Called by its thread when the disk is full."""
        directory = self.metadata.directory
        assert directory is not None, "a store without files has no disk"
        return self.storage_state.release_reserve_on(directory, "the metadata could not be written")

    def layout(self) -> Layout:
        config = self.config
        bookie = self.data_directory / "bookie"
        return Layout(
            bookie,
            journal=_directory(config.journalDirectories, bookie / "journal"),
            ledgers=_directory(config.ledgerDirectories, bookie / "ledgers"),
            metadata=self.metadata.directory,
        )

    def open_storage(self, layout: Layout) -> _native.Storage:
        """Open the storage, which replays the journal. Blocks; runs in a thread."""
        config = self.config
        dirty = config.dbStorage_writeCacheMaxSizeMb << 20
        if not config.journalSyncData:
            log.warning(
                "journalSyncData is false: a power cut loses messages that were acknowledged"
            )
        try:
            return _native.Storage(
                str(layout.journal),
                str(layout.ledgers),
                journal_file_bytes=config.journalMaxSizeMB << 20,
                dirty_bytes_max=dirty,
                cache_bytes_max=2 * dirty + (config.dbStorage_readAheadCacheMaxSizeMb << 20),
                entry_bytes_max=(
                    config.maxMessageSize
                    + FRAME_PADDING
                    + ENTRY_METADATA_BYTES_MAX
                    + ENTRY_HEADER_SIZE_MAX
                ),
                journal_sync_data=config.journalSyncData,
                accept_loss=self.accept_loss,
            )
        except OSError as error:
            error.strerror = layout.with_paths(error.strerror or str(error))
            raise


def _directory(setting: str, default: Path) -> Path:
    """Return the first directory of a setting, or the default."""
    first = setting.split(",")[0].strip()
    return Path(first).absolute() if first else default
