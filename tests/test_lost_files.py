"""Files of a data directory that somebody deleted: named in a sentence, never made anew in silence.

Real processes on a copy of a data directory that a short run and a kill -9 left: messages in entry
logs, messages in the journal only, and a metadata log that was not folded in.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import wire
from harness.raw import RawConnection

from command_line import ANY_PORTS, complaints, error_line, run, standalone

TOPIC = "persistent://public/default/t"

# Each with a glob below the data directory; all that it finds is deleted.
LOST = {
    "cookie": "bookie/current/VERSION",
    "cookie's directory": "bookie/current",
    "bookie": "bookie",
    "journal directory": "bookie/journal",
    "journal file": "bookie/journal/*.journal",
    "entry log directory": "bookie/ledgers",
    "entry log": "bookie/ledgers/*.log",
    "metadata directory": "metadata",
    "metadata database": "metadata/metadata.db",
}


def publish(port: int, count: int) -> None:
    with RawConnection(port) as connection:
        connection.producer(TOPIC)
        for number in range(count):
            connection.send(b"m" * 100, number)
            connection.expect(wire.SEND_RECEIPT)


def receive(port: int, count: int) -> None:
    """A new subscription gets that many messages."""
    with RawConnection(port) as connection:
        assert connection.subscribe(TOPIC).type == wire.SUCCESS
        connection.flow(100)
        for _ in range(count):
            connection.wait_for(wire.MESSAGE)


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory after a clean stop, another start, and a kill -9."""
    data = tmp_path_factory.mktemp("left") / "data"
    with standalone(data) as broker:
        with RawConnection(broker.broker_port) as connection:
            assert connection.subscribe(TOPIC).type == wire.SUCCESS
        publish(broker.broker_port, 20)
        assert broker.stop()[0] == 0
    with standalone(data) as broker:
        publish(broker.broker_port, 20)
        broker.stop(signal.SIGKILL)
    return data


@pytest.fixture
def data(left_behind: Path, tmp_path: Path) -> Iterator[Path]:
    copy = tmp_path / "data"
    shutil.copytree(left_behind, copy)
    yield copy
    shutil.rmtree(copy)


def lose(data: Path, pattern: str) -> Path:
    """Deletes what the pattern finds; returns the last of it."""
    found = sorted(data.glob(pattern))
    assert found, f"the run left no {pattern}"
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return found[-1]


def names(data: Path) -> set[str]:
    return {path.relative_to(data).as_posix() for path in data.rglob("*")}


@pytest.mark.parametrize("kind", LOST)
def test_a_lost_file_is_named_and_nothing_is_made_in_its_place(data: Path, kind: str) -> None:
    lost = lose(data, LOST[kind])
    before = names(data)
    finished = run("standalone", "--data", data, *ANY_PORTS)
    assert finished.returncode == 1, finished.stderr
    sentence = error_line(finished)
    assert lost.name in sentence
    assert "--accept-loss" in sentence
    # A store that was opened and closed after the kill goes on in a new change log.
    own = () if kind.startswith("metadata") else ("metadata.copies/", "metadata/metadata.reserve")
    made = {each for each in names(data) - before if not each.startswith(own)}
    assert made == set()


@pytest.mark.parametrize("kind", LOST)
def test_a_broker_starts_without_a_lost_file_when_the_loss_is_accepted(
    data: Path, kind: str
) -> None:
    lose(data, LOST[kind])
    with standalone(data, "--accept-loss") as broker:
        publish(broker.broker_port, 1)
        code, _, err = broker.stop()
    assert code == 0, err
    assert "Traceback" not in err
    assert re.search(r" ERROR .*(a loss is accepted|is missing|--accept-loss)", err), err
    # Once accepted it is over.
    with standalone(data) as broker:
        publish(broker.broker_port, 1)
        code, _, err = broker.stop()
    assert (code, re.findall(" ERROR .*", err)) == (0, [])


def test_without_its_bookie_there_are_all_topics_and_subscriptions_and_no_message(
    data: Path,
) -> None:
    lose(data, LOST["bookie"])
    options = ("--accept-loss", "--set", "allowAutoSubscriptionCreation=false")
    with standalone(data, *options) as broker, RawConnection(broker.broker_port) as one:
        one.command(wire.GET_TOPICS_OF_NAMESPACE, {1: 7, 2: "public/default"})
        assert one.receive().fields[2] == [TOPIC.encode()]
        assert one.subscribe(TOPIC, "new").type == wire.ERROR
        assert one.subscribe(TOPIC).type == wire.SUCCESS, "so this one is there"
        one.flow(100)
        with pytest.raises(TimeoutError):
            one.wait_for(wire.MESSAGE, 0.5)
        publish(broker.broker_port, 1)
        assert wire.parse_payload(one.wait_for(wire.MESSAGE).rest).body == b"m" * 100


