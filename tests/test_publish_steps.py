"""Publish steps: SENDs that are dropped, refused or answered before they reach the log."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from one_bookie import read_all, turns, until
from one_broker import TOPIC, Broker, Client, run, section
from pyxbroker.base.errors import NotAllowed
from pyxbroker.broker.topics.publish_steps import Publication, StepOrder
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.entry import EntryRun, Position
from pyxbroker.mledger.state import State
from pyxbroker.proto import PulsarApi as pb

NOWHERE = Position(-1, -1)
NON_PERSISTENT = "non-persistent://public/default/t"

Decide = Callable[[Publication, int], None]


class Step:
    """Decides about the SENDs whose data has a word in it; keeps what it was asked about."""

    def __init__(self, word: bytes, decide: Decide, order: StepOrder = StepOrder.CHECK) -> None:
        self.word = word
        self.order = order
        self.decide = decide
        self.runs: list[list[bytes]] = []

    def check(self, publication: Publication) -> None:
        data = [publication.run.data(index) for index in publication.undecided]
        self.runs.append(data)
        for index, each in zip(publication.undecided, data, strict=True):
            if self.word in each:
                self.decide(publication, index)


def dropping(word: bytes = b"drop") -> Step:
    return Step(word, lambda publication, index: publication.drop(index))


def refusing(word: bytes = b"refuse") -> Step:
    return Step(word, lambda publication, index: publication.refuse(index, NotAllowed("Not this.")))


def answering(word: bytes = b"answer") -> Step:
    return Step(word, lambda publication, index: publication.answer(index, NOWHERE))


ALL = (dropping, refusing, answering)


async def answers(client: Client, count: int) -> list[tuple[int, Any]]:
    """The next answers to SENDs in their order: (sequence id, position or error code)."""
    found: list[tuple[int, Any]] = []
    while len(found) < count:
        kept = []
        for name, message, payload in client._inbox:
            if name == "send_receipt" and len(found) < count:
                where = message.message_id
                found.append((message.sequence_id, (signed(where.ledgerId), signed(where.entryId))))
            elif name == "send_error" and len(found) < count:
                found.append((message.sequence_id, message.error))
            else:
                kept.append((name, message, payload))
        client._inbox = kept
        if len(found) < count:
            await client._read()
    return found


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


class Held:
    """Keeps back what the log confirms until it is let go, so that SENDs stay unanswered."""

    def __init__(self, topic: Topic) -> None:
        self._confirm = topic.managed_ledger.on_run_confirmed
        self.runs: list[EntryRun] = []
        topic.managed_ledger.on_run_confirmed = self.runs.append  # type: ignore[method-assign]

    def let_go(self) -> None:
        runs, self.runs[:] = list(self.runs), []
        for each in runs:
            self._confirm(each)


async def stored(topic: Topic) -> list[bytes]:
    return await read_all(topic.managed_ledger)


def test_dropped_sends_are_neither_stored_nor_answered(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        topic.add_publish_step(dropping())
        client = await broker.client()
        await client.produce()
        for sequence_id, data in enumerate((b"one", b"drop", b"two", b"drop it")):
            client.publish(sequence_id, data)
        got = await answers(client, 2)
        assert [each for each, _ in got] == [0, 2]
        assert got[1][1][1] == got[0][1][1] + 1, "no entry id is used up"
        assert await stored(topic) == [section(b"one"), section(b"two")]
        # It waits until every SEND is settled, those that nobody hears of too.
        answer = await client.request(
            pb.CommandCloseProducer(producer_id=1, request_id=0), "success"
        )
        assert answer.request_id
        assert await client.quiet() == []
        assert broker.node.connections.publish_bytes == 0

    run(tmp_path, scenario)


def test_a_run_of_which_nothing_is_left_does_not_reach_the_log(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        topic.add_publish_step(dropping())
        topic.add_publish_step(answering())
        client = await broker.client()
        await client.produce()
        client.publish(0, b"drop")
        client.publish(1, b"answer")
        assert await answers(client, 1) == [(1, NOWHERE)]
        assert await stored(topic) == []
        assert client.connection.producers[1].pending_sends == 0

    run(tmp_path, scenario)


def test_refused_sends_get_the_error_and_their_neighbours_do_not(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        topic.add_publish_step(refusing())
        client = await broker.client()
        await client.produce()
        for sequence_id, data in enumerate((b"refuse", b"one", b"refuse", b"two")):
            client.publish(sequence_id, data)
        (_, code), (_, one), (_, same), (_, two) = got = await answers(client, 4)
        assert [each for each, _ in got] == [0, 1, 2, 3]
        assert code == same == pb.NotAllowedError
        assert two == (one[0], one[1] + 1)
        assert await stored(topic) == [section(b"one"), section(b"two")]

    run(tmp_path, scenario)


def test_answers_come_in_the_order_of_sends(tmp_path: Path) -> None:
    """A SEND that needs nobody's disk is answered no sooner than those before it."""

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        await client.produce()
        held = Held(topic)
        client.publish(0, b"before there were steps")
        await until(lambda: len(held.runs) == 1)
        topic.add_publish_step(refusing())
        topic.add_publish_step(answering())
        client.publish(1, b"answer")
        await turns()
        client.publish(2, b"stored whole")
        await turns()
        client.publish(3, b"refuse")
        client.publish(4, b"stored")
        await turns()
        client.publish(5, b"answer")
        await until(lambda: len(held.runs) == 3)
        assert await client.quiet() == []
        assert client.connection.producers[1].pending_sends == 6
        held.let_go()
        got = await answers(client, 6)
        assert [each for each, _ in got] == [0, 1, 2, 3, 4, 5]
        assert [got[1][1], got[3][1], got[5][1]] == [NOWHERE, pb.NotAllowedError, NOWHERE]
        assert client.connection.producers[1].pending_sends == 0

    run(tmp_path, scenario)


