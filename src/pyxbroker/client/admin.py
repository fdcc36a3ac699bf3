"""Pulsar's REST API as a client sees it: JSON, redirects to other brokers, errors with reasons."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

from pyxbroker.base.topic_name import TopicName
from pyxbroker.client.addresses import ServiceUrl, is_tls
from pyxbroker.client.errors import (
    BadRedirect,
    ClientError,
    ConnectFailed,
    ConnectionFailed,
    HttpRefused,
    RedirectLoop,
    TlsFailed,
)
from pyxbroker.client.http import HttpAnswer, HttpConnections
from pyxbroker.client.settings import ClientSettings

REDIRECTS_MAX = 20
REASON_CHARACTERS_MAX = 500
_REDIRECTS = (307, 308)
_REDIRECTS_OF_READS = (301, 302, *_REDIRECTS)


class AdminClient:
    """Requests to the web service URL of a cluster. Use it in `async with`, or close it."""

    def __init__(self, settings: ClientSettings) -> None:
        """settings.service_url: of the web port, `http://` or `https://`. Raises BadSetting."""
        self._settings = settings
        self._service = ServiceUrl(settings.service_url)
        own = settings.authentication.certificate()
        self._connections = HttpConnections(
            lambda: settings.tls.context(own),
            settings.connect_timeout_s,
            settings.operation_timeout_s,
        )

    async def __aenter__(self) -> AdminClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connections.close()

    async def get(self, path: str, **query: Any) -> Any:
        """Return the JSON of an answer. Raises HttpRefused, ConnectionFailed."""
        return json_of(await self.request("GET", path, query=query))

    async def put(self, path: str, body: Any = None, **query: Any) -> Any:
        return json_of(await self.request("PUT", path, body, query))

    async def post(self, path: str, body: Any = None, **query: Any) -> Any:
        return json_of(await self.request("POST", path, body, query))

    async def delete(self, path: str, **query: Any) -> Any:
        return json_of(await self.request("DELETE", path, query=query))

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> HttpAnswer:
        """Send a request to the first host that answers, and follow the redirects of brokers.

        path: from /admin or /lookup on, percent-encoded (see `topic_path`). body: sent as JSON
        of the content type, bytes as they are. Raises HttpRefused for a status of 300 and above,
        ConnectionFailed.
        """
        target = path + (f"?{urlencode(query)}" if query else "")
        data, headers = await self._encode(body, content_type)
        failure: ConnectionFailed | None = None
        for _ in range(len(self._service.urls)):
            url = self._service.current + target
            try:
                return refuse_errors(await self._follow(method, url, headers, data))
            except ConnectionFailed as error:
                if method != "GET" and not isinstance(error, (ConnectFailed, TlsFailed)):
                    raise  # a broker may have processed it
                failure = failure or error
                self._service.rotate()
        assert failure is not None
        raise failure

    async def _encode(self, body: Any, content_type: str) -> tuple[bytes, dict[str, str]]:
        headers = {"Accept": "application/json"}
        authentication = self._settings.authentication
        value = authentication.header_of(await authentication.current_credentials())
        if value:
            headers["Authorization"] = value
        if body is None:
            return b"", headers
        if isinstance(body, bytes):
            return body, headers | {"Content-Type": "application/octet-stream"}
        return json.dumps(body).encode(), headers | {"Content-Type": content_type}

    async def _follow(
        self, method: str, url: str, headers: dict[str, str], data: bytes
    ) -> HttpAnswer:
        return await follow(self._connections, method, url, headers, data, REDIRECTS_MAX)


async def follow(
    connections: HttpConnections,
    method: str,
    url: str,
    headers: Mapping[str, str],
    data: bytes,
    redirects_max: int,
) -> HttpAnswer:
    """Return the answer to a request after following redirects. Raises RedirectLoop for more than
    redirects_max, BadRedirect, ConnectionFailed.
    """
    first = url
    followed = _REDIRECTS_OF_READS if method == "GET" else _REDIRECTS
    for _ in range(redirects_max):
        answer = await connections.request(method, url, headers, data)
        if answer.status not in followed:
            return answer
        url = redirect_of(answer)
    parts = urlsplit(first)
    origin = f"{parts.scheme}://{parts.netloc}"
    raise RedirectLoop(f"{origin} and other brokers redirect to each other.")


def redirect_of(answer: HttpAnswer) -> str:
    """Return the URL that a broker redirects to, which gets the credentials, too.

    Only brokers of the cluster are asked, so only they can name such a URL. It must not send the
    credentials of a request with TLS over a connection without. Raises BadRedirect.
    """
    url = urljoin(answer.url, answer.headers.get("location", ""))
    parts, asked = urlsplit(url), urlsplit(answer.url)
    origin = f"{asked.scheme}://{asked.netloc}"
    has_host = parts.scheme in ("http", "https") and bool(parts.hostname)
    if not answer.headers.get("location") or not has_host:
        raise BadRedirect(origin, answer.status, "")
    if is_tls(answer.url) and parts.scheme != "https":
        raise BadRedirect(origin, answer.status, f"{parts.scheme}://{parts.netloc}")
    return url.partition("#")[0]


def refuse_errors(answer: HttpAnswer) -> HttpAnswer:
    """Raise HttpRefused for the status of an error, with the reason that the broker gives."""
    if answer.status < 300:
        return answer
    text = answer.body[: 16 << 10].decode(errors="replace")
    try:
        found = json.loads(text)
        text = str(found["reason"]) if isinstance(found, dict) and "reason" in found else text
    except (ValueError, RecursionError):
        pass
    reason = text.strip()[:REASON_CHARACTERS_MAX] or answer.reason
    raise HttpRefused(answer.url, answer.status, reason)


def json_of(answer: HttpAnswer) -> Any:
    """Return the JSON of an answer; None: its body is empty. Raises ClientError."""
    if not answer.body:
        return None
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        raise ClientError(f"{answer.url} answered with a body that is not JSON.") from None


def topic_path(topic: str, resource: str = "") -> str:
    """Return the path of a topic in REST: `/admin/v2/persistent/tenant/namespace/topic/stats`."""
    name = TopicName.get(topic)
    domain = "persistent" if name.is_persistent else "non-persistent"
    path = f"/admin/v2/{domain}/{name.namespace}/{quote(name.local_name, safe='')}"
    return f"{path}/{resource}" if resource else path