def test_a_lost_log_of_the_metadata_is_made_up_for_and_named(data: Path) -> None:
    """What SQLite had not folded in is in the store's own log of changes as well."""
    lose(data, "metadata/metadata.db-wal")
    with standalone(data) as broker:
        receive(broker.broker_port, 40)
        code, _, err = broker.stop()
    assert code == 0
    assert re.search(" ERROR metadata.*metadata.db", err)
    assert "Traceback" not in err


def test_copies_alone_are_not_taken_for_a_new_directory(data: Path) -> None:
    """All but the copies of the metadata was deleted: what was there can be had again."""
    lose(data, "metadata")
    lose(data, "bookie")
    before = names(data)
    finished = run("standalone", "--data", data, *ANY_PORTS)
    assert finished.returncode == 1
    assert "pyxbroker metadata restore" in error_line(finished)
    assert names(data) == before
    restored = run("metadata", "restore", "--yes", "--data", data)
    assert restored.returncode == 0, restored.stderr
    lose(data, "metadata")
    with standalone(data, "--accept-loss") as broker:
        publish(broker.broker_port, 1)
        assert broker.stop()[0] == 0
    assert len(list(data.glob("metadata.copies.lost-*"))) == 1


def test_a_lost_lock_is_nothing(data: Path) -> None:
    lose(data, "pyxbroker.lock")
    with standalone(data) as broker:
        publish(broker.broker_port, 1)
        assert broker.stop()[0] == 0


def test_without_its_metadata_the_bookie_is_set_aside_and_not_deleted(data: Path) -> None:
    """New ledgers begin at 0 again: they must not meet the old entries under their ids."""
    logs = sorted(each.read_bytes() for each in data.glob("bookie/ledgers/*.log"))
    lose(data, "metadata")
    with standalone(data, "--accept-loss") as broker:
        publish(broker.broker_port, 30)
        receive(broker.broker_port, 30)
        assert broker.stop()[0] == 0
    [aside] = data.glob("bookie.lost-*")
    assert sorted(each.read_bytes() for each in aside.glob("ledgers/*.log")) == logs


# Ends the process without a word before or after a step of its start.
KILLED = """
import os, sys, time
from pyxbroker import _native
from pyxbroker.roles import data
where, step = sys.argv.pop(1).split()
owner = _native if step == "Storage" else data
call = getattr(owner, step)
def ending(*args, **kwargs):
    if where == "after":
        kept = call(*args, **kwargs)
    os._exit(9)
setattr(owner, step, ending)
from pyxbroker.cli import main
main()
"""


@pytest.mark.parametrize(
    "moment",
    [
        "before initialize",
        "before Storage",
        "after Storage",
        "before find_copy",
        "before write_cookie",
        "after write_cookie",
        "before store_copy",
    ],
)
def test_a_first_start_that_was_killed_at_any_moment_is_no_loss(
    tmp_path: Path, moment: str
) -> None:
    """The parts are made in an order in which what is there never asks for what is not."""
    command = [sys.executable, "-c", KILLED, moment, "standalone", "--data", str(tmp_path / "data")]
    killed = subprocess.run([*command, *ANY_PORTS], capture_output=True, timeout=30, check=False)
    assert (killed.returncode, killed.stderr) == (9, b"")
    with standalone(tmp_path / "data") as broker:
        publish(broker.broker_port, 1)
        code, _, err = broker.stop()
    assert (code, complaints(err)) == (0, [])


def test_lost_metadata_comes_back_from_its_copies_to_the_last_change(data: Path) -> None:
    lose(data, "metadata")
    restored = run("metadata", "restore", "--yes", "--data", data)
    assert restored.returncode == 0, restored.stderr
    with standalone(data) as broker:
        receive(broker.broker_port, 40)
        assert broker.stop()[0] == 0


def test_a_lost_cookie_comes_back_by_repair(data: Path) -> None:
    text = (data / "bookie" / "current" / "VERSION").read_text()
    cookie = lose(data, "bookie/current/VERSION")
    checked = run("metadata", "check", "--data", data)
    assert checked.returncode == 1
    assert f"{cookie}: the cookie is missing" in checked.stdout
    repaired = run("metadata", "repair", "--data", data)
    assert repaired.returncode == 0, repaired.stdout + repaired.stderr
    assert f"repaired: {cookie}" in repaired.stdout
    assert cookie.read_text() == text
    with standalone(data) as broker:
        assert broker.stop()[0] == 0
    checked = run("metadata", "check", "--data", data)
    assert (checked.returncode, checked.stderr) == (0, "")
