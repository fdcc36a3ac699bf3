"""/admin/v2/{domain}/.../subscription: deletes subscriptions, as Pulsar's PersistentTopics does."""

from __future__ import annotations

from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import check_namespace, topic_of
from pyxbroker.admin.resources.topic_work import for_each_partition, partitions_of
from pyxbroker.auth.authorization import UNSUBSCRIBE
from pyxbroker.base.errors import SubscriptionBusy, SubscriptionNotFound, TopicNotFound
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics.topic import Topic
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
    subscription = request.parameters["subName"]
    try:
        if request.app.broker.peers is not None and await partitions_of(request, name):
            await _delete_of_partitions(request, name, subscription, force)
        else:
            await topics.deletion.delete_subscription(name, subscription, force)
    except TopicNotFound:
        raise HttpError(404, f"Topic {name} not found") from None
    except SubscriptionBusy as error:
        raise HttpError(412, str(error)) from None
    return Response.empty()


async def _delete_of_partitions(
    request: Request, name: TopicName, subscription: str, force: bool
) -> None:
    async def delete_one(topic: Topic) -> None:
        await topic.delete_subscription(subscription, force)

    try:
        await for_each_partition(request, name, delete_one)
    except SubscriptionNotFound:
        raise HttpError(404, "Subscription not found") from None  # of any partition


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
