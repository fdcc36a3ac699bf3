"""Requests that hold a subscription while it is deleted, made anew, moved, or its topic unloaded:
nothing of the former cursor is written any more, and no topic is lost for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from one_bookie import LIMITS, Node, append, until
from one_bookie import NAME as LEDGER
from one_bookie import run as run_node
from one_broker import TOPIC, Client
from pyxbroker.base.errors import ServiceNotReady
from pyxbroker.base.system_cursors import COMPACTION
from pyxbroker.broker.subscriptions import subscription as subscriptions
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.entry import Position
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore, Unavailable
from pyxbroker.mledger.cursor import Cursor, CursorClosed, CursorDeleted, CursorError
from pyxbroker.mledger.state import State
from pyxbroker.proto import PulsarApi as pb
from test_admin_topics import DONE, P, Rest, run
from test_cursor import PATH, made, reopened, stored
from test_expiry import NOW_S, message

NAMESPACE = "public/default"
SUBSCRIPTIONS = f"{P}/t/subscription"
REQUESTS = {
    "expire": ("POST", f"{P}/t/all_subscription/expireMessages/1"),
    "truncate": ("DELETE", f"{P}/t/truncate"),
}
NAMED = {
    "skip": ("POST", f"{SUBSCRIPTIONS}/b/skip/1"),
    "skip all": ("POST", f"{SUBSCRIPTIONS}/b/skip_all"),
    "expire": ("POST", f"{SUBSCRIPTIONS}/b/expireMessages/1"),
}


class Gate:
    """Holds an operation of a store up, before it is issued or before it is answered."""

    def __init__(
        self, store: MetadataStore, operation: str, path: str, after: bool = False
    ) -> None:
        self._operation: Callable[..., Any] = getattr(store, operation)
        self._path = path
        self._after = after
        self._open = asyncio.Event()
        self.reached = 0
        setattr(store, operation, lambda *asked: asyncio.ensure_future(self._held(*asked)))

    async def _held(self, path: str, *more: Any) -> Any:
        if path != self._path:
            return await self._operation(path, *more)
        self.reached += 1
        if self._after:
            result = await self._operation(path, *more)
            await self._open.wait()
            return result
        await self._open.wait()
        return await self._operation(path, *more)

    def open(self) -> None:
        self._open.set()


def node_of(name: str) -> str:
    return paths.cursor("public/default/persistent/t", name)


async def filled(rest: Rest, *names: str, count: int = 10) -> PersistentTopic:
    """A topic with old messages, and subscriptions before them."""
    topic = await rest.broker.topic(TOPIC)
    assert isinstance(topic, PersistentTopic)
    topic.wall_clock = lambda: NOW_S
    for each in names:
        await topic.subscription_for(each, topic.first_position(), {}, True)
    await append(topic.managed_ledger, *[message(60.0)] * count)
    return topic


async def opened_anew(rest: Rest, topic: PersistentTopic) -> PersistentTopic:
    """Unloads it if it is open, and opens it again."""
    await rest.broker.topics.deletion.unload(topic.name)
    successor = await rest.broker.topic(TOPIC)
    assert isinstance(successor, PersistentTopic)
    assert successor is not topic
    return successor


async def serves(topic: PersistentTopic) -> bool:
    """Whether it can be published to, and is no other broker's."""
    await append(topic.managed_ledger, message(0.0))
    return not topic.fenced and topic.managed_ledger.state is State.OPEN


# --- cursors --------------------------------------------------------------------------------------


