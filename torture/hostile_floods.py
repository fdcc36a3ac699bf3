"""Floods: much of what is cheap, and peers that are slow or say nothing. Each ends by itself."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import cycle, islice

from harness import wire
from harness.raw import RawConnection

from torture.hostile_commands import Input, Scene
from torture.hostile_fanout import flows_of_many_subscriptions, sends_to_many_subscriptions
from torture.hostile_inputs import request
from torture.hostile_scenes import BASE, TOPIC, VAST_NAMESPACE, vast

HOST = "127.0.0.1"
RECONNECTS = 10_000
OF_VAST = f"/admin/v2/persistent/{VAST_NAMESPACE}/vast"


def _subscribe(scene: Scene, n: int) -> bytes:
    return wire.command(wire.SUBSCRIBE, {1: scene.topic, 2: f"s{n}", 3: 1, 4: n + 10, 5: n})


def _watch(scene: Scene, n: int) -> bytes:
    fields = {1: n, 2: n, 3: "public/default", 4: f"public/default/.*{n}.*"}
    return wire.command(wire.WATCH_TOPIC_LIST, fields)


def _watch_all(scene: Scene, n: int) -> bytes:
    """Another pattern each, and all topics in each."""
    fields = {1: n, 2: n, 3: "public/default", 4: f"public/default/.*({n})?"}
    return wire.command(wire.WATCH_TOPIC_LIST, fields)


def _producer(scene: Scene, n: int) -> bytes:
    return wire.command(wire.PRODUCER, {1: f"{TOPIC}-flood-{n}", 2: n + 10, 3: n})


def _many_topics(scene: Scene) -> None:
    """A thousand, which are all that a watcher may be told of."""
    scene.raw.write(b"".join(_producer(scene, n) for n in range(1_000)))
    for _ in range(1_000):
        scene.raw.expect(wire.PRODUCER_SUCCESS)


def _with_consumer(scene: Scene) -> None:
    scene.raw.producer(scene.topic)
    scene.raw.subscribe(scene.topic, sub_type=wire.SHARED)
    scene.raw.flow(100_000)


def _delayed(scene: Scene, n: int) -> bytes:
    """All become due in the same two milliseconds."""
    now_ms = int(time.time() * 1000)
    due_ms = now_ms - now_ms % 2_000 + 2_000
    return wire.send(1, n, wire.metadata("p", n, now_ms, fields={19: due_ms}), b"x")


def _ack(scene: Scene, n: int) -> bytes:
    entry = wire.message_id(scene.ledger_id, n * 2 % 2_000)
    return wire.command(wire.ACK, {1: 1, 2: 0, 3: entry, 8: n})


def _redeliver(scene: Scene, n: int) -> bytes:
    return wire.command(wire.REDELIVER, {1: 1})


# Of commands on one connection, and of requests on one: what, and how many.
COMMAND_FLOODS = {
    "subscriptions": (Input("another each", _subscribe, Scene.with_messages), 1_000),
    "topics": (Input("another each, with a producer", _producer), 1_000),
    "lookups": (
        Input("of one topic", lambda scene, n: wire.command(wire.LOOKUP, {1: TOPIC, 2: n})),
        20_000,
    ),
    "watchers": (Input("another pattern each", _watch), 50),
    "watchers of everything": (Input("of 1,000 topics", _watch_all, _many_topics), 1_000),
    "delayed messages": (Input("due at once", _delayed, _with_consumer), 20_000),
    "acknowledgements": (Input("single, each answered", _ack, Scene.with_messages), 20_000),
    "seeks": (
        Input(
            "to the beginning",
            lambda scene, n: wire.command(wire.SEEK, {1: 1, 2: n, 4: 1}),
            Scene.with_messages,
        ),
        2_000,
    ),
    "redeliveries": (Input("of 2,000 messages each", _redeliver, Scene.with_messages), 200),
}
REQUEST_FLOODS = {
    "pipelined requests": (request("GET", BASE), 5_000),
    "subscriptions of 100,000 partitions": (
        request("GET", f"{OF_VAST}/subscriptions", scene=vast),
        2,
    ),
    "unloads of 100,000 partitions": (request("PUT", f"{OF_VAST}/unload", scene=vast), 5),
}


# What peers do that differs from asking and reading. Each says how many things it did.


def connections(port: int, web_port: int, most: int) -> int:
    """Connects, says hello and hangs up, 500 times."""
    count = min(most, 500)
    for _ in range(count):
        RawConnection(port).socket.close()
    return count


def reconnects(port: int, web_port: int, most: int) -> int:
    """Ten thousand clients that connect at once, hang up at once and come back."""
    hello = wire.command(wire.CONNECT, {1: "storm", 4: 21})
    count = min(most, RECONNECTS)
    for _ in range(2):
        with ExitStack() as stack:
            peers = []
            for _ in range(count):
                peer = stack.enter_context(socket.create_connection((HOST, port)))
                peer.sendall(hello)
                peers.append(peer)
            for peer in peers:
                peer.recv(1 << 10)
    return 2 * count


def consumers_that_leave(port: int, web_port: int, most: int) -> int:
    """One connection with a thousand consumers that hangs up."""
    scene = Scene(port, "leaving")
    with scene.raw:
        count = min(most, 1_000)
        scene.raw.write(b"".join(_subscribe(scene, n) for n in range(count)))
        for _ in range(count):
            scene.raw.expect(wire.SUCCESS)
    return count


def lookups_of_many(port: int, web_port: int, most: int) -> int:
    """Two hundred connections with 20 lookups each, all at once, and as many requests."""
    lookups = b"".join(wire.command(wire.LOOKUP, {1: TOPIC, 2: n}) for n in range(20))
    get = f"GET {BASE} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    count = min(most, 200)
    with ExitStack() as stack:
        peers = [stack.enter_context(RawConnection(port)) for _ in range(count)]
        webs = [
            stack.enter_context(socket.create_connection((HOST, web_port))) for _ in range(count)
        ]
        for peer, web in zip(peers, webs, strict=True):
            peer.write(lookups)
            web.sendall(get)
        for peer, web in zip(peers, webs, strict=True):
            for _ in range(20):
                peer.expect(wire.LOOKUP_RESPONSE)
            web.recv(1 << 16)
    return count * (20 + 1)


def half_open(port: int, web_port: int, most: int) -> int:
    """Four hundred that connect and say nothing, on both ports."""
    count = min(most, 400)
    with ExitStack() as stack:
        for one in islice(cycle([port, web_port]), count):
            stack.enter_context(socket.create_connection((HOST, one)))
        time.sleep(1)
    return count


def slow_writers(port: int, web_port: int, most: int) -> int:
    """A hundred that send one byte in a while, of a frame and of a request."""
    frame = wire.command(wire.CONNECT, {1: "slow", 4: 21})
    with ExitStack() as stack:
        peers = [
            (stack.enter_context(socket.create_connection((HOST, one))), text)
            for one, text in [(port, frame), (web_port, b"GET /metrics HTTP/1.1\r\n")] * 50
        ]
        for i in range(3):
            for peer, text in peers:
                peer.send(text[i : i + 1])
            time.sleep(1)
    return len(peers) * 3


def slow_readers(port: int, web_port: int, most: int) -> int:
    """Twenty that ask for much and read nothing of it."""
    with ExitStack() as stack:
        scene = Scene(port, "slow-readers")
        stack.enter_context(scene.raw)
        scene.raw.producer(scene.topic)
        readers = [stack.enter_context(RawConnection(port)) for _ in range(20)]
        for i, each in enumerate(readers):
            each.subscribe(scene.topic, f"slow-{i}")
            each.flow(1_000)
        for n in range(50):
            scene.raw.send(b"x" * (256 << 10), n)
            scene.raw.expect(wire.SEND_RECEIPT)
        for _ in range(20):
            web = stack.enter_context(socket.create_connection((HOST, web_port)))
            web.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
        time.sleep(1)
    return 20 * (50 + 50)


def consumers_sent_away(port: int, web_port: int, most: int) -> int:
    """A thousand consumers of a Failover subscription, and as many of a Key_Shared one, which a
    seek sends away and which come back, and then leave one by one.
    """
    count = min(most, 1_000)
    for kind in (wire.FAILOVER, wire.KEY_SHARED):
        scene = Scene(port, f"sent-away-{kind}")
        with scene.raw:
            for n in range(2):
                scene.raw.write(
                    b"".join(
                        wire.command(
                            wire.SUBSCRIBE,
                            {1: scene.topic, 2: "sub", 3: kind, 4: each, 5: each, 6: f"c{each}"},
                        )
                        for each in range(1, count + 1)
                    )
                )
                for _ in range(count):
                    scene.raw.wait_for(wire.SUCCESS)
                if n == 0:
                    scene.raw.write(wire.command(wire.SEEK, {1: 1, 2: count + 1, 4: 1}))
                    for _ in range(count):
                        scene.raw.wait_for(wire.CLOSE_CONSUMER)
            leave = range(1, count + 1)
            scene.raw.write(
                b"".join(wire.command(wire.CLOSE_CONSUMER, {1: n, 2: n + 5_000}) for n in leave)
            )
            for _ in leave:
                scene.raw.wait_for(wire.SUCCESS)
    return 2 * 3 * count


def unread_lists(port: int, web_port: int, most: int) -> int:
    """Ten that ask again and again for a list of thousands of topics, and read none of it."""
    topics, lists = min(most, 20_000), min(most // 20, 100)
    path = f"{BASE}/hostile-lists/partitions"
    web = http.client.HTTPConnection(HOST, web_port, timeout=60)
    with closing(web), ExitStack() as stack:
        web.request("PUT", path, str(topics), {"Content-Type": "application/json"})
        assert web.getresponse().status in (204, 409)
        for _ in range(10):
            raw = stack.enter_context(RawConnection(port))
            for n in range(lists):
                raw.write(wire.command(wire.GET_TOPICS_OF_NAMESPACE, {1: n, 2: "public/default"}))
        time.sleep(3)
    return 10 * lists


PEERS: dict[str, Callable[[int, int, int], int]] = {
    "connections": connections,
    "reconnecting clients": reconnects,
    "consumers that leave at once": consumers_that_leave,
    "lookups and requests of 200 connections each": lookups_of_many,
    "SENDs for many subscriptions": sends_to_many_subscriptions,
    "FLOWs of many subscriptions": flows_of_many_subscriptions,
    "half-open connections": half_open,
    "slow writers": slow_writers,
    "slow readers": slow_readers,
    "consumers that are sent away": consumers_sent_away,
    "lists that nobody reads": unread_lists,
}
