"""Redirects of requests about a topic or a bundle to the broker that serves it.

Every endpoint with a topic or a bundle in its path redirects, except those in ANSWERED_BY_ALL.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import namespace_of, topic_of
from pyxbroker.auth.authorization import Resource
from pyxbroker.base import bundles
from pyxbroker.base.bundles import Bundle
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.listeners import Addresses
from pyxbroker.broker.lookup import Decision, Redirect, Refuse
from pyxbroker.web.endpoint import Endpoint
from pyxbroker.web.errors import HttpError

TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
BUNDLE = "/admin/v2/namespaces/{tenant}/{namespace}/{bundle}"
UNLOAD = BUNDLE + "/unload"
QUOTAS = "/admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}"
LOOKUP = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"
# Endpoints that every broker answers from metadata, as in Pulsar. HTTP lookups redirect by
# themselves.
ANSWERED_BY_ALL = frozenset(
    {
        ("GET", LOOKUP),
        ("GET", LOOKUP + "/bundle"),
        *((method, QUOTAS) for method in ("GET", "POST", "DELETE")),
        ("GET", TOPIC + "/partitions"),
        ("PUT", TOPIC + "/partitions"),
        ("POST", TOPIC + "/partitions"),
        ("POST", TOPIC + "/createMissedPartitions"),
        ("GET", TOPIC + "/permissions"),
        ("POST", TOPIC + "/permissions/{role}"),
        ("DELETE", TOPIC + "/permissions/{role}"),
    }
)
WHY = frozenset({("GET", TOPIC + "/why"), ("GET", TOPIC + "/subscription/{subName}/why")})
"""Endpoints that redirect only to a broker that answers, and otherwise say that it does not."""
OF_CLUSTER = frozenset(
    {
        ("GET", TOPIC + "/partitions"),
        ("PUT", TOPIC + "/partitions"),
        ("POST", TOPIC + "/createMissedPartitions"),
    }
)
"""Those of ANSWERED_BY_ALL that only a cluster of the namespace answers."""
OF_OWNED_BUNDLES = frozenset(
    {
        ("PUT", UNLOAD),
        ("GET", BUNDLE + "/topicHashPositions"),
    }
)
"""Endpoints that leave a bundle without an owner as it is."""
AUTHORITATIVE = "authoritative"
DESTINATION = "destinationBroker"
"""The parameter that names the next owner of a bundle, which the leader takes out."""
URL_SIGNS = "/%:@!$&'()*+,;=~?"  # characters that a request target may contain unescaped


async def check_owner(request: Request, endpoint: Endpoint, resource: Resource) -> None:
    """Raise HttpError 307 if another broker serves the resource; PulsarError if none can be named.

    `resource` is the resource of the endpoint's right.
    """
    name = endpoint.method, endpoint.path
    of_part = not request.parameters.keys().isdisjoint(("topic", "bundle"))
    if name in OF_CLUSTER or (of_part and name not in ANSWERED_BY_ALL):
        await check_cluster(request)
    if name in ANSWERED_BY_ALL:
        return
    if "topic" in request.parameters:
        if isinstance(resource, TopicName):
            await check_topic_owner(request, resource)
        elif "domain" in request.parameters:
            await check_topic_owner(request, topic_of(request))
    elif "bundle" in request.parameters:
        try:
            bundle = bundles.parse(request.parameters["bundle"])
        except ValueError:
            return  # the endpoint refuses it or finds the bundle
        if endpoint.path == UNLOAD and DESTINATION in request.query_string:
            return  # the leader has to know first
        acquires = (endpoint.method, endpoint.path) not in OF_OWNED_BUNDLES
        await check_bundle(request, bundle, acquires)


async def check_cluster(request: Request) -> None:
    """Raise HttpError 307 if a peer cluster serves the namespace of the path; PulsarError if only
    clusters do that are no peers.
    """
    peer = await request.app.broker.peer_cluster_of(namespace_of(request))
    if peer is not None:
        raise redirection_to(request, peer)


async def check_topic_owner(request: Request, topic: TopicName) -> None:
    """Raise HttpError 307 if another broker serves a topic; PulsarError if none can be named."""
    broker, endpoint = request.app.broker, request.endpoint
    if "partition" in request.parameters:
        topic = topic.partition(request.parameters["partition"])
    decision = await broker.ownership.find(topic, is_authoritative(request))
    if isinstance(decision, Redirect | Refuse):
        if (await broker.topics.partitions.read(topic)).partitions:
            return  # its partitions may have other owners
        if isinstance(decision, Redirect) and (endpoint.method, endpoint.path) in WHY:
            from pyxbroker.admin.silent_owner import check_answers

            await check_answers(broker, decision)
        _raise(request, decision)


async def check_bundle(request: Request, bundle: Bundle, acquires: bool = True) -> None:
    """Raise HttpError 307 if another broker serves a bundle; PulsarError if none can be named.

    Without `acquires`, a bundle without an owner stays without one, and this broker answers.
    """
    ownership = request.app.broker.ownership
    namespace, authoritative = namespace_of(request), is_authoritative(request)
    _raise(request, await ownership.find_of_bundle(namespace, bundle, authoritative, acquires))


async def check_destination(request: Request, bundle: Bundle, broker_id: str) -> None:
    """Make a broker the next owner of a bundle. Raise HttpError 307 if another broker leads or owns
    the bundle, 409 if the broker is not registered, and 412 while no leader is known.
    """
    ownership = request.app.broker.ownership
    decision = ownership.plan(namespace_of(request), bundle, broker_id)
    if decision is None:
        raise HttpError(409, "Not allowed unload namespace bundle to inactive destination broker")
    if isinstance(decision, Refuse):
        raise HttpError(412, str(decision.error))
    if isinstance(decision, Redirect):
        raise redirection(request, decision, _other_fields(request, AUTHORITATIVE))
    await check_bundle(request, bundle, acquires=False)


def _raise(request: Request, decision: Decision) -> None:
    if isinstance(decision, Refuse):
        raise decision.error
    if isinstance(decision, Redirect):
        raise redirection(request, decision, _other_fields(request, AUTHORITATIVE, DESTINATION))


def _other_fields(request: Request, *names: str) -> list[str]:
    """Return the encoded fields of the query, except some."""
    fields = request.query_string.split("&")
    return [each for each in fields if each and each.partition("=")[0] not in names]


def redirection(request: Request, to: Redirect, fields: list[str]) -> HttpError:
    """Return a 307 to the same path of another broker with the given encoded query fields.

    Returns a 412 if that broker has no port for the request's scheme.
    """
    authoritative = f"{AUTHORITATIVE}={str(to.authoritative).lower()}"
    return redirection_to(request, to.urls, [*fields, authoritative])


def redirection_to(
    request: Request, addresses: Addresses, fields: Sequence[str] | None = None
) -> HttpError:
    """Return a 307 to the same path of another broker with the given encoded query fields, by
    default those of the request.

    Returns a 412 if that broker has no port for the request's scheme.
    """
    url = addresses.web_url_tls if request.is_tls else addresses.web_url
    if not url:
        return HttpError(412, "Redirected cluster's service url is not configured.")
    query = request.query_string if fields is None else "&".join(fields)
    location = url + quote(request.path + (f"?{query}" if query else ""), safe=URL_SIGNS)
    return HttpError(307, f"Another broker answers this: {url}", [("Location", location)])


def is_authoritative(request: Request) -> bool:
    """Return True if another broker redirected the request to this one as the owner."""
    try:
        return request.query.get(AUTHORITATIVE, "").lower() == "true"
    except HttpError:
        return False  # an endpoint that reads the query refuses it
