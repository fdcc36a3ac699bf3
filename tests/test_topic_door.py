"""A topic is the only door to its log: who else touches it would have to know of every step."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "pyxbroker"
INSIDE = {"managed_ledger", "cursor"}

# Each file that may touch a topic's log or a subscription's cursor, and why.
DOORS = {
    "broker/topics/persistent.py": "the door to the log",
    "broker/subscriptions/subscription.py": "the door to the cursor",
    "broker/topics/non_persistent.py": "a topic without a log",
    "broker/subscriptions/message_search.py": "reads the log for who asks by REST; changes nothing",
    "broker/topics/entry_view.py": "reads single entries of the log; changes nothing",
    "broker/statistics/internal_stats.py": "tells what the log and cursors are made of",
    "broker/statistics/statistics.py": "tells when something was added",
    "broker/transactions/coordinator_log.py": "a log of its own, without a topic",
    "broker/transactions/coordinators.py": "opens and deletes these logs",
    "broker/transactions/running_coordinator.py": "closes its log",
    "broker/transactions/pending_ack_handle.py": "a log of its own; its cursor",
    "broker/transactions/pending_ack_log.py": "a log of its own, without a topic",
    "broker/transactions/statistics.py": "tells what these logs are made of",
    "broker/transactions/topic_buffer.py": "the part of the topic that ends transactions",
    "admin/resources/transactions.py": "tells what these logs are made of",
    "broker/why/answers.py": "tells which cursors cannot be read",
    "broker/why/delivery.py": "tells where a cursor is",
    "broker/why/opening.py": "tells the state of the log",
    "broker/why/publishing.py": "tells the state of the log",
}
ROOMS = ("admin", "broker", "policies", "roles", "stats")


def touches(text: str) -> list[tuple[int, str]]:
    """Lines that read or write an attribute `managed_ledger` or `cursor` of something."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr in INSIDE:
            found.append((node.lineno, node.attr))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            # getattr(topic, "managed_ledger") is no way around.
            named = {each.value for each in node.args if isinstance(each, ast.Constant)}
            if node.func.id in ("getattr", "setattr"):
                found += [(node.lineno, each) for each in INSIDE & named]
    return sorted(found)


def is_path(line: str) -> bool:
    """`paths.cursor(...)` is where a cursor is in the metadata, not a cursor."""
    return "paths.cursor(" in line or "paths.managed_ledger(" in line


def wrong(path: Path) -> list[str]:
    text = path.read_text()
    lines = text.splitlines()
    return [
        f"{path.relative_to(PACKAGE)}:{number}: .{name}"
        for number, name in touches(text)
        if not is_path(lines[number - 1])
    ]


def test_nobody_reaches_through_a_topic_to_its_log() -> None:
    found = [
        each
        for room in ROOMS
        for path in sorted((PACKAGE / room).rglob("*.py"))
        if path.relative_to(PACKAGE).as_posix() not in DOORS
        for each in wrong(path)
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("door", DOORS)
def test_every_door_is_one(door: str) -> None:
    assert wrong(PACKAGE / door), "a file that needs no exception has none"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("topic.managed_ledger.append(run)", [(1, "managed_ledger")]),
        ("x = 1\nself.subscription.cursor.acks", [(2, "cursor")]),
        ("getattr(topic, 'managed_ledger')", [(1, "managed_ledger")]),
        ("topic.cursor = 3", [(1, "cursor")]),
        ("cursor = managed_ledger(1)", []),
        ("topic.publish(run)", []),
    ],
)
def test_touches_are_found(text: str, found: list[tuple[int, str]]) -> None:
    assert touches(text) == found


def test_dispatchers_know_nothing_of_managed_ledgers() -> None:
    """They read from an entry source, whatever that is."""
    for path in (PACKAGE / "broker" / "dispatch").glob("*.py"):
        assert "pyxbroker.mledger" not in path.read_text(), path.name
        assert "cast(" not in path.read_text(), path.name
