"""The torture itself: it must see every write of the broker, and it must be able to fail."""

from __future__ import annotations

import asyncio
import hashlib
import random
from pathlib import Path

import pytest
from harness.brokers import Broker

from torture.cut import Mode, PowerCut
from torture.load import Load, make_topics, verify
from torture.model import TopicCheck, Verdict
from torture.run import TRYING_ROUNDS, main
from torture.simulator import Simulator, build_library


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("library"))


def digests(root: Path) -> dict[str, str]:
    """Every file below ``root`` with the digest of its content, every folder with an empty one."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else ""
        for path in root.rglob("*")
    }


def test_taking_back_every_change_gives_the_tree_of_the_start(
    library: Path, tmp_path: Path
) -> None:
    simulator = Simulator(library, tmp_path / "root")
    broker = Broker("pyxbroker", tmp_path / "broker", environment=simulator.environment())
    broker.data = simulator.root / "data"
    topics = make_topics(random.Random(1), 1)

    async def work(seconds: float) -> None:
        broker.start()
        load = Load(topics, random.Random(2))
        running = asyncio.ensure_future(load.run(broker.port))
        await asyncio.sleep(seconds)
        broker.kill()
        await running

    try:
        asyncio.run(work(1.5))
        simulator.forget()
        before = digests(simulator.root)
        asyncio.run(work(1.5))
        assert digests(simulator.root) != before
        cut = PowerCut(simulator.root, simulator.log, random.Random(0), Mode.NOTHING)
        cut.forget_syncs()
        report = cut.apply()
        assert report.changes > 50, "the broker hardly wrote"
        assert digests(simulator.root) == before
    finally:
        broker.close()


def test_a_broker_that_does_not_sync_is_found_out(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--cut-rounds 5 --seed 1 --ready-limit-s 60 --set journalSyncData=false"
    assert main(arguments.split()) == 1
    assert "acknowledged messages lost" in capsys.readouterr().out


def test_a_lost_message_is_found_out(tmp_path: Path) -> None:
    broker = Broker("pyxbroker", tmp_path / "broker")
    topics = make_topics(random.Random(3), 1)

    async def scenario() -> Verdict:
        broker.start()
        load = Load(topics, random.Random(3))
        running = asyncio.ensure_future(load.run(broker.port))
        await asyncio.sleep(0.7)
        load.stop()
        await running
        producer = topics[0].producers[0]
        # A promise the broker never made stands for one that it broke.
        producer.received[10**9] = (10**6, 0)
        verdict = Verdict()
        await verify(broker.port, topics, verdict, acks_are_durable=True)
        return verdict

    try:
        problems = asyncio.run(scenario()).problems
    finally:
        broker.close()
    assert any("1 acknowledged messages lost" in problem for problem in problems), problems
    assert any("were not delivered" in problem for problem in problems), problems


def test_an_acknowledgement_that_was_forgotten_is_found_out() -> None:
    [topic, *_] = make_topics(random.Random(4), 1)
    topic.subscribed = True
    topic.acked_with_receipt.add((3, 4))
    for durable, found in ((True, 1), (False, 0)):
        check = TopicCheck(topic)
        check.delivered.add((3, 4))
        assert len(check.finish(durable)) == found


def test_a_broker_that_refuses_the_load_is_found_out(tmp_path: Path) -> None:
    settings = {"allowAutoTopicCreation": "false"}
    broker = Broker("pyxbroker", tmp_path / "broker", settings=settings)
    load = Load(make_topics(random.Random(5), 1), random.Random(5))
    try:
        broker.start()
        asyncio.run(load.run(broker.port))
    finally:
        broker.close()
    assert ["refused" in each for each in load.problems] == [True]


def test_few_rounds_in_which_nothing_is_acknowledged_are_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torture.run.run_kind", lambda *_: Verdict())
    assert main(["--cut-rounds", "1"]) == 0
    assert main(["--cut-rounds", str(TRYING_ROUNDS)]) == 1
