"""Asks a broker all cases, each in a scene that no other has changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from harness.brokers import Broker

from compat_tests.answers.cases import Case
from compat_tests.answers.differences import Told

TIMEOUT_S = 20.0
NEVER = (0, "")  # no answer in that time: its status and text


class Asker:
    """Asks one broker."""

    def __init__(self, broker: Broker) -> None:
        self._ask = broker.exchange
        self._urls = broker.web_urls()
        self._headers = broker.headers  # of who makes the scenes
        self._number = 0
        self._used = True
        self._ledger = "0"
        status, text = self._request("GET", "/admin/v2/brokers/standalone")
        self._brokers = json.loads(text) if status == 200 else ["none"]

    def ask(
        self, cases: Iterable[Case], headers: Mapping[str, str] | None = None
    ) -> Iterable[tuple[Case, Told]]:
        """Each case with its answer. `headers` say who asks: the one who makes the scenes else."""
        for case in cases:
            if self._used:
                self._set_scene()
            status, text = self._send(
                case.method, self._named(case.path), self._body(case.body), case.media, headers
            )
            # What is refused has changed nothing; of an unforeseen error nobody knows.
            self._used = case.method != "GET" and (status < 400 or status >= 500)
            yield case, Told(status, self._put_back(text))

    def set_and_read(self, case: Case) -> tuple[Told, Told]:
        """The answer to a case in a scene of its own, and what GET of its path says then."""
        self._set_scene()
        self._used = True
        body = self._body(case.body)
        set_told = self._send(case.method, self._named(case.path), body, case.media)
        path = case.path.partition("?")[0]
        path += "Map" if path.endswith("/backlogQuota") else ""
        told = self._request("GET", self._named(path))
        return (
            Told(set_told[0], self._put_back(set_told[1])),
            Told(told[0], self._put_back(told[1])),
        )

    def _set_scene(self) -> None:
        self._number += 1
        self._used = False
        for method, path, body in self.scene():
            status, text = self._made(method, self._named(path), body)
            assert status in (200, 204), (method, path, status, text)
            if path.startswith("/topics/"):
                [result] = json.loads(text)["messagePublishResults"]
                self._ledger = result["messageId"].partition(":")[0]

    def _made(self, method: str, path: str, body: bytes | None) -> tuple[int, str]:
        """Asks again where no answer came in time: a busy machine made it all the same."""
        status, text = self._request(method, path, body)
        if (status, text) == NEVER:
            status, text = self._request(method, path, body)
            if status == 409:  # it is there
                return 204, ""
        return status, text

    def scene(self) -> list[tuple[str, str, bytes | None]]:
        """A tenant, a namespace, topics with a subscription, a message, and a cluster."""
        topics = "persistent/T/ns"
        return [
            ("PUT", "/admin/v2/clusters/C", b'{"serviceUrl":"http://127.0.0.1:1"}'),
            ("PUT", "/admin/v2/tenants/T", b'{"allowedClusters":["standalone"]}'),
            ("PUT", "/admin/v2/namespaces/T/ns", b'{"bundles":{"numBundles":1}}'),
            ("PUT", f"/admin/v2/{topics}/topic", None),
            ("PUT", f"/admin/v2/{topics}/partitioned/partitions", b"2"),
            ("PUT", "/admin/v2/non-persistent/T/ns/topic", None),
            ("PUT", "/admin/v2/non-persistent/T/ns/partitioned/partitions", b"2"),
            ("PUT", f"/admin/v2/{topics}/topic/subscription/sub", b'{"ledgerId":-1,"entryId":-1}'),
            ("PUT", f"/admin/v2/{topics}/partitioned/subscription/sub", None),
            ("POST", f"/topics/{topics}/topic", b'{"messages":[{"payload":"hello"}]}'),
            ("PUT", "/admin/v2/resourcegroups/T-resources", b'{"publishRateInMsgs":1}'),
        ]

    def _request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
        return self._send(method, path, body, None if body is None else "application/json")

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        media: str | None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        who = dict(self._headers if headers is None else headers)
        at = self._urls[self._number % len(self._urls)]  # one for each scene
        try:
            status, _, data = self._ask(method, path, body, who, TIMEOUT_S, at, media)
        except OSError:
            return NEVER
        return status, data.decode(errors="replace")

    def _named(self, path: str) -> str:
        path = re.sub(r"(?<=/)T(?=[-/?]|$)", f"t{self._number}", path)
        path = re.sub(r"(?<=/)C(?=[-/?]|$)", f"c{self._number}", path)
        path = re.sub(r"/C(-\w+)", rf"/c{self._number}\1", path)
        return path.replace("BROKER", self._brokers[0]).replace("LEDGER", self._ledger)

    def _body(self, body: bytes | None) -> bytes | None:
        return body and re.sub(rb'(?<=[/"])T(?=/)', b"t%d" % self._number, body)

    def _put_back(self, text: str) -> str:
        text = re.sub(rf"\bt{self._number}\b", "T", text)
        text = re.sub(rf"\bc{self._number}\b", "C", text)
        for each in self._brokers:
            text = text.replace(each, "BROKER")
        return re.sub(rf"\b{self._ledger}:", "LEDGER:", text) if self._ledger != "0" else text
