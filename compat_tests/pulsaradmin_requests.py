"""The requests that pulsar-admin (Java) sends for each command and option, and those of ours.

The record has about 800 command lines: each command with the options that it needs, with each of
its other options, and with all of them. T is a topic and SCHEMA a file with a schema.

python -m compat_tests.pulsaradmin_requests    has pulsar-admin send them again, and writes the file
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from harness.java_admin import JavaAdmin

from pyxbroker.cli.admin import running
from pyxbroker.client.admin import AdminClient
from pyxbroker.client.http import HttpAnswer
from pyxbroker.client.settings import ClientSettings

RECORD = Path(__file__).parent / "answers" / "pulsaradmin-requests.json"
TOPIC = "persistent://ten/ns/top"
SCHEMA = {"type": "STRING", "schema": "", "properties": {}}

# What the server answers, so that commands of several requests go on: patterns of paths.
ANSWERS: tuple[tuple[str, Any], ...] = (
    (r"partitioned-|stats", {}),
    (r"(subscriptions|Topics|partitioned)(\?|$)|persistent/ten/ns(\?|$)|/admin/v2/tenants$", []),
    (r"namespaces/[^/]*$|namespaces/ten/ns/topics|resourcegroups$", []),
    (r"ermissions|backlogQuotaMap|failureDomains$|IsolationPolicies$|configuration/values", {}),
    (r"/lookup/", {"brokerUrl": "pulsar://b:1"}),
    (r"/tenants/[^/?]+$", {"adminRoles": ["a0"], "allowedClusters": ["c0"]}),
    (r"/admin/v2/clusters$", ["standalone", "c2"]),
    (r"/brokers/configuration/runtime", {"clusterName": "standalone"}),
    (r"/partitions(\?|$)", {"partitions": 0}),
    (r"/clusters/[^/?]+$", {"serviceUrl": "http://x"}),
    (r"resource-quotas", {"memory": 5.0}),
    (r"/(compaction|offload)$", {"status": "NOT_RUN"}),
    (r"/internalStats", {"ledgers": []}),
    (r"/schemas$", {"getSchemaResponses": []}),
    (r"/schema$", {"version": 1, "type": "STRING", "timestamp": 0, "data": "", "properties": {}}),
)
TERMINATED = {"ledgerId": 1, "entryId": 2, "partitionIndex": -1}
# What pulsar-admin sends although it says nothing.
SILENT_PARAMETERS = {
    "deleteSchema": "true",
    "subscriptionBacklogSize": "true",
    "maxConcurrentUnloadPerSec": "0",
}
SILENT_FIELDS = {"batchSize": 0, "excluded": False, "empty": False}
# Lines whose requests differ, and why.
DIFFERENCES = {
    r"^clusters list$": "pulsar-admin asks for the cluster that it then does not mark",
    r"^clusters delete a-cluster -a$": "not built: deletes all tenants",
    r"^namespaces get-anti-affinity-namespaces ": "pulsar-admin asks a path that no broker has",
    r"^namespaces set-schema-autoupdate-strategy .*-c\w+ \w+ --disabled$": "refused: contradictory",
    r"^namespaces set-schema-autoupdate-strategy .*--compatibility \w+ --disabled$": "refused, too",
    r"^topicPolicies get-subscription-dispatch-rate .* --subscription": "it forgets --global there",
    r"^namespaces get-offload-threshold ": "pulsar-admin stops at the first answer here",
    r"^topics peek-messages .* -n 7": "pulsar-admin stops at the first answer here",
}


class Request(NamedTuple):
    method: str
    path: str
    query: Mapping[str, str]
    body: Any


class Recorded(NamedTuple):
    """A line, and what pulsar-admin sends for it."""

    line: str
    requests: list[Request]


def recorded() -> list[Recorded]:
    return [
        Recorded(line, [request_of(*each) for each in requests])
        for line, requests in json.loads(RECORD.read_text())
    ]


def words_of(line: str, directory: Path) -> list[str]:
    """Return the words of a line; SCHEMA becomes a file in the directory."""
    file = directory / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    return [{"T": TOPIC, "SCHEMA": str(file)}.get(each, each) for each in line.split()]


def request_of(method: str, target: str, body: Any) -> Request:
    """Return a request without what only repeats defaults."""
    parts = urlsplit(target)
    query = {
        name: value
        for name, value in parse_qsl(parts.query)
        if value != "false" and SILENT_PARAMETERS.get(name) != value
    }
    if method == "DELETE":
        query.pop("messageTTL", None)
    if isinstance(body, dict):
        body = _said(parts.path, body)
    return Request(method, parts.path, query, _sorted(body))


def _said(path: str, body: dict[str, Any]) -> dict[str, Any]:
    if "deleted" in body and "properties" in body and "migrated" in body:  # a new namespace
        body = {name: body[name] for name in ("replication_clusters", "bundles") if body.get(name)}
    if path.endswith("/offloadPolicies"):
        # The rest are constants of the class in Java, and what follows from the driver.
        return {name: each for name, each in body.items() if name.startswith("managedLedger")}
    if path.endswith("/backlogQuota"):
        body = {name: each for name, each in body.items() if name != "limit"}  # that is limitSize
    return {name: each for name, each in body.items() if SILENT_FIELDS.get(name, ...) != each}


def _sorted(value: Any) -> Any:
    """Return lists, which are sets in Java, in one order."""
    if isinstance(value, dict):
        return {name: _sorted(each) for name, each in value.items()}
    return sorted(map(_sorted, value), key=str) if isinstance(value, list) else value


def is_equal(theirs: list[Request], ours: list[Request]) -> bool:
    """Compare what is changed, or else what is asked; pulsar-admin asks some things twice."""
    changes = [[each for each in side if each.method != "GET"] for side in (theirs, ours)]
    if any(changes):
        return changes[0] == changes[1]
    return {str(each) for each in theirs} == {str(each) for each in ours}


def difference_of(line: str) -> str | None:
    return next((why for each, why in DIFFERENCES.items() if re.search(each, line)), None)


# --- ours -----------------------------------------------------------------------------------------


class RecordingClient(AdminClient):
    """Answers requests itself."""

    def __init__(self) -> None:
        super().__init__(ClientSettings("http://b:1"))
        self.requests: list[Request] = []

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        content_type: str = "",
    ) -> HttpAnswer:
        target = path + (f"?{urlencode(query)}" if query else "")
        self.requests.append(request_of(method, target, json.loads(json.dumps(body))))
        return HttpAnswer(target, 200, "", {}, answer_to(method, target))


def ours(words: list[str]) -> list[Request]:
    """Return what `pyxbroker admin` sends. Raises SystemExit for wrong usage."""
    group, name, *rest = words
    command = running.table_of(group)[name]
    values = running.parse(group, name, command, rest)
    client = RecordingClient()
    asyncio.run(running.answer_of(client, command, values))
    return client.requests


def answer_to(method: str, target: str) -> bytes:
    if method == "GET":
        for pattern, answer in ANSWERS:
            if re.search(pattern, target):
                return json.dumps(answer).encode()
    if target.endswith("/terminate"):
        return json.dumps(TERMINATED).encode()
    return b"{}" if target.endswith("/terminate/partitions") else b""


# --- pulsar-admin ---------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """Answers like RecordingClient."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, str, Any]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        data = self._body().decode()
        try:
            body = json.loads(data) if data else None
        except ValueError:
            body = data
        self.server.seen.append((self.command, self.path, body))
        answer = answer_to(self.command, self.path)
        self.send_response(200 if answer else 204)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_PUT = do_POST = do_DELETE = do_GET

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def theirs(lines: list[str], directory: Path) -> list[list[tuple[str, str, Any]]]:
    """Return what pulsar-admin sends for each line."""
    server, admin = Server(), JavaAdmin()
    found = []
    try:
        for line in lines:
            server.seen.clear()
            admin.run(server.url, *words_of(line, directory))
            found.append(list(server.seen))
    finally:
        admin.close()
        server.shutdown()
    return found


def main() -> None:
    lines = [each.line for each in recorded()]
    with tempfile.TemporaryDirectory() as directory:
        found = theirs(lines, Path(directory))
    rows = [
        json.dumps([line, requests], separators=(",", ":"))
        for line, requests in zip(lines, found, strict=True)
    ]
    RECORD.write_text("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main()
