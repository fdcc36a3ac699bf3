"""The project's own client against a real broker: messages, readers, TLS, logins, a kill, REST."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
import uvloop
from harness.brokers import Broker
from harness.tokens import token, with_rights

from compat_tests.conftest import BrokerFactory, broker_kind, official_client
from compat_tests.test_every_login import Everything
from pyxbroker.client.admin import AdminClient, topic_path
from pyxbroker.client.authentication import Authentication, method_named
from pyxbroker.client.client import Client
from pyxbroker.client.consumer import ConsumerSettings
from pyxbroker.client.entries import CODECS, EARLIEST, Message, MessageId, OutgoingMessage
from pyxbroker.client.errors import (
    BrokerRefused,
    ClientError,
    ConnectFailed,
    ConnectionRefused,
    HttpRefused,
    UntrustedCertificate,
)
from pyxbroker.client.producer import ProducerSettings
from pyxbroker.client.settings import ClientSettings
from pyxbroker.client.tls import TlsSettings
from pyxbroker.proto import PulsarApi as pb

TIMEOUT_S = 120
EARLIEST_POSITION = pb.CommandSubscribe.Earliest
SHARED = pb.CommandSubscribe.Shared


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """On uvloop, as in a broker; tests/test_client_connection.py has both kinds of loops."""
    uvloop.run(asyncio.wait_for(main(), TIMEOUT_S))


async def values_of(consumer: Any, count: int) -> list[bytes]:
    return [(await received(consumer)).value for _ in range(count)]


async def received(consumer: Any) -> Message:
    found = await consumer.receive(TIMEOUT_S)  # Apache Pulsar takes its time to start again
    assert isinstance(found, Message)
    return found


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize("codec", CODECS)
def test_messages_are_received_in_order(broker: Broker, topic: str, codec: str, batch: int) -> None:
    count = 1_000 if batch > 1 else 100

    async def main() -> None:
        async with Client(ClientSettings(broker.url)) as client:
            settings = ProducerSettings(codec=CODECS[codec], batch_messages_max=batch)
            producer = await client.producer(topic, settings)
            consumer = await client.consumer(
                topic, ConsumerSettings("s", initial_position=EARLIEST_POSITION)
            )
            sent = [b"%d" % number * 10 for number in range(count)]
            futures = [await producer.publish(each) for each in sent]
            await producer.flush()
            ids = [future.result() for future in futures]
            assert ids == sorted(ids) and len(set(ids)) == count
            messages = [await received(consumer) for _ in range(count)]
            assert [each.value for each in messages] == sent
            assert [each.id for each in messages] == ids
            await producer.close()
            await consumer.close()

    run(main)


def test_a_message_has_all_that_was_sent_with_it(broker: Broker, topic: str) -> None:
    sent = OutgoingMessage(
        b"v", key="k", ordering_key=b"\xff", properties={"a": "ä"}, event_time_ms=7
    )

    async def main() -> None:
        async with Client(ClientSettings(broker.url)) as client:
            for size in (1, 10):
                producer = await client.producer(topic, ProducerSettings(batch_messages_max=size))
                await producer.send(sent)
                await producer.send(OutgoingMessage(None, key=b"\xff"))
            reader = await client.reader(topic, EARLIEST)
            for _ in range(2):
                message = await received(reader)
                assert (message.value, message.key, message.event_time_ms) == (b"v", "k", 7)
                assert message.properties == {"a": "ä"}
                assert message.single.ordering_key == b"\xff"
                empty = await received(reader)
                assert empty.has_null_value and empty.single.partition_key_b64_encoded

    run(main)
    official = official_client(broker.url)
    message = official.create_reader(topic, pulsar.MessageId.earliest).read_next(9_000)
    assert (message.data(), message.partition_key(), message.properties()) == (
        b"v",
        "k",
        {"a": "ä"},
    )
    official.close()


def test_acknowledged_messages_do_not_return(broker: Broker, topic: str) -> None:
    settings = ConsumerSettings("s", type=SHARED, initial_position=EARLIEST_POSITION)

    async def main() -> None:
        async with Client(ClientSettings(broker.url)) as client:
            producer = await client.producer(topic, ProducerSettings(batch_messages_max=10))
            for number in range(30):
                await producer.publish(b"%d" % number)
            await producer.flush()
            consumer = await client.consumer(topic, settings)
            messages = [await received(consumer) for _ in range(30)]
            # One whole batch singly, and of the next one only a part.
            for message in messages[:9]:
                await consumer.acknowledge(message.id)
            await consumer.acknowledge(messages[9].id, waits=True)
            await consumer.acknowledge(*(each.id for each in messages[10:15]), waits=True)
            consumer.redeliver()
            assert (await received(consumer)).value == b"15"
            await consumer.close()
            consumer = await client.consumer(topic, settings)
            left = {int((await received(consumer)).value) for _ in range(15)}
            assert left >= set(range(15, 25)) and not left & set(range(10))
            await consumer.close()

    run(main)


def test_cumulative_acknowledgement_seek_and_unsubscribe(broker: Broker, topic: str) -> None:
    settings = ConsumerSettings("s", initial_position=EARLIEST_POSITION)

    async def main() -> None:
        async with Client(ClientSettings(broker.url)) as client:
            producer = await client.producer(topic)
            ids = [await producer.send(b"%d" % number) for number in range(10)]
            consumer = await client.consumer(topic, settings)
            assert await consumer.last_message_id() == ids[-1]
            assert await values_of(consumer, 10) == [b"%d" % number for number in range(10)]
            await consumer.acknowledge(ids[6], is_cumulative=True, waits=True)
            await consumer.close()
            consumer = await client.consumer(topic, settings)
            assert await values_of(consumer, 3) == [b"7", b"8", b"9"]
            await consumer.seek(ids[3])
            assert await values_of(consumer, 7) == [b"%d" % number for number in range(3, 10)]
            await consumer.seek(None, 0)
            assert await values_of(consumer, 10) == [b"%d" % number for number in range(10)]
            await consumer.unsubscribe()
            with pytest.raises(ClientError, match="unsubscribed"):
                await consumer.receive()
            assert broker.rest("GET", topic_path(topic, "subscriptions"))[1] == []

    run(main)


def test_a_reader_begins_where_it_is_told(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with Client(ClientSettings(broker.url)) as client:
            producer = await client.producer(topic, ProducerSettings(batch_messages_max=5))
            futures = [await producer.publish(b"%d" % number) for number in range(20)]
            await producer.flush()
            ids = [future.result() for future in futures]

            async def first(start: MessageId, **more: Any) -> bytes:
                reader = await client.reader(topic, start, **more)
                found = (await received(reader)).value
                await reader.close()
                return found

            assert await first(EARLIEST) == b"0"
            assert await first(ids[7]) == b"8"
            assert await first(ids[7], is_start_included=True) == b"7"
            assert await first(ids[9]) == b"10"
            latest = await client.reader(topic)
            assert await latest.receive(0.3) is None
            await producer.send(b"new")
            assert await values_of(latest, 1) == [b"new"]
            await latest.close()

    run(main)


def test_the_end_of_a_topic(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with (
            Client(ClientSettings(broker.url)) as client,
            AdminClient(ClientSettings(broker.web_url)) as admin,
        ):
            producer = await client.producer(topic)
            id = await producer.send(b"last")
            found = await admin.post(topic_path(topic, "terminate"))
            assert (found["ledgerId"], found["entryId"]) == id.entry_key
            with pytest.raises(BrokerRefused) as caught:
                await producer.send(b"more")
            assert caught.value.code == "TopicTerminatedError"
            reader = await client.reader(topic, EARLIEST)
            assert await values_of(reader, 1) == [b"last"]
            assert await reader.receive(20) is None and reader.has_reached_end

    run(main)


def test_admin_calls(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with AdminClient(ClientSettings(broker.web_url)) as admin:
            assert "public" in await admin.get("/admin/v2/tenants")
            await admin.put(topic_path(topic, "partitions"), 3)
            assert (await admin.get(topic_path(topic, "partitions")))["partitions"] == 3
            async with Client(ClientSettings(broker.url)) as client:
                assert await client.partitions(topic) == 3
                partition = f"{topic}-partition-2"
                producer = await client.producer(partition)
                assert (await producer.send(b"x")).partition == 2
                assert partition in await client.topics("public/default")
                await producer.close()
            stats = await admin.get(topic_path(partition, "stats"), getPreciseBacklog="true")
            assert stats["msgInCounter"] == 1
            await admin.delete(topic_path(topic, "partitions"), force="true")
            with pytest.raises(HttpRefused) as caught:
                await admin.get(topic_path(topic, "stats"))
            assert caught.value.status == 404 and "not found" in caught.value.reason.lower()

    run(main)


def test_what_cannot_be_reached_or_does_not_exist_is_refused(broker: Broker, topic: str) -> None:
    async def main() -> None:
        closed = "pulsar://127.0.0.1:1"
        with pytest.raises(ConnectFailed):
            async with Client(ClientSettings(closed, lookup_retry_s=0)) as client:
                await client.partitions(topic)
        several = f"{closed},{broker.url.partition('://')[2]}"
        async with Client(ClientSettings(several)) as client:
            assert isinstance(await client.topics("public/default"), list)
            with pytest.raises(BrokerRefused) as caught:
                await client.consumer(
                    "public/default/missing", ConsumerSettings("s", creates_topic=False)
                )
            assert caught.value.code == "TopicNotFound"

    run(main)


def test_a_broker_that_is_killed_loses_and_repeats_nothing(own_broker: BrokerFactory) -> None:
    """What was not answered is sent again; deduplication drops what had been stored."""
    broker = own_broker(settings={"brokerDeduplicationEnabled": "true"})
    broker.start()
    topic, count = "persistent://public/default/killed", 3_000

    async def main() -> None:
        async with Client(ClientSettings(broker.url)) as client:
            settings = ProducerSettings(name="me", batch_messages_max=7, send_timeout_s=100)
            producer = await client.producer(topic, settings)
            reader = await client.reader(topic, EARLIEST)

            async def publish() -> None:
                for number in range(count):
                    await producer.publish(b"%d" % number)
                    if number in (count // 3, 2 * count // 3):
                        await asyncio.to_thread(kill_and_start)
                await producer.flush()

            def kill_and_start() -> None:
                broker.kill()
                broker.start()

            task = asyncio.create_task(publish())
            assert await values_of(reader, count) == [b"%d" % number for number in range(count)]
            await task
            assert await reader.receive(0.5) is None

    run(main)


# --- TLS and logins -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    one = Everything(Path(tmp_path_factory.mktemp("logins")))
    yield one
    one.broker.close()


def authentication(scene: Everything, method: str, role: str = "ann") -> Authentication:
    certificate, key = scene.certificates["ann"]
    params = {
        "token": f"token:{token(role)}",
        "basic": "ann:secret",
        "tls": f"tlsCertFile:{certificate},tlsKeyFile:{key}",
    }
    make = method_named(f"org.apache.pulsar.client.impl.auth.Authentication{method.title()}")
    assert make is not None
    return make("authParams", params[method])


@pytest.mark.parametrize("scheme", ["pulsar", "pulsar+ssl"])
@pytest.mark.parametrize("method", ["token", "basic", "tls"])
def test_each_login_comes_in(scene: Everything, topic: str, method: str, scheme: str) -> None:
    if method == "tls":
        scheme = "pulsar+ssl"
    settings = ClientSettings(
        scene.url_of(scheme),
        authentication=authentication(scene, method),
        tls=TlsSettings(str(scene.trusted)),
    )

    async def main() -> None:
        async with Client(settings) as client:
            producer = await client.producer(topic)
            await producer.send(b"x" * 100_000)
            reader = await client.reader(topic, EARLIEST)
            assert await values_of(reader, 1) == [b"x" * 100_000]

    run(main)


@pytest.mark.parametrize("method", ["token", "basic", "tls"])
def test_each_login_comes_in_by_https(scene: Everything, method: str) -> None:
    settings = ClientSettings(
        scene.url_of("https"),
        authentication=authentication(scene, method),
        tls=TlsSettings(str(scene.trusted)),
    )

    async def main() -> None:
        async with AdminClient(settings) as admin:
            assert isinstance(await admin.get("/admin/v2/persistent/public/default"), list)
            with pytest.raises(HttpRefused) as caught:
                await admin.get("/admin/v2/tenants")
            assert caught.value.status in (401, 403)

    run(main)


def test_who_is_not_let_in_is_told_without_a_secret(scene: Everything, topic: str) -> None:
    wrong = token("ann", bytes(64))
    make = method_named("token")
    assert make is not None
    plain = ClientSettings(scene.url_of("pulsar"), authentication=make("p", f"token:{wrong}"))
    untrusted = ClientSettings(scene.url_of("pulsar+ssl"))
    role = ClientSettings(
        scene.url_of("pulsar"), authentication=authentication(scene, "token", "ben")
    )

    async def main() -> None:
        async with Client(plain) as client:
            with pytest.raises(ConnectionRefused) as caught:
                await client.producer(topic)
            assert caught.value.code == "AuthenticationError"
            assert wrong not in repr(caught.value) + repr(plain)
        async with Client(untrusted) as client:
            with pytest.raises(UntrustedCertificate):
                await client.producer(topic)
        async with Client(role) as client:
            with pytest.raises(BrokerRefused) as refused:
                await client.producer(topic)
            assert refused.value.code == "AuthorizationError"

    run(main)


def test_a_token_is_shown_again_before_it_expires(
    own_broker: BrokerFactory, tmp_path: Path, topic: str
) -> None:
    """Whoever replaces the file in time keeps the connection."""
    refresh = {"authenticationRefreshCheckSeconds": "1"}
    root = {"Authorization": f"Bearer {token('root')}"}
    broker = own_broker(settings=with_rights(broker_kind()) | refresh, headers=root)
    broker.start()
    file = tmp_path / "token"
    file.write_text(token("root", exp=6))
    make = method_named("token")
    assert make is not None
    settings = ClientSettings(broker.url, authentication=make("p", f"file://{file}"))

    async def main() -> None:
        async with Client(settings) as client:
            producer = await client.producer(topic)
            connection = await producer.attached()
            file.write_text(token("root"))
            await asyncio.sleep(9)
            await producer.send(b"x")
            assert await producer.attached() is connection and connection.is_open

    run(main)
