"""What the ZooKeeper store makes of answers, without a server: those that come once in a while."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from kazoo.exceptions import BadVersionError, RolledBackError

from pyxbroker.metadata import zookeeper_operations
from pyxbroker.metadata.store import BadVersion, Put, PutResult
from pyxbroker.metadata.watchers import Watchers
from pyxbroker.metadata.zookeeper_operations import Operations


@pytest.mark.parametrize(
    ("repeated", "value", "version", "is_done"),
    [
        (True, b"2", 4, True),
        (True, b"other", 4, False),
        (True, b"2", 5, False),
        (False, b"2", 4, False),
    ],
    ids=["ours", "another value", "another version", "not repeated"],
)
def test_several_writes_that_are_refused_are_done_when_an_attempt_before_did_them(
    repeated: bool, value: bytes, version: int, is_done: bool
) -> None:
    client = MagicMock()
    steps = Operations(client, MagicMock(), Watchers()).put_all(
        [Put("/a", b"1"), Put("/b", b"2", 3)], repeated
    )
    assert len(next(steps)) == 1, "all of them in one request"
    refused = [RolledBackError(), BadVersionError()]
    if not repeated:
        with pytest.raises(BadVersion):
            steps.send([refused])
        return
    (look,) = steps.send([refused])
    look()
    client.get_async.assert_called_once_with("/b")
    found = [(value, SimpleNamespace(version=version))]
    with pytest.raises(StopIteration if is_done else BadVersion) as end:
        steps.send(found)
    if is_done:
        assert end.value.value == [PutResult("/a", 0), PutResult("/b", 4)]


def test_of_too_many_parents_all_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_operations, "KNOWN_PARENTS_MAX", 4)
    client = MagicMock()
    operations = Operations(client, MagicMock(), Watchers())

    def created_for(path: str) -> list[str]:
        """What one write creates."""
        client.create_async.reset_mock()
        for request in next(operations.put_new(path, b"", False, False)):
            request()
        return [call.args[0] for call in client.create_async.call_args_list]

    assert created_for("/a/b/1") == ["/a", "/a/b", "/a/b/1"]
    assert created_for("/a/b/2") == ["/a/b/2"]
    assert created_for("/a/c/1") == ["/a/c", "/a/c/1"], "/, /a, /a/b and /a/c are four"
    assert created_for("/a/b/3") == ["/a/b/3"]
    assert created_for("/a/d/1") == ["/a/d", "/a/d/1"]
    assert created_for("/a/b/4") == ["/a", "/a/b", "/a/b/4"]
