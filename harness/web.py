"""One request to a broker's web port, with the headers of its answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.brokers import Broker

TIMEOUT_S = 30.0
SEEN_WITHIN_S = 5.0  # what one broker changes the others apply within a second; a busy machine


@dataclass
class WebAnswer:
    """A status, headers by their names, and a body as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def reason(self) -> str:
        """The sentence of a refusal."""
        return str(json.loads(self.body)["reason"])

    def json(self) -> Any:
        """The body of an answer in JSON."""
        return json.loads(self.body)


def web(broker: Broker, method: str, path: str, body: Any = None) -> WebAnswer:
    """The answer to a request; a body goes as JSON."""
    status, headers, data = broker.exchange(method, path, body, {}, TIMEOUT_S)
    return WebAnswer(status, headers, data)


def seen(broker: Broker, path: str, check: Callable[[Any], bool]) -> None:
    """Wait until `check` accepts what each broker answers to GET."""
    deadline = time.monotonic() + SEEN_WITHIN_S
    for url in broker.web_urls():
        while not check(json.loads(broker.exchange("GET", path, at=url)[2])):
            assert time.monotonic() < deadline, f"{url}{path} does not show the change"
            time.sleep(0.02)