def test_a_cursor_that_was_closed_writes_nothing(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 10)
        ledger = managed_ledger.last_confirmed.ledger_id
        cursor.acknowledge_positions([(ledger, 0)])
        await managed_ledger.close()
        successor = await reopened(node)
        before = await node.store.get(PATH)
        assert cursor.acknowledge_positions([(ledger, 1)]) == 0
        assert cursor.acknowledge_up_to((ledger, 5)) == 0
        for ask in (
            cursor.persist,
            lambda: cursor.set_properties({"a": "b"}),
            lambda: cursor.put_property("a", 1),
        ):
            with pytest.raises(CursorClosed, match="try again"):
                await ask()
        with pytest.raises(CursorClosed):
            cursor.reset(Position(ledger, -1))
        assert await node.store.get(PATH) == before
        assert managed_ledger.state is State.CLOSED
        successor.acknowledge_positions([(ledger, 1)])
        await successor.persist()
        assert successor.managed_ledger.state is State.OPEN

    run_node(tmp_path, scenario)


def test_a_deleted_cursor_is_not_written_over_one_that_was_made_anew(tmp_path: Path) -> None:
    """Both nodes have the same version."""

    async def scenario(node: Node) -> None:
        managed_ledger, former = await made(node, 10)
        former.acknowledge_up_to(managed_ledger.last_confirmed)
        await former.delete()
        cursor = Cursor(managed_ledger, "c", managed_ledger.first_position())
        managed_ledger.cursors["c"] = cursor
        await cursor.create_node()
        with pytest.raises(CursorDeleted, match="deleted"):
            await former.persist()
        assert (await stored(node)).acks.mark_delete == managed_ledger.first_position()
        assert managed_ledger.state is State.OPEN
        await managed_ledger.close()
        assert (await reopened(node)).backlog == 10

    run_node(tmp_path, scenario)


def test_a_write_under_way_ends_before_its_node_is_deleted(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 10)
        gate = Gate(node.store, "put", PATH)
        cursor.acknowledge_up_to(managed_ledger.last_confirmed)
        written = cursor.persist()
        await until(lambda: gate.reached == 1)
        deleting = asyncio.ensure_future(cursor.delete())
        await asyncio.sleep(0)
        late = cursor.persist()
        gate.open()
        await asyncio.gather(written, deleting)
        with pytest.raises(CursorDeleted):
            await late
        assert not await node.store.exists(PATH)
        assert managed_ledger.state is State.OPEN

    run_node(tmp_path, scenario)


def test_who_closes_waits_for_a_deletion(tmp_path: Path) -> None:
    """Else whoever opens the managed ledger next would lose a node that it has read already."""

    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 1)
        gate = Gate(node.store, "delete", PATH)
        deleting = asyncio.ensure_future(cursor.delete())
        await until(lambda: gate.reached == 1)
        closing = asyncio.ensure_future(managed_ledger.close())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not closing.done()
        gate.open()
        await asyncio.gather(deleting, closing)
        assert "c" not in (await node.open()).cursors

    run_node(tmp_path, scenario)


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_cursor_whose_deletion_failed_goes_on(tmp_path: Path, is_gone: bool) -> None:
    """Whether its node is there still or not, which nobody knows; what waited is written."""

    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 10, LIMITS._replace(mark_delete_per_s=200.0))
        delete = node.store.delete

        async def fail(*asked: Any) -> None:
            if is_gone:
                await delete(*asked)
            raise Unavailable("the answer did not come")

        node.store.delete = fail  # type: ignore[method-assign, assignment]
        cursor.acknowledge_up_to(managed_ledger.last_confirmed)
        with pytest.raises(Unavailable):
            await cursor.delete()
        node.store.delete = delete  # type: ignore[method-assign]
        await until(lambda: cursor.last_entry_id >= 0)
        await cursor.persist()
        assert managed_ledger.state is State.OPEN
        await managed_ledger.close()
        cursor = await reopened(node)
        assert cursor.backlog == 0
        await cursor.delete()
        assert not await node.store.exists(PATH)

    run_node(tmp_path, scenario)