def test_earlier_steps_decide_and_later_ones_are_not_asked_again(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        first, second = refusing(b"both"), answering(b"both")
        topic.add_publish_step(first)
        topic.add_publish_step(second)
        client = await broker.client()
        await client.produce()
        client.publish(0, b"both")
        client.publish(1, b"neither")
        assert (await answers(client, 2))[0] == (0, pb.NotAllowedError)
        assert first.runs == [[section(b"both"), section(b"neither")]]
        assert second.runs == [[section(b"neither")]]

        def decide_again(publication: Publication, index: int) -> None:
            publication.refuse(index, NotAllowed("no"))
            publication.answer(index, NOWHERE)
            publication.drop(index)

        topic.remove_publish_step(first)
        topic.remove_publish_step(second)
        topic.add_publish_step(Step(b"both", decide_again))
        client.publish(2, b"both")
        assert await answers(client, 1) == [(2, pb.NotAllowedError)]

    run(tmp_path, scenario)


def test_steps_run_in_the_order_of_the_table_and_with_one_order_as_they_were_added(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        seen: list[str] = []

        def noting(name: str, order: StepOrder) -> Step:
            return Step(b"x", lambda publication, index: seen.append(name), order)

        steps = {
            name: noting(name, order)
            for name, order in (
                ("first", StepOrder.CHECK),
                ("policy", StepOrder.POLICY),
                ("second", StepOrder.CHECK),
            )
        }
        for step in steps.values():
            topic.add_publish_step(step)
        client = await broker.client()
        await client.produce()
        client.publish(0, b"x")
        await answers(client, 1)
        assert seen == ["policy", "first", "second"]
        topic.remove_publish_step(steps["first"])
        topic.add_publish_step(steps["first"])
        client.publish(1, b"x")
        await answers(client, 1)
        assert seen[3:] == ["policy", "second", "first"]
        topic.remove_publish_step(steps["first"])
        with pytest.raises(ValueError, match="not in list"):
            topic.remove_publish_step(steps["first"])

    run(tmp_path, scenario)


@pytest.mark.parametrize("name", [TOPIC, NON_PERSISTENT])
def test_without_steps_publishing_is_the_append_itself(tmp_path: Path, name: str) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic(name)
        bare = topic.source.append
        assert topic.publish == bare
        step = dropping()
        topic.add_publish_step(step)
        assert topic.publish != bare
        topic.remove_publish_step(step)
        assert topic.publish == bare

    run(tmp_path, scenario)


def test_steps_of_a_non_persistent_topic(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic(NON_PERSISTENT)
        for make in ALL:
            topic.add_publish_step(make())
        client = await broker.client()
        await client.subscribe(topic=NON_PERSISTENT)
        await client.produce(topic=NON_PERSISTENT)
        await client.quiet()
        for sequence_id, data in enumerate((b"answer", b"one", b"drop", b"refuse", b"two")):
            client.publish(sequence_id, data)
        assert await answers(client, 4) == [
            (0, NOWHERE),
            (1, (0, 0)),
            (3, pb.NotAllowedError),
            (4, (0, 0)),
        ]
        assert [each.data for each in await client.messages(2)] == [b"one", b"two"]
        assert client.connection.producers[1].pending_sends == 0

    run(tmp_path, scenario)


def test_what_the_log_refuses_is_told_beside_what_steps_decided(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        topic.add_publish_step(answering())
        client = await broker.client()
        await client.produce()
        topic.close_producers = lambda: None  # type: ignore[method-assign]
        await topic.terminate()
        client.publish(0, b"answer")
        client.publish(1, b"too late")
        client.publish(2, b"answer")
        assert await answers(client, 3) == [
            (0, NOWHERE),
            (1, pb.TopicTerminatedError),
            (2, NOWHERE),
        ]

    run(tmp_path, scenario)


LATE = pb.TopicTerminatedError


@pytest.mark.parametrize("has_steps", [True, False])
def test_a_send_that_comes_too_late_is_told_after_those_before_it(
    tmp_path: Path, has_steps: bool
) -> None:
    """The log takes nothing more while it confirms what it has: with steps, and without."""

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        if has_steps:
            topic.add_publish_step(answering())
        client = await broker.client()
        await client.produce()
        producer = client.connection.producers[1]
        held = Held(topic)
        client.publish(0, b"stored")
        await until(lambda: len(held.runs) == 1)
        if has_steps:
            client.publish(1, b"answer")
            await until(lambda: producer.pending_sends == 2)
        topic.managed_ledger.state = State.TERMINATED
        for sequence_id, data in ((2, b"late"), (3, b"late, too"), (4, b"answer")):
            client.publish(sequence_id, data)
            await turns()
        waiting = 5 if has_steps else 4
        await until(lambda: producer.pending_sends == waiting)
        assert await client.quiet() == []
        held.let_go()
        [(first, position), *others] = await answers(client, waiting)
        assert (first, position[1]) == (0, 0)
        if has_steps:
            assert others == [(1, NOWHERE), (2, LATE), (3, LATE), (4, NOWHERE)]
        else:
            assert others == [(2, LATE), (3, LATE), (4, LATE)]
        assert producer.pending_sends == 0
        assert broker.node.connections.publish_bytes == 0
        # Nobody is before it now: it is told at once.
        client.publish(5, b"late as well")
        assert await answers(client, 1) == [(5, LATE)]
        topic.managed_ledger.state = State.OPEN

    run(tmp_path, scenario)


WHOLE = (b"a", b"b")
RUNS = (WHOLE, (b"answer", b"c"), WHOLE, (b"answer",), (b"answer", b"d"), WHOLE, WHOLE)
LOST = pb.PersistenceError


@pytest.mark.parametrize("has_steps", [True, False])
@pytest.mark.parametrize("taken_back", range(1, 7))
def test_runs_that_fail_last_first_are_answered_in_order(
    tmp_path: Path, has_steps: bool, taken_back: int
) -> None:
    """What waits for a ledger is taken back from its end; what is before it may still be stored."""

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        await client.produce()
        waiting: list[EntryRun] = []
        topic.managed_ledger.append = waiting.append  # type: ignore[method-assign]
        step = answering()
        topic.add_publish_step(step)
        if not has_steps:
            topic.remove_publish_step(step)
        expected: list[tuple[int, Any]] = []
        for at, sends in enumerate(RUNS):
            for data in sends:
                is_answered = has_steps and data == b"answer"
                expected.append((len(expected), NOWHERE if is_answered else at))
                client.publish(expected[-1][0], data)
            await until(lambda: client.connection.producers[1].pending_sends == len(expected))
        of_log = sorted({at for _, at in expected if at is not NOWHERE})
        lost = of_log[-taken_back:]
        for _ in lost:
            topic.managed_ledger.on_run_taken_back(waiting.pop())
        for at, each in enumerate(waiting):
            each.ledger_id, each.first_entry_id = 7, 100 * at
            each.owner.on_run_added(each)
        got = await answers(client, len(expected))
        assert [each for each, _ in got] == [each for each, _ in expected]
        for (_, outcome), (_, at) in zip(got, expected, strict=True):
            if at is NOWHERE or at in lost:
                assert outcome == (NOWHERE if at is NOWHERE else LOST)
            else:
                assert outcome[1] // 100 == of_log.index(at)
        assert client.connection.producers[1].pending_sends == 0
        assert broker.node.connections.publish_bytes == 0

    run(tmp_path, scenario)


def test_a_step_that_breaks_costs_its_client_the_connection_and_no_more(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()

        class Broken:
            order = StepOrder.CHECK

            def check(self, publication: Publication) -> None:
                raise ZeroDivisionError("a defect of the step")

        broken = Broken()
        topic.add_publish_step(broken)
        client = await broker.client()
        await client.produce()
        client.publish(0, b"x")
        await client.closed()
        assert broker.node.connections.publish_bytes == 0
        topic.remove_publish_step(broken)
        other = await broker.client()
        await other.produce()
        other.publish(0, b"y")
        await answers(other, 1)
        assert await stored(topic) == [section(b"y")]

    run(tmp_path, scenario)


@pytest.mark.parametrize("seed", range(20))
def test_any_decisions_in_any_runs(tmp_path: Path, seed: int) -> None:
    """Every SEND that is not dropped is answered once and in order; the log has the others."""
    chance = random.Random(seed)

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        await client.produce()
        producer = client.connection.producers[1]
        held = Held(topic)
        steps = [make() for make in ALL]
        expected: list[tuple[int, str]] = []
        kept: list[bytes] = []
        sent = 0
        has_steps = False
        for _ in range(30):
            had_steps, has_steps = has_steps, chance.random() < 0.8
            if has_steps != had_steps:
                change = topic.add_publish_step if has_steps else topic.remove_publish_step
                for step in steps:
                    change(step)
            for _ in range(chance.randint(1, 6)):
                word = chance.choice(["drop", "refuse", "answer", "store", "store"])
                data = b"%s %d" % (word.encode(), sent)
                client.publish(sent, data)
                if word == "store" or not has_steps:
                    kept.append(section(data))
                    expected.append((sent, "store"))
                elif word != "drop":
                    expected.append((sent, word))
                sent += 1
            await until(lambda sent=sent: producer.msg_in == sent)
            if chance.random() < 0.4:
                held.let_go()
        await until(
            lambda: (
                sum(run.count for run in held.runs) + topic.managed_ledger.entries_added
                == len(kept)
            )
        )
        held.let_go()
        got = await answers(client, len(expected))
        kinds = {NOWHERE: "answer", pb.NotAllowedError: "refuse"}
        assert [(each, kinds.get(outcome, "store")) for each, outcome in got] == expected
        positions = [outcome for _, outcome in got if outcome not in kinds]
        assert [entry_id for _, entry_id in positions] == list(range(len(kept)))
        assert await stored(topic) == kept
        assert producer.pending_sends == 0
        assert await client.quiet() == []

    run(tmp_path, scenario)
