"""One request to a broker's web port, with the headers of its answer."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any

from harness.brokers import Broker

TIMEOUT_S = 30.0


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
    connection = http.client.HTTPConnection("127.0.0.1", broker.web_port, timeout=TIMEOUT_S)
    try:
        data = None if body is None else json.dumps(body)
        headers = {} if data is None else {"Content-Type": "application/json"}
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        return WebAnswer(answer.status, dict(answer.getheaders()), answer.read())
    finally:
        connection.close()
