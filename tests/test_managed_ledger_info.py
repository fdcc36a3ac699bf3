"""What metadata says of a topic that has a very long history."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from loop_turns import counted_turns
from metadata_backends import coroutine_test
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.statistics import managed_ledger_info
from pyxbroker.broker.statistics.managed_ledger_info import read_info
from pyxbroker.metadata import paths
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.mledger import records
from pyxbroker.proto import MLDataFormats

NAME = TopicName.get("persistent://t/n/old")
PATH = paths.managed_ledger(NAME.managed_ledger_name)
MANY = 2_000


@coroutine_test
async def test_thousands_of_ledgers_and_properties_are_told_in_slices() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("pyxbroker.base.slices.SLICE_S", 0)
        info = MLDataFormats.ManagedLedgerInfo()
        cursor = MLDataFormats.ManagedCursorInfo(cursorsLedgerId=-1)
        for number in range(MANY):
            info.ledgerInfo.add(ledgerId=number, entries=1)
            info.properties.add(key=f"k{number}", value="v")
            cursor.cursorProperties.add(name=f"k{number}", value="v")
            cursor.properties.add(name=f"k{number}", value=number)
        store = MemoryStore()
        await store.open()
        await store.put(PATH, records.encode_managed_ledger_info(info))
        await store.put(f"{PATH}/s", records.encode_managed_cursor_info(cursor))
        async with counted_turns() as turn:
            ledgers: Counter[int] = Counter()
            tell = managed_ledger_info._ledger

            def told(ledger: Any) -> dict[str, Any]:
                ledgers[turn()] += 1
                return tell(ledger)

            lasted: list[int] = []
            tell_properties = managed_ledger_info._properties

            async def told_properties(*arguments: Any) -> dict[str, Any]:
                began = turn()
                found = await tell_properties(*arguments)
                lasted.append(turn() - began)
                return found

            monkeypatch.setattr(managed_ledger_info, "_ledger", told)
            monkeypatch.setattr(managed_ledger_info, "_properties", told_properties)
            answer = await read_info(store, NAME)
        await store.close()
    assert max(ledgers.values()) == 1
    assert len(lasted) == 3 and min(lasted) >= MANY - 1
    assert [each["ledgerId"] for each in answer["ledgers"]] == list(range(MANY))
    properties = {f"k{number}": "v" for number in range(MANY)}
    assert answer["properties"] == answer["cursors"]["s"]["cursorProperties"] == properties
    assert answer["cursors"]["s"]["properties"]["k7"] == 7
