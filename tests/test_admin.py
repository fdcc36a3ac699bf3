"""REST resources, over a real socket, as curl and Pulsar's tools see them."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fake_service import FakeService
from pyxbroker.admin.app import Application
from pyxbroker.admin.refusals import refusal_of
from pyxbroker.base.errors import (
    MetadataStoreError,
    PulsarError,
    ServiceNotReady,
    TopicNotFound,
    UnknownError,
)
from pyxbroker.base.listening import listen
from pyxbroker.broker.commands.handlers import Handlers
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.metadata import paths
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import BadVersion
from pyxbroker.mledger.cursor import CursorError
from pyxbroker.mledger.errors import ManagedLedgerError, ManagedLedgerTerminated
from pyxbroker.settings.config import Config
from pyxbroker.web.server import WebServer

TIMEOUT_S = 10


def subclasses(root: type[PulsarError]) -> list[type[PulsarError]]:
    """The classes of base/errors.py below one, itself not included."""
    below = [each for each in root.__subclasses__() if each.__module__ == root.__module__]
    return [found for each in below for found in (each, *subclasses(each))]


Answer = tuple[int, str, str]  # status, content type, body
Get = Callable[..., Awaitable[Answer]]


@asynccontextmanager
async def served() -> AsyncIterator[tuple[FakeService, Get]]:
    store = MemoryStore()
    await store.open()
    await store.put(paths.cluster("standalone"), b"{}")
    service = FakeService(store, Config(webServicePort=0, bindAddress="127.0.0.1"))
    sock = listen("127.0.0.1", 0)
    port = sock.getsockname()[1]
    server = WebServer(Application(cast(Any, service), lambda: service).answer, 0)
    server.start(sock)

    def request(path: str, method: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
        finally:
            connection.close()

    async def get(path: str, method: str = "GET") -> Answer:
        return await asyncio.get_running_loop().run_in_executor(None, request, path, method)

    try:
        yield service, get
    finally:
        await server.stop()
        await store.close()


def run(test: Callable[[FakeService, Get], Awaitable[None]]) -> None:
    async def main() -> None:
        async with served() as (service, get):
            await test(service, get)

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/admin/v2/clusters", "/admin/v2/clusters/"])
def test_clusters_are_listed(path: str) -> None:
    async def test(service: FakeService, get: Get) -> None:
        await service.metadata.put(paths.cluster("global"), b"{}")
        await service.metadata.put(paths.cluster("west"), b"{}")
        status, kind, body = await get(path)
        assert (status, kind.partition(";")[0]) == (200, "application/json")
        assert json.loads(body) == ["standalone", "west"]

    run(test)


def test_health_is_ok_while_storage_and_metadata_work() -> None:
    async def test(service: FakeService, get: Get) -> None:
        assert await get("/admin/v2/brokers/health") == (
            200,
            "application/json; charset=utf-8",
            "ok",
        )
        service.broken = "the journal failed: No space left on device"
        status, _, body = await get("/admin/v2/brokers/health")
        assert (status, json.loads(body)) == (503, {"reason": service.broken})
        service.broken = None
        await service.metadata.close()
        status, _, body = await get("/admin/v2/brokers/health")
        assert status == 503
        assert "metadata store" in json.loads(body)["reason"]
        await service.metadata.open()

    run(test)


def test_lookup_answers_pulsars_lookup_data() -> None:
    async def test(service: FakeService, get: Get) -> None:
        status, _, body = await get("/lookup/v2/topic/persistent/public/default/a%2Bb%20c")
        assert status == 200
        assert json.loads(body) == {
            "brokerUrl": "pulsar://localhost:6650",
            "httpUrl": "http://localhost:8080",
            "nativeUrl": "pulsar://localhost:6650",
            "brokerUrlSsl": "",
        }
        await get("/lookup/v2/topic/non-persistent/public/default/t")
        assert service.looked_up == [
            "persistent://public/default/a+b c",
            "non-persistent://public/default/t",
        ]
        status, _, _ = await get("/lookup/v2/topic/persistent/public/default/a%2Fb")
        assert (status, len(service.looked_up)) == (412, 2)

    run(test)


def test_refusals_have_a_reason() -> None:
    async def test(service: FakeService, get: Get) -> None:
        topic = "/lookup/v2/topic/persistent/public/none/t"
        service.refusal = TopicNotFound("Namespace not found")
        status, kind, body = await get(topic)
        assert (status, json.loads(body)) == (404, {"reason": "Namespace not found"})
        assert kind.startswith("application/json")
        service.refusal = ServiceNotReady()
        assert (await get(topic))[0] == 503
        status, _, body = await get("/lookup/v2/topic/durable/public/default/t")
        assert (status, "durable" in json.loads(body)["reason"]) == (412, True)

    run(test)


def test_what_is_not_there_and_what_is_not_allowed() -> None:
    async def test(service: FakeService, get: Get) -> None:
        for path in ("/", "/admin/v2/nothing", "/admin/v2/clusters/standalone/x"):
            status, kind, body = await get(path)
            assert (status, kind.startswith("application/json")) == (404, True)
            assert json.loads(body)["reason"]
        assert (await get("/admin/v2/clusters", "POST"))[0] == 405

    run(test)


def test_a_fault_of_ours_is_a_500_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def test(service: FakeService, get: Get) -> None:
        service.storage = {"ledgers": 1}
        status, _, body = await get("/metrics")
        assert (status, "log" in json.loads(body)["reason"]) == (500, True)

    run(test)
    assert "request failed" in caplog.text


def test_a_request_before_the_start_waits_in_the_backlog() -> None:
    async def main() -> None:
        store = MemoryStore()
        await store.open()
        service = FakeService(store, Config(webServicePort=0, bindAddress="127.0.0.1"))
        sock = listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(b"GET /admin/v2/clusters HTTP/1.0\r\n\r\n")
        server = WebServer(Application(cast(Any, service), lambda: service).answer, 0)
        server.start(sock)
        assert (await reader.read()).startswith(b"HTTP/1.0 200 OK")
        writer.close()
        await server.stop()
        await store.close()

    asyncio.run(main())


def test_listen_needs_a_free_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            listen("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("kind", [PulsarError, *subclasses(PulsarError)])
def test_each_error_has_its_status(kind: type[PulsarError]) -> None:
    statuses = {
        400: {"UnknownListener"},
        401: {"AuthenticationError", "NotPermitted"},
        403: {"AuthorizationError"},
        404: {
            *("TenantNotFound", "NamespaceNotFound", "TopicNotFound"),
            *("SubscriptionNotFound", "ConsumerNotFound", "ClusterNotFound"),
            *("FailureDomainNotFound", "ResourceGroupNotFound", "TransactionNotFound"),
        },
        405: {"NotAllowed"},
        406: {"PartitionsNotAllowed"},
        409: {
            *("ConsumerBusy", "SubscriptionBusy", "IncompatibleSchema", "ConcurrentModification"),
            *("TenantExists", "TenantNotEmpty", "NamespaceExists", "NamespaceNotEmpty"),
            *("TopicExists", "ClusterExists", "BrokerInOtherDomain", "BundleNotEmpty"),
            *("InvalidTxnStatus", "TransactionConflict"),
        },
        412: {
            *("InvalidTopicName", "TopicBusy", "ClusterInUse", "ClusterNotEmpty"),
            *("ClustersLimitReached", "ResourceGroupInUse", "ResourceGroupsLimitReached"),
            "BundlesLimitReached",
            *("TenantsLimitReached", "NamespacesLimitReached", "TopicsLimitReached"),
            *("PoliciesTooLarge", "NamespaceOfOtherClusters"),
        },
        422: {"InvalidSchema"},
        429: {"TooManyRequests"},
        503: {
            *("AnswersNotRead", "MetadataStoreError", "ServiceNotReady", "TooManyBodies"),
            *("TooFewBookies", "TransactionCoordinatorNotFound"),
        },
    }
    expected = next((status for status, names in statuses.items() if kind.__name__ in names), 500)
    assert kind.http_status == expected
    answer = refusal_of(kind("Why."))
    assert answer is not None
    assert (answer.status, answer.body) == (expected, b'{"reason":"Why."}')


def test_what_fails_below_is_503_and_a_fault_of_ours_is_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for error, reason in (
        (BadVersion("/a/file"), MetadataStoreError.sentence),
        (asyncio.TimeoutError(), "The broker did not answer in time."),
    ):
        caplog.clear()
        answer = refusal_of(error)
        assert answer is not None and isinstance(answer.body, bytes)
        [fields] = [vars(each)["fields"] for each in caplog.records]
        assert fields["error"] is error
        told = {"reason": f"{reason} (reference {fields['reference']})"}
        assert (answer.status, json.loads(answer.body)) == (503, told)
    assert refusal_of(ValueError("a secret")) is None


@pytest.mark.parametrize(
    "error",
    [
        BadVersion("/a/file"),
        asyncio.TimeoutError(),
        LedgerError("ledger 3 cannot be read"),
        ManagedLedgerError("public/default/t cannot be written"),
        ManagedLedgerTerminated("it was terminated"),
        CursorError("a position could not be written"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_from_below_is_the_same_refusal_for_a_client_and_for_rest(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    connection = cast(Any, SimpleNamespace(peer="somebody"))
    told = Handlers.client_error(connection, "CommandSeek", error)
    answer = refusal_of(error)
    assert answer is not None and isinstance(answer.body, bytes)

    def sentence(text: str) -> str:
        return text.partition(" (reference ")[0]

    assert answer.status == told.http_status
    assert sentence(json.loads(answer.body)["reason"]) == sentence(str(told))
    assert "/a/file" not in str(told)
    assert [each.levelname for each in caplog.records] == ["WARNING"] * 2
    assert type(told) is not UnknownError
