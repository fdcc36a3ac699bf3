"""Requests to a broker's REST API that fixtures need: a namespace, and its end."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import quote, urlsplit

TIMEOUT_S = 30.0
NOT_FOUND, CONFLICT = 404, 409


class AdminFailed(Exception):
    """Raised when a broker refuses a request, or does not answer."""


def create_namespace(admin_url: str, name: str, policies: dict[str, Any] | None = None) -> None:
    """Create a namespace with policies (JSON of Pulsar's Policies). Raises AdminFailed."""
    _request(admin_url, "PUT", f"namespaces/{name}", policies)


def delete_namespace(admin_url: str, name: str) -> None:
    """Delete a namespace with all its topics, as far as it exists. Raises AdminFailed."""
    status, reason = _exchange(admin_url, "DELETE", f"namespaces/{name}?force=true")
    if status < 300 or status == NOT_FOUND:
        return
    # A broker without forceDeleteNamespaceAllowed deletes only empty namespaces.
    for domain in ("persistent", "non-persistent"):
        for partitioned in ("/partitioned", ""):
            for topic in _request(admin_url, "GET", f"{domain}/{name}{partitioned}"):
                local = quote(topic.partition(f"{name}/")[2], safe="")
                path = f"{domain}/{name}/{local}{'/partitions' if partitioned else ''}?force=true"
                status, reason = _exchange(admin_url, "DELETE", path)
    status, reason = _exchange(admin_url, "DELETE", f"namespaces/{name}")
    if status >= 300 and status != NOT_FOUND:
        raise AdminFailed(f"The namespace {name} was not deleted: {status} {reason}")


def _request(admin_url: str, method: str, path: str, body: Any = None) -> Any:
    status, text = _exchange(admin_url, method, path, body)
    if status >= 300:
        raise AdminFailed(f"{method} {admin_url}/admin/v2/{path}: {status} {text}")
    return json.loads(text) if text else None


def _exchange(admin_url: str, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """Return the status and the text of an answer, after redirects. Raises AdminFailed."""
    url = f"{admin_url.rstrip('/')}/admin/v2/{path}"
    for _ in range(4):
        parts = urlsplit(url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        connection = kind(parts.netloc, timeout=TIMEOUT_S)
        try:
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            data = None if body is None else json.dumps(body)
            connection.request(method, target, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
            if answer.status != 307:
                return answer.status, text
            url = answer.headers["Location"]
        except (OSError, http.client.HTTPException) as error:
            raise AdminFailed(
                f"{admin_url} does not answer: {error}. The URL of an external broker is that of"
                " --pulsar-admin-url."
            ) from None
        finally:
            connection.close()
    raise AdminFailed(f"{admin_url} redirects without end")
