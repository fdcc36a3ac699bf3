"""What a stranger can do, and that the program tells what it sees."""

from __future__ import annotations

import time

import psutil
import pytest
from harness.brokers import Broker

from torture import strangers
from torture.strangers import SCENES, Seen, Stage, play, tells_insides

# That of the uuids sends five gigabytes.
SHORT = [name for name in SCENES if name != "chunk-uuids"]


@pytest.mark.parametrize("name", SHORT)
def test_a_stranger_harms_nobody(name: str) -> None:
    seen = play(SCENES[name])
    assert seen.is_ok, seen.what


def test_a_broker_that_grows_or_takes_too_long_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = []

    def wait(stage: Stage) -> Seen:
        assert stage.broker.process is not None
        processes.append(stage.broker.process.pid)
        while not stage.fate:
            time.sleep(0.01)
        return Seen("waited", True)

    monkeypatch.setattr(strangers, "SCENE_S_MAX", 0.1)
    assert play(wait) == Seen(
        "waited; the broker was killed, for the scene was not over after 0.1 s", False
    )
    monkeypatch.setattr(strangers, "SCENE_S_MAX", 30.0)
    monkeypatch.setattr(strangers, "GROWN_MIB_MAX", -1)
    seen = play(wait)
    assert (seen.is_ok, "killed, for it grew" in seen.what) == (False, True)
    assert not any(psutil.pid_exists(each) for each in processes)


def test_a_broker_that_ended_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    def kill(stage: Stage) -> Seen:
        """Kills it"""
        broker: Broker = stage.broker
        assert broker.process is not None
        broker.process.kill()
        broker.process.wait()
        stage.client()
        return Seen("served", True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCENES, "partitions", kill)
        assert strangers.main(["partitions"]) == 1
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| Kills it | ConnectionRefusedError")
    assert row.endswith("the broker ended with -9 | broken |")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('The broker failed: TypeError("a bytes-like object").', True),
        ("The subscription b'\\xff' is not UTF-8 text.", True),
        ("It cannot be read: /srv/data/metadata.db", True),
        ("The topic persistent://public/default/t has no subscription s.", False),
        ("The broker failed; its log says why, at 4f1c.", False),
    ],
)
def test_names_of_what_is_inside_are_found(text: str, expected: bool) -> None:
    assert tells_insides(text) == expected
