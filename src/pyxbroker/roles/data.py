"""Opens what a standalone broker keeps, its metadata and its bookie's storage: one belongs to the
other.

Nothing is made or changed before it is known that all of a data directory is there that ever was
(bookie/layout.py). When something else then refuses, what is open is closed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from pyxbroker import _native
from pyxbroker.base.log import get_logger
from pyxbroker.bookie.cookie import (
    Cookie,
    check_cookie,
    cookie_text,
    find_copy,
    keep_copy,
    write_cookie,
)
from pyxbroker.bookie.errors import BookieMissing
from pyxbroker.bookie.layout import Layout
from pyxbroker.cluster.initialize import ClusterSettings, initialize
from pyxbroker.metadata.store import MetadataStore

log = get_logger("pyxbroker.service")

LOSS_ACCEPTED = "a loss is accepted"


def examine(layout: Layout, accept_loss: bool) -> Cookie | None:
    """The cookie of a data directory, None when it is new. Comes before anything is made in it.

    With accept_loss it is prepared to do without what is missing, which the log names. Raises
    DataError and OSError.
    """
    if not accept_loss:
        return layout.examine()
    cookie, losses = layout.accept_losses()
    for each in losses:
        log.error(LOSS_ACCEPTED, what=each)
    return cookie


class DataOpening(NamedTuple):
    """How the parts of one data directory are opened, together."""

    layout: Layout
    cookie: Cookie | None  # what `examine` found
    metadata: MetadataStore
    open_storage: Callable[[], _native.Storage]  # blocking
    cluster: ClusterSettings
    bookie_id: str  # of a bookie that is new
    accept_loss: bool

    async def run(self) -> tuple[_native.Storage, str]:
        """Opens both, side by side where they are known to belong together. Returns the storage
        and the id of its bookie.

        Raises DataError, MetadataError, OSError; nothing is left open then.
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
            opened = await asyncio.shield(storage)
            if text is not None:
                write_cookie(self.layout.bookie, text)
                await keep_copy(bookie_id, text, self.metadata)
            return opened, bookie_id
        except BaseException:
            await self._close(storage)
            raise

    async def _find_bookie_id(self, instance_id: str) -> tuple[str, str | None]:
        """The bookie id that the directory was made for, and the text of a cookie that it lacks."""
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
        """Closes what did open; why the other did not is the error to show."""
        opened = await asyncio.gather(storage, return_exceptions=True) if storage else []
        for each in opened:
            if isinstance(each, _native.Storage):
                each.close(flush=False)
        await self.metadata.close()
