"""/admin/v2/{domain}/.../subscription: deletes subscriptions, as Pulsar's PersistentTopics does."""

from __future__ import annotations

from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import check_namespace, topic_of
from pyxbroker.auth.authorization import UNSUBSCRIBE
from pyxbroker.base.errors import SubscriptionBusy, TopicNotFound
from pyxbroker.web.endpoint import Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

PATH = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subName}"


async def delete(request: Request) -> Response:
    """Delete a subscription, even if its cursor cannot be read; with force also while consumers are
    connected.
    """
    name = topic_of(request)
    force = request.argument("force")
    await check_namespace(request, name.namespace)
    topics = request.app.broker.topics
    try:
        await topics.deletion.delete_subscription(name, request.parameters["subName"], force)
    except TopicNotFound:
        raise HttpError(404, f"Topic {name} not found") from None
    except SubscriptionBusy as error:
        raise HttpError(412, str(error)) from None
    return Response.empty()


ENDPOINTS = (
    Endpoint(
        "DELETE",
        PATH,
        delete,
        UNSUBSCRIBE,
        "Deletes a subscription of a topic.",
        resource=topic_of,
        query=(Query("force", "Also while consumers are connected.", False),),
    ),
)
