"""Settings that can change while the broker runs: Pulsar's dynamic configuration.

The node /admin/configuration stores the values by name, as in Pulsar. All brokers of a cluster
apply them after a restart, and when the metadata store notifies them of a change. A removed setting
returns to its value at the start of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pyxbroker.base.errors import MetadataStoreError
from pyxbroker.base.log import get_logger
from pyxbroker.broker.stored_records import StoredRecords
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataError, MetadataStore, Notification
from pyxbroker.policies.records import Fields
from pyxbroker.settings.config import SCHEMA, Config
from pyxbroker.settings.schema import Value

log = get_logger("pyxbroker.broker")

DYNAMIC = {name: row for name, row in SCHEMA.items() if row.dynamic}


def names() -> frozenset[str]:
    """Return the names of all dynamic settings of Pulsar, including those without effect here."""
    from pyxbroker.settings import java_keys  # large, and no start needs it

    return java_keys.STORED.union(DYNAMIC)


class DynamicSettings:
    """The changeable settings. `on_change` is called when values have changed."""

    def __init__(
        self,
        config: Config,
        store: MetadataStore,
        records: StoredRecords,
        on_change: Callable[[], None],
    ) -> None:
        self._config = config
        self._store = store
        self._records = records
        self._on_change = on_change
        self._at_start: dict[str, Value] = {name: getattr(config, name) for name in DYNAMIC}
        self._reading: asyncio.Task[None] | None = None
        self._is_stale = False
        self._unsubscribe: Callable[[], None] | None = None

    async def open(self) -> None:
        """Apply the stored settings, now and after each change."""
        self._unsubscribe = self._store.watch(self._on_notification, prefix=paths.CONFIGURATION)
        await self._read()
        changed = [name for name, value in self._at_start.items() if value != self._value(name)]
        if changed:
            log.warning(
                "settings that were changed by REST override those of the start",
                settings=", ".join(changed),
                remedy="DELETE /admin/v2/brokers/configuration/NAME restores a setting",
            )

    def _value(self, name: str) -> Value:
        value: Value = getattr(self._config, name)
        return value

    async def close(self) -> None:
        """Stop applying changes."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def values(self) -> dict[str, str]:
        """Return the stored settings. Raises the errors of StoredRecords."""
        return _texts(await self._records.read(paths.CONFIGURATION) or {})

    async def set(self, name: str, text: str) -> None:
        """Set a setting of `names()`. If it is in DYNAMIC, it applies when this returns.

        Raise ValueError for an invalid value, and the errors of StoredRecords.
        """
        row = DYNAMIC.get(name)
        if row is None:
            log.info(
                "the setting is stored, but this broker does not use it",
                setting=name,
            )
        else:
            try:
                row.parse(text)
            except (KeyError, ValueError) as error:
                raise ValueError(row.expected(text)) from error
        await self._change(lambda fields: fields | {name: text})

    async def remove(self, name: str) -> None:
        """Return a setting to its value at the start of the process. Raises the errors of
        StoredRecords.
        """
        await self._change(
            lambda fields: {other: text for other, text in fields.items() if other != name}
        )

    async def _change(self, change: Callable[[Fields], Fields]) -> None:
        # An unreadable record is not overwritten: it may have settings that are needed.
        fields = await self._records.change(paths.CONFIGURATION, change)
        self._apply(_texts(fields))

    def _on_notification(self, notification: Notification) -> None:
        if notification.path != paths.CONFIGURATION:
            return
        self._is_stale = True
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read_again())

    async def _read_again(self) -> None:
        try:
            while self._is_stale:
                self._is_stale = False
                await self._read()
        finally:
            self._reading = None

    async def _read(self) -> None:
        try:
            # The node does not exist before the first setting; the watch reports its creation.
            await self._store.exists(paths.CONFIGURATION, watch=True)
            values = await self.values()
        except (MetadataError, MetadataStoreError) as error:
            log.warning("settings cannot be read; the previous ones stay in force", error=error)
            return
        self._apply(values)

    def _apply(self, values: dict[str, str]) -> None:
        changed = []
        for name, row in DYNAMIC.items():
            value = self._at_start[name]
            if name in values:
                try:
                    value = row.parse(values[name])
                except (KeyError, ValueError):
                    log.error(
                        "a setting in metadata cannot be used",
                        setting=name,
                        expected=row.expected(values[name]),
                    )
                    continue
            if value != self._value(name):
                setattr(self._config, name, value)
                changed.append(name)
        if changed:
            log.info("settings have changed", settings=", ".join(changed))
            self._on_change()


def _texts(fields: Fields) -> dict[str, str]:
    return {name: text for name, text in fields.items() if isinstance(text, str)}
