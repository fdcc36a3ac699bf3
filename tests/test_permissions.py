"""What lies below the data directory is for its owner alone, whatever the umask of the process."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import wire
from harness.raw import RawConnection

from command_line import run, standalone

TOPIC = "persistent://public/default/t"
START = "import os, sys; os.umask({}); from pyxbroker.cli import main; main()"


def below(directory: Path) -> Iterator[Path]:
    yield directory
    yield from directory.rglob("*")


def modes_of(directory: Path) -> dict[Path, int]:
    return {path: path.stat().st_mode & 0o777 for path in below(directory)}


def open_to_others(directory: Path) -> dict[str, str]:
    """What is not 0700, or 0600."""
    return {
        path.relative_to(directory).as_posix(): oct(mode)
        for path, mode in modes_of(directory).items()
        if mode != (0o700 if path.is_dir() else 0o600)
    }


def kinds_below(directory: Path) -> set[str]:
    return {path.suffix for path in below(directory) if path.is_file()}


def publish_and_consume(port: int) -> None:
    with RawConnection(port) as connection:
        connection.producer(TOPIC, producer_id=2)
        for sequence_id in range(3):
            connection.send(b"m" * 5000, sequence_id, producer_id=2)
            connection.wait_for(wire.SEND_RECEIPT)
        connection.subscribe(TOPIC, "s")
        connection.flow(3)
        for _ in range(3):
            connection.wait_for(wire.MESSAGE)


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_new_data_directory_is_for_its_owner_alone(tmp_path: Path, umask: int) -> None:
    data = tmp_path / "above" / "data"
    command = [sys.executable, "-c", START.format(umask)]
    with standalone(data, "--set", "diskReserveSizeMB=1", command=command) as broker:
        publish_and_consume(broker.broker_port)
        assert {".db", ".db-wal", ".lock", ".journal", ".changes"} <= kinds_below(data)
        assert open_to_others(data.parent) == {}
        assert broker.stop()[0] == 0
    assert open_to_others(data.parent) == {}
    assert {".log", ".manifest", ".reserve"} <= kinds_below(data)
    copy = tmp_path / "own.copy"
    assert run("metadata", "backup", "--data", data, copy).returncode == 0
    assert copy.stat().st_mode & 0o777 == 0o600


def test_a_data_directory_that_is_there_keeps_its_permissions(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with standalone(data) as broker:
        publish_and_consume(broker.broker_port)
        assert broker.stop()[0] == 0
    for path in below(data):
        path.chmod(0o755 if path.is_dir() else 0o644)
    # Held open, as another file could get the number and the name of one that is gone.
    held = {path: os.open(path, os.O_RDONLY) for path in below(data)}
    try:
        with standalone(data) as broker:
            publish_and_consume(broker.broker_port)
            assert broker.stop()[0] == 0
        for path, descriptor in held.items():
            found = os.fstat(descriptor)
            assert found.st_mode & 0o777 == (0o755 if stat.S_ISDIR(found.st_mode) else 0o644), path
    finally:
        for descriptor in held.values():
            os.close(descriptor)
    kept = [path for path in held if path.exists()]
    assert len(kept) > len(held) // 2
