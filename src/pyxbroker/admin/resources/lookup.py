"""/lookup/v2/topic: the broker that serves a topic."""

from __future__ import annotations

from urllib.parse import quote

from pyxbroker.admin.owners import is_authoritative, redirection
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import NAMESPACE_NOT_FOUND, require_namespace
from pyxbroker.auth.authorization import GET_BUNDLE, LOOKUP
from pyxbroker.base.bundles import bundle_of
from pyxbroker.base.errors import NamespaceNotFound
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.lookup import Redirect
from pyxbroker.web.endpoint import Answer, Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import JSON, Response

LISTENER_HEADER = "x-pulsar-listenername"
DOMAINS = ("persistent", "non-persistent")
FIELDS = ("brokerUrl", "brokerUrlTls", "httpUrl", "httpUrlTls", "nativeUrl", "brokerUrlSsl")


def topic_of(request: Request) -> TopicName:
    """Return the topic of a path.

    Raises HttpError 412 for an unknown domain and InvalidTopicName for an invalid name.
    """
    parts = request.parameters
    if parts["domain"] not in DOMAINS:
        domain = parts["domain"]
        raise HttpError(412, f"The topic domain {domain!r} is not one of {DOMAINS}.")
    name = TopicName.get(
        f"{parts['domain']}://{parts['tenant']}/{parts['namespace']}/{parts['topic']}"
    )
    name.check_length()
    return name


async def lookup_topic(request: Request) -> Response:
    """Return the owner's addresses as Pulsar's LookupData, for clients with an http:// URL."""
    listener = request.argument("listenerName") or request.headers.get(LISTENER_HEADER, "")
    listener = listener.strip()
    try:
        found = await request.app.broker.lookup(
            str(topic_of(request)), listener, request.address, is_authoritative(request)
        )
    except NamespaceNotFound:
        raise HttpError(404, NAMESPACE_NOT_FOUND) from None
    if isinstance(found, Redirect):
        fields = [f"listenerName={quote(listener, safe='')}"] if listener else []
        raise redirection(request, found, fields)
    answer = {
        "brokerUrl": found.broker_url,
        "brokerUrlTls": found.broker_url_tls,
        "httpUrl": found.web_url,
        "httpUrlTls": found.web_url_tls,
        "nativeUrl": found.broker_url,
    }
    # Pulsar omits ports that are not served; the legacy field brokerUrlSsl is always empty.
    return Response.json({name: url for name, url in answer.items() if url} | {"brokerUrlSsl": ""})


async def lookup_bundle(request: Request) -> Response:
    """Return the bundle of a topic."""
    name = topic_of(request)
    try:
        boundaries = await request.app.broker.namespaces.bundles(name.namespace)
    except NamespaceNotFound:
        raise HttpError(404, NAMESPACE_NOT_FOUND) from None
    found = bundle_of(name, boundaries)
    # Pulsar answers with plain text under the media type of JSON.
    return Response.text(str(found), JSON)


async def _require_namespace(request: Request) -> None:
    """Raise HttpError 404. Without authorization, the lookup itself checks the namespace."""
    if request.app.broker.permissions is not None:
        await require_namespace(request)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}",
        lookup_topic,
        LOOKUP,
        "The broker that serves a topic.",
        Answer(
            "The addresses of the broker, as Pulsar's LookupData.",
            {"type": "object", "properties": {name: {"type": "string"} for name in FIELDS}},
        ),
        topic_of,
        precheck=_require_namespace,
        query=(
            Query(
                "listenerName",
                "The listener whose addresses are returned; without it, the default addresses.",
            ),
        ),
    ),
    Endpoint(
        "GET",
        "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle",
        lookup_bundle,
        GET_BUNDLE,
        "The bundle of a topic.",
        Answer("The range as plain text."),
        topic_of,
    ),
)
