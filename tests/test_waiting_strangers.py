"""What clients cost that are not let in yet: they push out none that are."""

from __future__ import annotations

import gc
import math
import weakref
from pathlib import Path
from typing import Any

import pytest
from harness.tokens import token
from hypothesis import given
from hypothesis import strategies as st

from counted_keys import CountedKey
from one_bookie import until
from one_broker import Broker, Client, command_of, run
from oracles import wire
from pyxbroker.base import memory_budget
from pyxbroker.base.errors import TooManyRequests
from pyxbroker.base.pacing import Pace
from pyxbroker.broker import client_memory
from pyxbroker.proto import PulsarApi as pb
from test_client_memory import LONG
from test_logins import connect, keep_out, let_in, serve

SLOW = b"slow" * 4_000  # what a provider takes long for


def memory(broker: Broker) -> client_memory.ClientMemory:
    return broker.service.client_memory


def hold_up(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """An issuer that does not answer: who shows SLOW waits."""
    authentication: Any = broker.service.authentication
    verify = authentication.verify

    async def held(method: str, shown: bytes, common_name: str = "") -> Any:
        if shown.startswith(b"slow"):
            await broker.loop.create_future()
        return await verify(method, shown, common_name)

    monkeypatch.setattr(authentication, "verify", held)


async def wait_with(broker: Broker, shown: bytes = SLOW, **more: Any) -> Client:
    client, before = Client(broker), memory(broker).unauthenticated_bytes
    client.send(connect(shown, **more))
    await until(lambda: memory(broker).unauthenticated_bytes != before)
    return client


def test_strangers_who_wait_have_a_part_of_the_memory_and_who_has_most_of_it_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        hold_up(broker, monkeypatch)
        known = await let_in(broker, connect(token("me")))
        for number in range(10):
            assert not hasattr(await known.produce(number, metadata=LONG), "error")
        part = (2 << 20) // memory_budget.UNAUTHENTICATED_PART
        waiting = [await wait_with(broker) for _ in range(7)]
        assert part - 80_000 < memory(broker).unauthenticated_bytes <= part
        # One that costs as much is refused, one that costs less gets in.
        late = Client(broker)
        late.send(connect(SLOW))
        error = await late.receive("error")
        assert error.error == TooManyRequests.code and "maxClientStateSizeInMB" in error.message
        small = [await let_in(broker, connect(token("new"))) for _ in range(20)]
        assert not any(each.connection.closed for each in [known, *small])
        assert sum(each.connection.closed for each in waiting) <= 1
        for each in waiting:
            each.connection.close()
        assert memory(broker).unauthenticated_bytes == 0

    serve(tmp_path, scenario, maxClientStateSizeInMB=2)


def test_strangers_give_way_before_clients_that_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        hold_up(broker, monkeypatch)
        greedy = await let_in(broker, connect(token("greedy")))
        modest = await let_in(broker, connect(token("modest")))
        waiting = [await wait_with(broker) for _ in range(5)]
        for number in range(12):
            assert not hasattr(await greedy.produce(number, metadata=LONG), "error")
        for number in range(3):
            assert not hasattr(await modest.produce(number, metadata=LONG), "error")
        assert not greedy.connection.closed and not modest.connection.closed
        assert 1 <= memory(broker).closed == sum(each.connection.closed for each in waiting)

    serve(tmp_path, scenario, maxClientStateSizeInMB=2)


def test_of_a_connect_that_waits_no_more_is_kept_than_what_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        hold_up(broker, monkeypatch)
        await wait_with(
            broker, b"slow", proxy_to_broker_url="x" * 60_000, original_auth_data="x" * 60_000
        )
        assert memory(broker).unauthenticated_bytes < memory_budget.COMMAND_BYTES + 1_000

    serve(tmp_path, scenario)


def test_strangers_have_the_pace_of_the_door_and_who_is_let_in_that_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        broker.service.poller.pace = Pace(math.inf)
        hold_up(broker, monkeypatch)
        waiting = await wait_with(broker)
        known = await let_in(broker, connect(token("me")))
        assert waiting.connection.session.step_queue.pace is broker.service.poller.pace
        assert known.connection.session.step_queue.pace is broker.service.pace
        assert known.connection.session.pending_connection is None

    serve(tmp_path, scenario)


def test_who_goes_away_before_it_is_let_in_is_looked_at_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        hold_up(broker, monkeypatch)
        client = await wait_with(broker)
        [task] = client.connection.session.tasks
        client.far.close()
        await until(task.done)
        assert task.cancelled() and not client.connection.session.tasks
        assert memory(broker).unauthenticated_bytes == memory(broker).used == 0

    serve(tmp_path, scenario)


def test_who_waits_to_be_known_is_half_open_and_gives_way_as_all_of_those(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        hold_up(broker, monkeypatch)
        half_open = broker.service.half_open
        known = await let_in(broker, connect(token("me")))
        waiting = [await wait_with(broker, b"slow") for _ in range(2)]
        silent = Client(broker)
        assert len(half_open) == 3
        # The first of all of them, whatever they wait for.
        late = Client(broker)
        assert [each.connection.closed for each in (*waiting, silent)] == [True, False, False]
        assert broker.service.evict_half_open("brokerMaxConnections")
        assert broker.service.evict_half_open("brokerMaxConnections")
        assert [each.connection.closed for each in (waiting[1], silent, late)] == [
            True,
            True,
            False,
        ]
        # Who is known, or was refused, is none of them.
        late.send(connect(token("me")))
        await late.receive("connected")
        await keep_out(broker, connect(b"wrong"))
        assert len(half_open) == 0 and not known.connection.closed

    serve(tmp_path, scenario, maxHalfOpenConnections=3)


def test_the_time_for_a_connect_is_not_that_of_who_has_to_say_who_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        hold_up(broker, monkeypatch)
        silent, waiting = Client(broker), await wait_with(broker, b"slow")
        late = Client(broker)
        await silent.closed()
        await late.closed()
        assert not waiting.connection.closed and len(broker.service.half_open) == 1

    serve(tmp_path, scenario, connectionHandshakeTimeoutSeconds=1)


def test_who_is_closed_before_it_is_looked_at_at_all_leaves_nothing_that_never_ran(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    async def scenario(broker: Broker) -> None:
        client = Client(broker)
        first, behind = connect(token("me")), pb.CommandPing()
        client.far.send(b"".join(wire.frame(command_of(each)) for each in (first, behind)))
        await client.closed()
        await until(lambda: not client.connection.session.tasks)
        assert memory(broker).unauthenticated_bytes == memory(broker).used == 0
        assert not client.connection.established

    serve(tmp_path, scenario)
    gc.collect()
    assert [str(each.message) for each in recwarn] == []


def test_all_that_is_looked_at_of_a_connect_is_kept(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        flags = pb.FeatureFlags(supports_auth_refresh=True, supports_partial_producer=True)
        client = await let_in(
            broker,
            connect(
                token("proxy"),
                feature_flags=flags,
                original_principal="me",
                original_auth_data=token("me"),
                original_auth_method="token",
                proxy_version="1",
            ),
        )
        session = client.connection.session
        assert session.principal == ("proxy", "me") and session.client_version == "test"
        assert session.supports_partial_producers
        assert session.login is not None and session.login.can_refresh
        assert client.connection.protocol_version == 21

    serve(tmp_path, scenario, proxyRoles="proxy", authenticateOriginalAuthData=True)


def test_of_the_address_with_most_parts_of_large_connects_the_first_gives_way(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        handlers, sides = broker.service.handlers, ["a", "b", "b", "c"]
        clients = [Client(broker) for _ in sides]
        for client, address in zip(clients, sides, strict=True):
            client.connection.session.address = address
        waiting = [each.connection for each in clients]
        handlers.on_too_many_unfinished(waiting)
        assert [each.closed for each in waiting] == [False, True, False, False]
        del waiting[1]
        handlers.on_too_many_unfinished(waiting)
        assert [each.closed for each in waiting] == [True, False, False]
        assert memory(broker).closed == 2

    run(tmp_path, scenario)


def test_who_costs_most_is_found_without_a_look_at_all_of_them() -> None:
    costs: memory_budget.Costs[CountedKey] = memory_budget.Costs()
    assert costs.costliest() == (None, 0)
    for number in range(5_000):
        costs.add(CountedKey(number), 1_000 + number % 10)
    CountedKey.looks = 0
    for number in range(9, 1_009, 10):
        assert costs.costliest() == (number, 1_009)  # of equals who came first
        assert costs.remove(CountedKey(number)) == 1_009
    assert CountedKey.looks < 1_000


def test_nothing_is_kept_of_who_has_gone() -> None:
    class Key:
        """Somebody."""

    costs: memory_budget.Costs[Key] = memory_budget.Costs()
    key = Key()
    gone = weakref.ref(key)
    costs.add(key, 10)
    costs.remove(key)
    del key
    assert gone() is None


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=400))
def test_costs_are_those_of_a_plain_table(steps: list[tuple[int, int]]) -> None:
    costs: memory_budget.Costs[int] = memory_budget.Costs()
    plain: dict[int, int] = {}
    for key, size in steps:
        if key in plain:
            assert costs.remove(key) == plain.pop(key)
        else:
            costs.add(key, size)
            plain[key] = size
        assert costs.remove(99) == 0
        found = max(plain, key=plain.__getitem__, default=None)
        assert costs.costliest() == (found, plain.get(found, 0) if found is not None else 0)
        assert len(costs) == len(plain)
        assert len(costs._heap) <= memory_budget.SWEPT_FROM + 2 * len(plain) + 1
