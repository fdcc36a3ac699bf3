"""Requests about a topic or a bundle, which the broker answers that serves it: others redirect.

Every endpoint with a topic or a bundle in its path is one, but for those in ANYWHERE.
"""

from __future__ import annotations

from urllib.parse import quote

from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import namespace_of, topic_of
from pyxbroker.auth.authorization import Resource
from pyxbroker.base import bundles
from pyxbroker.base.bundles import Bundle
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.lookup import Decision, Redirect, Refuse
from pyxbroker.web.endpoint import Endpoint
from pyxbroker.web.errors import HttpError

TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
QUOTAS = "/admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}"
LOOKUP = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"
# What every broker of a cluster answers by metadata alone, as in Pulsar; HTTP lookups redirect
# themselves.
ANYWHERE = frozenset(
    {
        ("GET", LOOKUP),
        ("GET", LOOKUP + "/bundle"),
        *((method, QUOTAS) for method in ("GET", "POST", "DELETE")),
        ("GET", TOPIC + "/partitions"),
        ("PUT", TOPIC + "/partitions"),
        ("POST", TOPIC + "/createMissedPartitions"),
        ("GET", TOPIC + "/permissions"),
        ("POST", TOPIC + "/permissions/{role}"),
        ("DELETE", TOPIC + "/permissions/{role}"),
    }
)
AUTHORITATIVE = "authoritative"
URL_SIGNS = "/%:@!$&'()*+,;=~?"  # may be in a target as they are


async def check_owner(request: Request, endpoint: Endpoint, resource: Resource) -> None:
    """Raise HttpError 307 for a request that another broker answers, and PulsarError where no
    broker can be named.

    `resource` is what the endpoint's right is about.
    """
    if (endpoint.method, endpoint.path) in ANYWHERE:
        return
    if "topic" in request.parameters:
        if isinstance(resource, TopicName):
            await _check_topic(request, resource)
        elif "domain" in request.parameters:
            # Endpoints of parts that are switched off, such as transactions, name no domain.
            await _check_topic(request, topic_of(request))
    elif "bundle" in request.parameters:
        try:
            bundle = bundles.parse(request.parameters["bundle"])
        except ValueError:
            return  # the endpoint refuses it, or finds out which one is meant
        await check_bundle(request, bundle)


async def _check_topic(request: Request, topic: TopicName) -> None:
    broker = request.app.broker
    if "partition" in request.parameters:
        topic = topic.partition(request.parameters["partition"])
    decision = await broker.ownership.find(topic, is_authoritative(request))
    if isinstance(decision, Redirect | Refuse):
        if (await broker.topics.partitions.read(topic)).partitions:
            return  # its partitions may have other owners
        _raise(request, decision)


async def check_bundle(request: Request, bundle: Bundle) -> None:
    """Raise HttpError 307 for a bundle that another broker serves, and PulsarError where no broker
    can be named.
    """
    ownership = request.app.broker.ownership
    namespace = namespace_of(request)
    _raise(request, await ownership.find_of_bundle(namespace, bundle, is_authoritative(request)))


def _raise(request: Request, decision: Decision) -> None:
    if isinstance(decision, Refuse):
        raise decision.error
    if isinstance(decision, Redirect):
        fields = [
            field
            for field in request.query_string.split("&")
            if field and field.partition("=")[0] != AUTHORITATIVE
        ]
        raise redirection(request, decision, fields)


def redirection(request: Request, to: Redirect, fields: list[str]) -> HttpError:
    """Return the 307 to the same path of another broker, with some fields of the query, which are
    encoded already; 412 where that broker has no port for the request's scheme.
    """
    url = to.urls.web_url_tls if request.is_tls else to.urls.web_url
    if not url:
        return HttpError(412, "Redirected cluster's service url is not configured.")
    query = "&".join((*fields, f"{AUTHORITATIVE}={str(to.authoritative).lower()}"))
    location = url + quote(f"{request.path}?{query}", safe=URL_SIGNS)
    return HttpError(307, f"Another broker answers this: {url}", [("Location", location)])


def is_authoritative(request: Request) -> bool:
    """Return whether the request was redirected to the broker that is to answer it."""
    try:
        return request.query.get(AUTHORITATIVE, "").lower() == "true"
    except HttpError:
        return False  # the query cannot be read, which the endpoint refuses if it reads it
