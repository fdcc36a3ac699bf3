"""A stop that waits says in the log for what, and until when."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from metadata_backends import coroutine_test
from pyxbroker.cli import serving
from pyxbroker.metadata.store import SessionEvent
from pyxbroker.roles.broker import ClusterBroker
from pyxbroker.settings.config import Config

SETTINGS = {"metadataStoreUrl": "zk:zoo:2181", "brokerServicePort": "0", "webServicePort": "0"}


class Stopping:
    """A service whose stop never ends."""

    async def stop(self) -> None:
        await asyncio.Event().wait()

    def stop_waits_for(self) -> str:
        return "ZooKeeper"


@coroutine_test
async def test_a_slow_stop_logs_what_it_waits_for_and_until_when(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(serving, "STOP_LOG_INTERVAL_S", 0.05)
    service: Any = Stopping()
    with pytest.raises(serving.StartError, match="did not stop within"):
        await serving._stop(service, 0.2)
    lines = [each for each in caplog.records if each.message.startswith("the stop is waiting")]
    assert lines
    fields: dict[str, Any] = lines[0].__dict__["fields"]
    assert fields["waits_for"] == "ZooKeeper"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*", fields["until"])


@coroutine_test
async def test_a_stop_without_zookeeper_names_it() -> None:
    broker = ClusterBroker(Config.load(overrides=SETTINGS))
    try:
        assert broker.stop_waits_for() == "topics and connections"
        broker._on_session_event(SessionEvent.CONNECTION_LOST)
        assert broker.stop_waits_for().endswith("; ZooKeeper at zoo:2181 is away")
        broker._on_session_event(SessionEvent.RECONNECTED)
        assert "ZooKeeper" not in broker.stop_waits_for()
    finally:
        await broker.abandon()