@pytest.mark.parametrize("how", ["persist", "close"])
def test_a_node_that_another_broker_made_anew_is_left_alone(tmp_path: Path, how: str) -> None:
    """Its version is that of the former one."""

    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 10)
        node.store.is_shared = True
        found = await node.store.get(PATH)
        assert found is not None
        await node.store.delete(PATH)
        other = await node.store.put(PATH, b"somebody else's")
        assert other.version == found.version
        cursor.acknowledge_up_to(managed_ledger.last_confirmed)
        with pytest.raises(CursorError, match="another broker"):
            await getattr(cursor, how)()
        found = await node.store.get(PATH)
        assert found is not None
        assert found.value == b"somebody else's"
        assert managed_ledger.state is State.FENCED

    run_node(tmp_path, scenario)


def test_cursors_that_nobody_else_has_are_written_and_opened_again(tmp_path: Path) -> None:
    """Also in a store that others share."""

    async def scenario(node: Node) -> None:
        node.store.is_shared = True
        managed_ledger, cursor = await made(node, 3)
        first, *_ = (Position(managed_ledger.last_confirmed.ledger_id, n) for n in range(3))
        cursor.acknowledge_up_to(first)
        await cursor.persist()
        await managed_ledger.close()
        cursor = await reopened(node)
        assert cursor.backlog == 2
        cursor.acknowledge_up_to(cursor.managed_ledger.last_confirmed)
        await cursor.persist()
        await cursor.managed_ledger.close()
        assert (await reopened(node)).backlog == 0

    run_node(tmp_path, scenario)


def test_a_managed_ledger_that_failed_deletes_and_writes_no_cursor(tmp_path: Path) -> None:
    """Another broker may have it by then."""

    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 10)
        gate = Gate(node.store, "put", f"{paths.managed_ledger(LEDGER)}")
        cursor.acknowledge_up_to(managed_ledger.last_confirmed)
        written = cursor.persist()
        deleting = asyncio.ensure_future(cursor.delete())
        await asyncio.sleep(0)
        managed_ledger.fence("a test")
        gate.open()
        outcomes = await asyncio.gather(written, deleting, return_exceptions=True)
        assert [type(each) for each in outcomes] == [CursorClosed, CursorClosed]
        await managed_ledger.settle()
        successor = await reopened(node)
        assert successor.backlog == 10

    run_node(tmp_path, scenario)


# --- requests for all subscriptions ---------------------------------------------------------------


@pytest.mark.parametrize("what", REQUESTS)
@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_subscription_that_is_deleted_meanwhile_is_passed_over(
    tmp_path: Path, what: str, is_made_anew: bool
) -> None:
    """And one that is made anew under its name keeps what it has to get."""

    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "a", "b", "c")
        gate = Gate(rest.broker.node.store, "put", node_of("a"))
        asking = asyncio.ensure_future(rest(*REQUESTS[what]))
        await until(lambda: gate.reached == 1)
        assert await rest("DELETE", f"{SUBSCRIPTIONS}/b") == DONE
        if is_made_anew:
            assert await rest("PUT", f"{SUBSCRIPTIONS}/b", '"earliest"') == DONE
        gate.open()
        assert await asking == DONE
        assert await serves(topic)
        topic = await opened_anew(rest, topic)
        found = {name: each.backlog for name, each in sorted(topic.subscriptions.items())}
        anew = {"b": 11} if is_made_anew else {}
        assert found == {"a": 1, **anew, "c": 1}

    run(tmp_path, scenario)


@pytest.mark.parametrize("what", REQUESTS)
def test_a_topic_that_is_unloaded_meanwhile_serves_whoever_opens_it(
    tmp_path: Path, what: str
) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "a", "b", "c")
        gate = Gate(rest.broker.node.store, "put", node_of("a"))
        asking = asyncio.ensure_future(rest(*REQUESTS[what]))
        await until(lambda: gate.reached == 1)
        unloading = asyncio.ensure_future(rest("PUT", f"{P}/t/unload"))
        await until(lambda: topic.subscriptions["c"].cursor.closed)
        gate.open()
        assert await unloading == DONE
        topic = await opened_anew(rest, topic)
        status, answer = await asking
        assert (status, "try again" in answer["reason"]) == (503, True)
        for each in "abc":
            assert await rest("POST", f"{SUBSCRIPTIONS}/{each}/skip/1") == DONE
        assert await serves(topic)

    run(tmp_path, scenario)


