"""What the Spark connector asks by REST, where brokers send on to others."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pyxbroker.spark.errors import PulsarSparkError, Refused
from pyxbroker.spark.ledgers import Ledger, ledgers_of
from pyxbroker.spark.options import BATCH, Options
from pyxbroker.spark.security import Security

TOPIC = "persistent://public/default/t"
GIVEN = {"service.url": "pulsar://a", "topic": TOPIC}
STATS = {
    "currentLedgerEntries": 5,
    "currentLedgerSize": 50,
    "ledgers": [
        {"ledgerId": 1, "entries": 3, "size": 30},
        {"ledgerId": 2, "entries": 0, "size": 0},
    ],
}


class Web(ThreadingHTTPServer):
    """Answers with (status, Location); with 200 there is a body."""

    def __init__(self, answer: Callable[[str], tuple[int, str]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.asked: list[tuple[str, str | None]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Authorization"]))
        status, location = self.server.answer(self.path)
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.end_headers()
        if status == 200:
            self.wfile.write(json.dumps(STATS).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[Callable[[Callable[[str], tuple[int, str]]], Web]]:
    made: list[Web] = []

    def make(answer: Callable[[str], tuple[int, str]]) -> Web:
        made.append(Web(answer))
        return made[-1]

    yield make
    for each in made:
        each.shutdown()
        each.server_close()


def security() -> Security:
    login = {
        "pulsar.client.authPluginClassName": "token",
        "pulsar.client.authParams": "token:t",
    }
    return Security(Options(BATCH, GIVEN | login), of_rest=True)


MakeWeb = Callable[[Callable[[str], tuple[int, str]]], Web]


def test_brokers_that_send_on_are_followed_and_told_who_asks(web: MakeWeb) -> None:
    owner = web(lambda path: (200, ""))
    other = web(lambda path: (307, f"{owner.url}{path}?authoritative=true"))
    first = web(lambda path: (307, f"{other.url}{path}"))
    found = ledgers_of(first.url, TOPIC, 5, security())
    assert found == [Ledger(1, 3, 30, False), Ledger(2, 5, 50, True)]
    path = "/admin/v2/persistent/public/default/t/internalStats"
    assert first.asked == other.asked == [(path, "Bearer t")]
    assert owner.asked == [(f"{path}?authoritative=true", "Bearer t")]


def test_brokers_that_send_round_in_a_ring_are_told(web: MakeWeb) -> None:
    ring = web(lambda path: (307, path))
    with pytest.raises(PulsarSparkError, match="redirect each other in a loop"):
        ledgers_of(ring.url, TOPIC, 5, security())
    assert len(ring.asked) == 20


@pytest.mark.parametrize(("status", "may_pass"), [(412, True), (503, True), (400, False)])
def test_a_topic_that_has_no_broker_yet_is_asked_for_again(
    web: MakeWeb, status: int, may_pass: bool
) -> None:
    starting = web(lambda path: (status, ""))
    with pytest.raises(Refused, match=f"answers {status}") as caught:
        ledgers_of(starting.url, TOPIC, 5, security())
    assert caught.value.may_pass is may_pass


@pytest.mark.parametrize("nowhere", ["", "ftp://b/admin"])
def test_who_is_sent_to_nobody_is_told(web: MakeWeb, nowhere: str) -> None:
    wrong = web(lambda path: (307, nowhere))
    with pytest.raises(PulsarSparkError, match=r"redirects \(307\) without a Location"):
        ledgers_of(wrong.url, TOPIC, 5, security())
