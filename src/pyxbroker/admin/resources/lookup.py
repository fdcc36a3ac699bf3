"""/lookup/v2/topic: which broker a client has to connect to for a topic."""

from __future__ import annotations

from pyxbroker.admin.errors import refusal
from pyxbroker.admin.request import Request
from pyxbroker.admin.response import Response

DOMAINS = ("persistent", "non-persistent")


async def lookup_topic(request: Request) -> Response:
    """The owner's addresses, as Pulsar's LookupData: clients with an http:// URL ask this."""
    parts = request.parameters
    if parts["domain"] not in DOMAINS:
        return refusal(412, f"The topic domain {parts['domain']!r} is not one of {DOMAINS}.")
    name = f"{parts['domain']}://{parts['tenant']}/{parts['namespace']}/{parts['topic']}"
    found = await request.app.broker.lookup(name)
    return Response.json(
        {
            "brokerUrl": found.broker_url,
            "httpUrl": found.http_url,
            "nativeUrl": found.broker_url,
            "brokerUrlSsl": "",
        }
    )


ROUTES = (("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", lookup_topic),)