# --- requests for one -----------------------------------------------------------------------------


@pytest.mark.parametrize("what", NAMED)
def test_who_asks_for_a_subscription_that_is_deleted_meanwhile_is_told(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "b")
        skip_to = subscriptions.Subscription.skip_to

        async def skip_slowly(subscription: subscriptions.Subscription, mark: Position) -> int:
            skipped = await skip_to(subscription, mark)
            await asyncio.sleep(0)
            await topic.delete_subscription("b", force=False)
            return skipped

        monkeypatch.setattr(subscriptions.Subscription, "skip_to", skip_slowly)
        status, reason = await rest.reason(*NAMED[what])
        assert (status, "deleted" in reason) == (404, True)
        assert await serves(topic)

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_cursor_is_not_reset_once_its_subscription_is_deleted(
    tmp_path: Path, is_gone: bool
) -> None:
    """Nobody can come to a subscription that is about to go, and the topic is served on."""

    async def scenario(rest: Rest) -> None:
        broker = rest.broker
        topic = await filled(rest, "s")
        subscription = topic.subscriptions["s"]
        client = await broker.client()
        gate = Gate(broker.node.store, "delete", node_of("s"), after=is_gone)
        look = topic.position_before_time
        looking, looked = asyncio.Event(), asyncio.Event()

        async def look_slowly(*asked: Any) -> Position:
            looking.set()
            await looked.wait()
            return await look(*asked)

        topic.position_before_time = look_slowly  # type: ignore[method-assign, assignment]
        resetting = asyncio.ensure_future(rest("POST", f"{SUBSCRIPTIONS}/s/resetcursor/1"))
        await looking.wait()
        deleting = asyncio.ensure_future(topic.delete_subscription("s", force=False))
        await until(lambda: gate.reached == 1)
        looked.set()
        assert await resetting == (503, {"reason": "Subscription is fenced"})
        refused = await client.subscribe(1)
        assert (refused.error, refused.message) == (pb.ServiceNotReady, "Subscription is fenced")
        assert not subscription.consumers
        gate.open()
        await deleting
        assert "s" not in topic.subscriptions
        assert await serves(topic)

    run(tmp_path, scenario)


def test_a_backlog_is_not_cleared_of_a_subscription_that_was_deleted_meanwhile(
    tmp_path: Path,
) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "s")
        subscription = topic.subscriptions["s"]
        move = subscription.move = asyncio.get_running_loop().create_future()
        clearing = asyncio.ensure_future(rest.broker.service.namespaces.clear_backlog(NAMESPACE))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not clearing.done()
        await topic.delete_subscription("s", force=False)
        assert await rest("PUT", f"{SUBSCRIPTIONS}/s", '"earliest"') == DONE
        subscription.move = None
        move.set_result(None)
        await clearing
        assert await serves(topic)
        topic = await opened_anew(rest, topic)
        assert topic.subscriptions["s"].backlog == 11

    run(tmp_path, scenario)


def test_a_subscription_that_is_about_to_go_is_not_taken_for_one_that_is_there(
    tmp_path: Path,
) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "s")
        gate = Gate(rest.broker.node.store, "delete", node_of("s"))
        deleting = asyncio.ensure_future(topic.delete_subscription("s", force=False))
        await until(lambda: gate.reached == 1)
        with pytest.raises(ServiceNotReady, match="fenced"):
            await topic.subscription_for("s", topic.first_position(), {}, True)
        gate.open()
        await deleting
        await topic.subscription_for("s", topic.first_position(), {}, True)

    run(tmp_path, scenario)


