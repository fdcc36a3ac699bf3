"""With metadata in ZooKeeper, names that clients make up leave nothing behind there."""

from __future__ import annotations

import itertools
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import wire
from harness.raw import RawConnection
from harness.tokens import token, with_rights

from command_line import Broker, standalone
from zookeeper_server import ZooKeeperServer

pytestmark = pytest.mark.interop

NAMES = 25
_numbers = itertools.count()


OWN = 2  # watches that the broker may have begun meanwhile for itself


def watches(server: ZooKeeperServer) -> int:
    """How many watches ZooKeeper has."""
    found = re.search(r"Total watches:(\d+)", server.command("wchs"))
    assert found is not None
    return int(found[1])


def topics() -> Iterator[str]:
    """Of a tenant, of a namespace, and one of each that is there: all made up."""
    while True:
        n = next(_numbers)
        yield f"persistent://tenant{n}/x/y"
        yield f"persistent://public/namespace{n}/y"
        yield f"persistent://public/default/topic{n}"
        yield f"persistent://public/default/topic{n}-partition-0"


def ask_by_protocol(broker: Broker, topic: str, **connect: dict[int, object]) -> None:
    """Each command that names a topic or a namespace, and its answer."""
    namespace = topic.removeprefix("persistent://").rpartition("/")[0]
    schema = {1: "s", 3: b"", 4: 2}
    with RawConnection(broker.broker_port, handshake=False) as client:
        client.connect(**connect)
        commands: list[tuple[int, dict[int, object]]] = [
            (wire.LOOKUP, {1: topic, 2: 1}),
            (wire.PARTITIONED_METADATA, {1: topic, 2: 2}),
            (wire.PARTITIONED_METADATA, {1: topic, 2: 3, 6: 0}),
            (wire.GET_TOPICS_OF_NAMESPACE, {1: 4, 2: namespace}),
            (wire.WATCH_TOPIC_LIST, {1: 5, 2: 1, 3: namespace, 4: f"{topic}.*"}),
            (wire.GET_SCHEMA, {1: 6, 2: topic}),
            (wire.GET_OR_CREATE_SCHEMA, {1: 7, 2: topic, 3: wire.encode(schema)}),
            (wire.PRODUCER, {1: topic, 2: 1, 3: 8}),
            (wire.SUBSCRIBE, {1: topic, 2: "s", 3: wire.SHARED, 4: 1, 5: 9}),
        ]
        for kind, fields in commands:
            client.command(kind, fields)
            client.receive()


def paths_of(origin: str, headers: dict[str, str]) -> list[str]:
    """Each GET that names something."""
    request = urllib.request.Request(f"{origin}/openapi.json", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        document = json.loads(answer.read())
    return [path for path, of in document["paths"].items() if "get" in of and "{" in path]


def ask_by_rest(origin: str, path: str, topic: str, headers: dict[str, str]) -> int:
    _, _, tenant, namespace, name = topic.split("/")
    known = {"tenant": tenant, "namespace": namespace, "topic": name, "domain": "persistent"}

    def fill(found: re.Match[str]) -> str:
        if found[2]:
            return "1"
        return known.get(found[1], f"made-up-{next(_numbers)}")

    url = origin + re.sub(r"\{(\w+)(:int)?\}", fill, path)
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("rights", ["everybody may all", "a role without any right"])
def test_made_up_names_leave_no_watch(tmp_path: Path, rights: str) -> None:
    settings = {"allowAutoTopicCreation": "false", "defaultNumPartitions": "2"}
    settings["transactionCoordinatorEnabled"] = "true"
    connect: dict[int, object] = {}
    headers: dict[str, str] = {}
    if rights != "everybody may all":
        settings |= with_rights("pyxbroker")
        nobody = token("nobody")
        connect = {5: "token", 3: nobody}
        headers = {"Authorization": f"Bearer {nobody}"}
    server = ZooKeeperServer(tmp_path / "zookeeper")
    server.start()
    try:
        options = [each for one in settings.items() for each in ("--set", "=".join(one))]
        url = f"zk:{server.address}"
        with standalone(tmp_path / "data", "--metadata", url, *options) as broker:
            origin = broker.find(r"admin +(http://[^/]+)")
            names = topics()
            gets = paths_of(origin, headers)
            assert len(gets) > 100

            def ask(count: int) -> None:
                for topic in itertools.islice(names, 4 * count):
                    ask_by_protocol(broker, topic, fields=connect)
                for path in gets:
                    for topic in itertools.islice(names, 4):
                        assert ask_by_rest(origin, path, topic, headers) < 500, path

            ask(1)
            before = watches(server)
            ask(NAMES)
            more = watches(server) - before
            assert more <= OWN, f"{more} watches of {next(_numbers)} names are left"
            assert broker.process.poll() is None
    finally:
        server.kill()
