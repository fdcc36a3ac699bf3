"""/lookup/v2/topic: which broker a client has to connect to for a topic."""

from __future__ import annotations

from urllib.parse import quote

from pyxbroker.admin.owners import is_authoritative, redirection
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import NAMESPACE_NOT_FOUND, namespace_first
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
    """The topic of a path. Raises HttpError 412 for a domain, InvalidTopicName for a name."""
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
    """The owner's addresses, as Pulsar's LookupData: clients with an http:// URL ask this."""
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
    told = {
        "brokerUrl": found.broker_url,
        "brokerUrlTls": found.broker_url_tls,
        "httpUrl": found.web_url,
        "httpUrlTls": found.web_url_tls,
        "nativeUrl": found.broker_url,
    }
    # Pulsar leaves out what it does not serve, and the older name of the second is always empty.
    return Response.json({name: url for name, url in told.items() if url} | {"brokerUrlSsl": ""})


async def lookup_bundle(request: Request) -> Response:
    """The bundle of its namespace that a topic's hash is in."""
    name = topic_of(request)
    try:
        boundaries = await request.app.broker.namespaces.bundles(name.namespace)
    except NamespaceNotFound:
        raise HttpError(404, NAMESPACE_NOT_FOUND) from None
    found = bundle_of(name, boundaries)
    # Pulsar answers the range bare, yet calls it JSON.
    return Response.text(str(found), JSON)


async def _namespace_first(request: Request) -> None:
    """Raises HttpError 404. Without authorization the lookup itself finds that out, once."""
    if request.app.broker.permissions is not None:
        await namespace_first(request)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}",
        lookup_topic,
        LOOKUP,
        "Which broker a client has to connect to for a topic.",
        Answer(
            "The addresses of the broker, as Pulsar's LookupData.",
            {"type": "object", "properties": {name: {"type": "string"} for name in FIELDS}},
        ),
        topic_of,
        first=_namespace_first,
        query=(Query("listenerName", "Whose addresses; without it those of all clients."),),
    ),
    Endpoint(
        "GET",
        "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle",
        lookup_bundle,
        GET_BUNDLE,
        "The bundle that a topic is in.",
        Answer("Its range, bare."),
        topic_of,
    ),
)