def test_a_subscription_is_not_deleted_of_a_topic_that_was_unloaded_meanwhile(
    tmp_path: Path,
) -> None:
    """Whoever opened it next has its node."""

    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "s")
        await topic.compaction_subscription()
        stop = topic._stop_compacting
        stopping, stopped = asyncio.Event(), asyncio.Event()

        async def stop_slowly() -> None:
            stopping.set()
            await stopped.wait()

        topic._stop_compacting = stop_slowly  # type: ignore[method-assign]
        deleting = asyncio.ensure_future(topic.delete_subscription(COMPACTION, force=False))
        await stopping.wait()
        topic._stop_compacting = stop  # type: ignore[method-assign]
        successor = await opened_anew(rest, topic)
        stopped.set()
        with pytest.raises(ServiceNotReady):
            await deleting
        subscription = successor.subscriptions[COMPACTION]
        await subscription.skip_to(successor.last_confirmed)
        await subscription.persist()
        assert await serves(successor)

    run(tmp_path, scenario)


def test_a_reader_is_not_forgotten_while_it_comes(tmp_path: Path) -> None:
    """Who unloads the topic has to find it, so that its client is told."""

    async def scenario(rest: Rest) -> None:
        topic = await filled(rest)
        former, client = await rest.broker.client(), await rest.broker.client()
        reader = {"subscription": "r", "durable": False, "subType": pb.CommandSubscribe.Failover}
        await former.subscribe(1, **reader)
        read = topic._read_compacted
        reading, go_on = asyncio.Event(), asyncio.Event()

        async def read_slowly(*asked: Any) -> None:
            reading.set()
            await go_on.wait()
            await read(*asked)

        topic._read_compacted = read_slowly  # type: ignore[method-assign, assignment]
        coming = asyncio.ensure_future(client.subscribe(2, read_compacted=True, **reader))
        await reading.wait()
        await former.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
        go_on.set()
        await coming
        assert [len(each.consumers) for each in topic.all_subscriptions()] == [1]

    run(tmp_path, scenario)


def test_a_reader_that_could_not_come_is_forgotten(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest)
        client = await rest.broker.client()

        async def fail(*asked: Any) -> None:
            raise ServiceNotReady("not now")

        topic._read_compacted = fail  # type: ignore[method-assign, assignment]
        fields = {"subscription": "r", "durable": False, "subType": pb.CommandSubscribe.Exclusive}
        refused = await client.subscribe(1, read_compacted=True, **fields)
        assert refused.message == "not now"
        assert topic.all_subscriptions() == []

    run(tmp_path, scenario)


# --- moved meanwhile ------------------------------------------------------------------------------


def seek_to_earliest(client: Client) -> None:
    earliest = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
    client.send(pb.CommandSeek(consumer_id=2, request_id=77, message_id=earliest))


def test_what_is_skipped_while_a_consumer_seeks_back_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "s", count=60)
        monkeypatch.setattr(subscriptions, "ACKNOWLEDGED_PER_STEP", 20)
        pauses, go_on = asyncio.Event(), asyncio.Event()

        class Slowly:
            async def pause(self) -> None:
                pauses.set()
                await go_on.wait()

        first, second = await rest.broker.client(), await rest.broker.client()
        await first.subscribe(1)
        await second.subscribe(2, permits=0)
        await first.messages(60)
        monkeypatch.setattr(subscriptions, "Slices", Slowly)
        subscription = topic.subscriptions["s"]
        skipping = asyncio.ensure_future(subscription.skip_to(topic.last_confirmed))
        await pauses.wait()
        seek_to_earliest(second)
        await second.receive("success")
        await second.subscribe(3)
        assert len(await second.messages(1)) == 1
        go_on.set()
        assert await skipping == 60
        assert len(await second.messages(59)) == 59
        assert subscription.backlog == 60

    run(tmp_path, scenario)
