"""A list of names is for those who may see all that is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness.tokens import settings, token

from one_broker import TOPIC, Broker, run
from pyxbroker.admin.app import Application
from pyxbroker.admin.request import Request
from pyxbroker.auth.authentication import Authentication
from pyxbroker.metadata import paths
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.web.request import Body
from test_logins import connect, let_in

NAMESPACE = "public/default"
ROLES = ("root", "admin", "produces", "consumes", "one topic", "other admin", "nobody")
OF_NAMESPACE = {"root", "admin", "produces", "consumes"}
LISTS = {
    "/admin/v2/tenants": {"root"},
    "/admin/v2/namespaces/public": {"root", "admin"},
    f"/admin/v2/namespaces/{NAMESPACE}/topics": OF_NAMESPACE,
    f"/admin/v2/persistent/{NAMESPACE}": OF_NAMESPACE,
    f"/admin/v2/persistent/{NAMESPACE}/partitioned": OF_NAMESPACE,
    f"/admin/v2/non-persistent/{NAMESPACE}": OF_NAMESPACE,
    f"/admin/v2/non-persistent/{NAMESPACE}/partitioned": OF_NAMESPACE,
    "/admin/v2/broker-stats/topics": {"root"},
    "/admin/v2/resourcegroups": {"root"},
    "/admin/v2/brokers/standalone": {"root"},
}
SHOWN = {
    "/admin/v2/namespaces/public": [NAMESPACE],
    f"/admin/v2/persistent/{NAMESPACE}": [TOPIC],
}
COMMANDS = (
    (pb.CommandGetTopicsOfNamespace(namespace=NAMESPACE, request_id=1),
     "getTopicsOfNamespaceResponse"),
    (pb.CommandWatchTopicList(namespace=NAMESPACE, topics_pattern=f"{NAMESPACE}/.*", watcher_id=1,
                              request_id=1), "watchTopicListSuccess"),
)  # fmt: skip


async def ask(broker: Broker, role: str, path: str) -> tuple[int, bytes]:
    body = Body(0, lambda: None)
    body.end()
    headers = {"authorization": f"Bearer {token(role)}"}
    service: Any = broker.service
    answer = await Application(service, lambda: service).answer(
        Request("GET", path, "", headers, body)
    )
    return answer.status, answer.body if isinstance(answer.body, bytes) else b""


def test_the_brokers_of_another_cluster_are_not_those_of_this_one(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        broker.service.authentication = Authentication(broker.config)
        record = json.dumps({"serviceUrl": "http://west:8080"}).encode()
        await broker.node.store.put(paths.cluster("west"), record)
        this = broker.service.broker_id
        for rest in ("", f"/{this}/ownedNamespaces"):
            assert (await ask(broker, "root", f"/admin/v2/brokers/standalone{rest}"))[0] == 200
            missing = await ask(broker, "root", f"/admin/v2/brokers/nope{rest}")
            assert missing == (404, b'{"reason":"Cluster does not exist: cluster=nope"}')
            status, text = await ask(broker, "root", f"/admin/v2/brokers/west{rest}")
            assert (status, b"http://west:8080" in text) == (307, True)
        broker.config.authorizationEnabled = False
        assert (await ask(broker, "root", "/admin/v2/brokers/nope"))[0] == 200

    run(tmp_path, scenario, **settings(authorizationEnabled=True, superUserRoles="root"))


@pytest.mark.parametrize("role", ROLES)
def test_who_may_list_what(tmp_path: Path, role: str) -> None:
    async def scenario(broker: Broker) -> None:
        broker.service.authentication = Authentication(broker.config)
        grants = {
            "namespace_auth": {"produces": ["produce"], "consumes": ["consume"]},
            "destination_auth": {TOPIC: {"one topic": ["produce", "consume"]}},
        }
        for path, record in (
            (paths.tenant("public"), {"adminRoles": ["admin"]}),
            (paths.tenant("other"), {"adminRoles": ["other admin"]}),
            (paths.namespace_policies(NAMESPACE), {"auth_policies": grants}),
        ):
            await broker.node.store.put(path, json.dumps(record).encode())
        await broker.topic()
        for path, roles in LISTS.items():
            status, body = await ask(broker, role, path)
            if role in roles:
                assert status == 200, path
                assert path not in SHOWN or json.loads(body) == SHOWN[path]
            else:
                assert status in (401, 403), path
                assert b"persistent://" not in body
        client = await let_in(broker, connect(token(role)))
        for command, answer in COMMANDS:
            if role in OF_NAMESPACE:
                found = await client.request(command, answer)
                assert list(getattr(found, "topics", ()) or found.topic) == [TOPIC]
            else:
                error = await client.request(command, "error")
                assert error.error == pb.AuthorizationError

    run(tmp_path, scenario, **settings(authorizationEnabled=True, superUserRoles="root"))
