"""The data of a stopped standalone, for a backup of its files."""

from __future__ import annotations

from pathlib import Path

from pyxbroker import _native
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.properties import ConfigError
from pyxbroker.bookie.cookie import Cookie
from pyxbroker.bookie.layout import Layout
from pyxbroker.broker.listeners import Addresses
from pyxbroker.roles.data import StandaloneData
from pyxbroker.settings.config import Config


class StoppedData(NamedTuple):
    """The files of a data directory whose journal has nothing that its entry logs lack."""

    layout: Layout
    cookie: Cookie
    events: list[str]  # warnings and errors of the storage


def flush_stopped(config: Config, data: Path) -> StoppedData:
    """Write what only the journal has into an entry log, as a start and a stop would do.

    The caller has locked the data directory. Blocks. Raises ConfigError, DataError and OSError.
    """
    standalone = StandaloneData(config, data, False, Addresses())
    layout = standalone.layout()
    if layout.metadata is None:
        raise ConfigError(
            f"The metadata is in {config.metadataStoreUrl}, not in local files; use the tools of"
            " that store for a backup."
        )
    cookie = layout.examine()
    if cookie is None:
        raise ConfigError(f"{data} was never used by pyxbroker standalone.")
    storage = standalone.open_storage(layout)
    try:
        events = _events(storage)
    finally:
        storage.close(flush=True)
    return StoppedData(layout, cookie, events)


def _events(storage: _native.Storage) -> list[str]:
    events = []
    while (event := storage.next_event()) is not None:
        severity, text = event
        if severity > 0:
            events.append(text)
    return events
