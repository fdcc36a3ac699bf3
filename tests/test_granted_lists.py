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
