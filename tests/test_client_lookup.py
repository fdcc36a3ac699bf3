"""How the client finds the owner of a topic: redirects, proxies, retries, equal lookups."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pyxbroker.client import lookup as module
from pyxbroker.client.addresses import Address
from pyxbroker.client.client import Client
from pyxbroker.client.errors import BrokerRefused, NoSuchListener, RedirectLoop
from pyxbroker.proto import PulsarApi as pb
from scripted_server import Answer, Peer, Server, here, run

pytestmark = pytest.mark.usefixtures("each_loop")

TOPIC = "persistent://public/default/t"
KIND = pb.CommandLookupTopicResponse


def answer(**fields: Any) -> Answer:
    def say(peer: Peer, body: Any, rest: bytes) -> None:
        peer.say(pb.BaseCommand.LOOKUP_RESPONSE, request_id=body.request_id, **fields)

    return say


def redirect(to: str, authoritative: bool) -> Answer:
    return answer(response=KIND.Redirect, brokerServiceUrl=to, authoritative=authoritative)


def failure(code: int) -> Answer:
    return answer(response=KIND.Failed, error=code, message="no")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "pauses_s", lambda: iter([0.01] * 10))


@pytest.mark.parametrize("authoritative", [True, False])
def test_redirects_are_followed_with_the_flag_of_the_last_one(authoritative: bool) -> None:
    async def main() -> None:
        async with Server() as owner, Server() as second, Server() as first:
            second.answers[pb.BaseCommand.LOOKUP] = redirect(owner.url, authoritative)
            first.answers[pb.BaseCommand.LOOKUP] = redirect(second.url, False)
            async with Client(first.settings(listener="inner")) as client:
                assert await client.owner_of(TOPIC) == Address(owner.url)
            said = [each.said(pb.BaseCommand.LOOKUP)[0] for each in (first, second, owner)]
            assert [each.authoritative for each in said] == [False, False, authoritative]
            assert {each.advertised_listener_name for each in said} == {"inner"}
            assert {each.topic for each in said} == {TOPIC}

    run(main)


def test_brokers_that_redirect_to_each_other_are_given_up() -> None:
    async def main() -> None:
        async with Server() as one, Server() as other:
            one.answers[pb.BaseCommand.LOOKUP] = redirect(other.url, False)
            other.answers[pb.BaseCommand.LOOKUP] = redirect(one.url, False)
            async with Client(one.settings()) as client:
                with pytest.raises(RedirectLoop):
                    await client.owner_of(TOPIC)
            asked = len(one.said(pb.BaseCommand.LOOKUP)) + len(other.said(pb.BaseCommand.LOOKUP))
            assert asked == module.REDIRECTS_MAX and len(one.peers) == len(other.peers) == 1

    run(main)


def test_a_proxy_is_the_address_and_the_broker_what_it_forwards_to() -> None:
    async def main() -> None:
        behind = "pulsar://behind:6650"
        through = answer(
            response=KIND.Connect, brokerServiceUrl=behind, proxy_through_service_url=True
        )
        async with Server({pb.BaseCommand.LOOKUP: through}) as proxy:
            async with Client(proxy.settings()) as client:
                assert await client.owner_of(TOPIC) == Address(proxy.url, behind)
                await client.producer(TOPIC)
            connects = proxy.said(pb.BaseCommand.CONNECT)
            assert [each.proxy_to_broker_url for each in connects] == ["", "behind:6650"]

    run(main)


@pytest.mark.parametrize("code", [pb.ServiceNotReady, pb.TooManyRequests])
def test_a_lookup_that_is_refused_for_the_moment_is_repeated(code: int) -> None:
    async def main() -> None:
        async with (
            Server({pb.BaseCommand.LOOKUP: failure(code)}) as server,
            Client(server.settings()) as client,
        ):
            task = asyncio.create_task(client.owner_of(TOPIC))
            await server.until(pb.BaseCommand.LOOKUP, 3)
            server.answers[pb.BaseCommand.LOOKUP] = here
            assert await task == Address(server.url)

    run(main)


def test_a_lookup_that_is_refused_for_good_is_not_repeated() -> None:
    async def main() -> None:
        async with Server({pb.BaseCommand.LOOKUP: failure(pb.AuthorizationError)}) as server:
            async with Client(server.settings()) as client:
                with pytest.raises(BrokerRefused):
                    await client.owner_of(TOPIC)
            assert len(server.said(pb.BaseCommand.LOOKUP)) == 1

    run(main)


def test_a_lost_connection_is_a_reason_to_ask_again() -> None:
    async def main() -> None:
        async with (
            Server({pb.BaseCommand.LOOKUP: lambda peer, *_: peer.close()}) as server,
            Client(server.settings()) as client,
        ):
            task = asyncio.create_task(client.owner_of(TOPIC))
            await server.until(pb.BaseCommand.LOOKUP, 2)
            server.answers[pb.BaseCommand.LOOKUP] = here
            assert await task == Address(server.url)

    run(main)


def test_equal_lookups_are_one_and_a_caller_that_leaves_does_not_end_it() -> None:
    async def main() -> None:
        asked: list[tuple[Peer, Any]] = []
        answers: dict[int, Answer] = {
            pb.BaseCommand.LOOKUP: lambda peer, body, _: asked.append((peer, body))
        }
        async with Server(answers) as server, Client(server.settings()) as client:
            tasks = [asyncio.create_task(client.owner_of(TOPIC)) for _ in range(5)]
            await server.until(pb.BaseCommand.LOOKUP)
            tasks[0].cancel()
            await asyncio.sleep(0.02)
            assert len(asked) == 1
            here(*asked[0], b"")
            assert await asyncio.gather(*tasks[1:]) == [Address(server.url)] * 4

    run(main)


def test_an_owner_without_a_url_of_the_kind_is_named() -> None:
    async def main() -> None:
        tls = answer(response=KIND.Connect, brokerServiceUrlTls="pulsar+ssl://a:6651")
        async with (
            Server({pb.BaseCommand.LOOKUP: tls}) as server,
            Client(server.settings()) as client,
        ):
            with pytest.raises(NoSuchListener, match="without TLS"):
                await client.owner_of(TOPIC)

    run(main)


def test_a_host_that_is_not_ready_is_passed_over() -> None:
    def starting(peer: Peer, body: Any, rest: bytes) -> None:
        peer.say(
            pb.BaseCommand.ERROR,
            request_id=(1 << 64) - 1,
            error=pb.ServiceNotReady,
            message="starting",
        )

    async def main() -> None:
        async with Server({pb.BaseCommand.CONNECT: starting}) as first, Server() as second:
            several = f"{first.url},{second.url.partition('://')[2]}"
            settings = replace(first.settings(), service_url=several)
            async with Client(settings) as client:
                assert await client.owner_of(TOPIC) == Address(second.url)

    run(main)
