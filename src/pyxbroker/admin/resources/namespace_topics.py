"""/admin/v2/namespaces/...: operations on all topics of a namespace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from pyxbroker.admin.fan_out import NOT_FOUND, for_each_bundle
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import (
    NAMESPACE_NOT_FOUND,
    NO_NAMESPACE,
    STRINGS,
    namespace_name_of,
    namespace_of,
)
from pyxbroker.admin.resources.namespaces import ONE
from pyxbroker.admin.resources.topics import SYSTEM_TOPICS, all_topic_names, list_response
from pyxbroker.admin.subscription_rights import has_subscription_right, has_topic_right
from pyxbroker.auth.authorization import (
    CLEAR_BACKLOG,
    GET_TOPICS,
    UNLOAD_NAMESPACE,
    UNSUBSCRIBE_NAMESPACE,
)
from pyxbroker.base.bundles import WHOLE, Bundle
from pyxbroker.base.errors import NamespaceNotFound, SubscriptionBusy, SubscriptionNotFound
from pyxbroker.base.system_cursors import COMPACTION, REPLICATOR_PREFIX
from pyxbroker.base.topic_name import NON_PERSISTENT, PERSISTENT, TopicName
from pyxbroker.web.endpoint import Answer, Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

MODES = {
    "PERSISTENT": (PERSISTENT,),
    "NON_PERSISTENT": (NON_PERSISTENT,),
    "ALL": (PERSISTENT, NON_PERSISTENT),
}


async def get_topics(request: Request) -> Response:
    """Return the topics of a namespace, with each partition."""
    mode = request.argument("mode") or "PERSISTENT"
    if mode not in MODES:
        raise HttpError(404, f"mode must be one of {', '.join(MODES)}, not {mode!r:.100}.")
    name = namespace_of(request)
    namespaces = request.app.broker.namespaces
    if not await namespaces.exists(name):
        raise HttpError(404, NO_NAMESPACE)
    names: list[TopicName] = []
    for domain in MODES[mode]:
        names += await all_topic_names(request, name, domain)
    return await list_response(names, request.argument("includeSystemTopic"))


async def unload(request: Request) -> Response:
    """Close open topics; their clients open them again."""
    try:
        await unload_everywhere(request, namespace_of(request))
    except NamespaceNotFound:
        raise HttpError(404, NAMESPACE_NOT_FOUND) from None
    return Response.empty()


async def unload_everywhere(request: Request, name: str) -> None:
    """Unload the bundles of a namespace, at this broker and at the others."""
    broker = request.app.broker
    if broker.peers is None:
        await broker.namespaces.unload(name)
        return
    await broker.namespaces.record(name)

    async def unload_one(bundle: Bundle) -> None:
        await broker.unload_bundle(name, bundle)

    def path(bundle: Bundle) -> str:
        return f"/admin/v2/namespaces/{name}/{bundle}/unload"

    await for_each_bundle(request, name, unload_one, acquires=False, path=path, method="PUT")


async def clear_backlog(request: Request) -> Response:
    """Clear the backlogs of all subscriptions that the client may use."""
    return await _in_all_bundles(request, lambda bundle: clear(request, None, bundle))


async def clear_backlog_of_subscription(request: Request) -> Response:
    """Clear the backlogs of the subscriptions with a name."""
    subscription = request.parameters["subscription"]
    return await _in_all_bundles(request, lambda bundle: clear(request, subscription, bundle))


async def clear(request: Request, subscription: str | None, bundle: Bundle = WHOLE) -> Response:
    """Clear the backlogs in a bundle of one subscription, or of all that the client may use."""
    request.argument("authoritative")
    namespaces = request.app.broker.namespaces
    try:
        name = namespace_of(request)
        if subscription == COMPACTION:
            await namespaces.record(name)
            raise HttpError(405, f"Subscription {subscription} is moved by compaction only")
        await namespaces.clear_backlog(
            name,
            subscription,
            bundle,
            partial(has_subscription_right, request),
            partial(has_topic_right, request),
        )
    except NamespaceNotFound:
        raise HttpError(404, NAMESPACE_NOT_FOUND) from None
    except SubscriptionNotFound as error:
        raise HttpError(404, str(error)) from None
    return Response.empty()


async def unsubscribe(request: Request) -> Response:
    """Delete the subscriptions with a name, except those with consumers."""
    return await _in_all_bundles(request, lambda bundle: delete_subscriptions(request, bundle))


async def _in_all_bundles(
    request: Request, work: Callable[[Bundle], Awaitable[Response]]
) -> Response:
    """Apply work to the bundles of a namespace; other brokers do it in theirs.

    A subscription has to exist in one of the bundles only.
    """
    if request.app.broker.peers is None:
        return await work(WHOLE)
    missing: list[HttpError] = []
    is_done = False

    async def one(bundle: Bundle) -> None:
        nonlocal is_done
        try:
            await work(bundle)
            is_done = True
        except HttpError as error:
            if error.status != NOT_FOUND:
                raise
            missing.append(error)

    def missed(error: SubscriptionNotFound) -> None:
        missing.append(HttpError(NOT_FOUND, str(error)))

    def done(answer: Any) -> None:
        nonlocal is_done
        is_done = True

    try:
        await for_each_bundle(request, namespace_of(request), one, True, None, done, missed)
        if missing and not is_done:
            raise missing[0]
    except NamespaceNotFound:
        raise HttpError(404, NAMESPACE_NOT_FOUND) from None
    finally:
        missing.clear()  # leave no cycle of the error and this frame
    return Response.empty()


async def delete_subscriptions(request: Request, bundle: Bundle = WHOLE) -> Response:
    """Delete the subscriptions with a name from the topics of a bundle."""
    request.argument("authoritative")
    subscription = request.parameters["subscription"]
    name = namespace_of(request)
    namespaces = request.app.broker.namespaces
    try:
        await namespaces.record(name)
        if subscription.startswith(REPLICATOR_PREFIX):
            raise HttpError(412, "Cannot unsubscribe a replication cursor")
        await namespaces.unsubscribe(name, subscription, bundle, partial(has_topic_right, request))
    except NamespaceNotFound:
        raise HttpError(404, NAMESPACE_NOT_FOUND) from None
    except SubscriptionBusy as error:
        raise HttpError(412, str(error)) from None
    return Response.empty()


AUTHORITATIVE = (
    Query("authoritative", "Set by a redirect: take a bundle that no broker owns.", False),
)

ENDPOINTS = (
    Endpoint(
        "GET",
        ONE + "/topics",
        get_topics,
        GET_TOPICS,
        "The topics of a namespace, with each partition of partitioned topics.",
        Answer("The names; of non-persistent topics only open ones.", STRINGS),
        namespace_name_of,
        (
            Query("mode", "PERSISTENT (default), NON_PERSISTENT or ALL."),
            SYSTEM_TOPICS,
        ),
        queue="topics",
    ),
    Endpoint(
        "PUT",
        ONE + "/unload",
        unload,
        UNLOAD_NAMESPACE,
        "Closes the open topics of a namespace; clients open them again.",
        resource=namespace_name_of,
    ),
    Endpoint(
        "POST",
        ONE + "/clearBacklog",
        clear_backlog,
        CLEAR_BACKLOG,
        "Clears the backlogs in a namespace of the subscriptions that the role may use.",
        resource=namespace_name_of,
        query=AUTHORITATIVE,
    ),
    Endpoint(
        "POST",
        ONE + "/clearBacklog/{subscription}",
        clear_backlog_of_subscription,
        CLEAR_BACKLOG,
        "Clears the backlogs of the subscriptions with a name.",
        resource=namespace_name_of,
        query=AUTHORITATIVE,
    ),
    Endpoint(
        "POST",
        ONE + "/unsubscribe/{subscription}",
        unsubscribe,
        UNSUBSCRIBE_NAMESPACE,
        "Deletes the subscriptions with a name from all topics of a namespace.",
        resource=namespace_name_of,
        query=AUTHORITATIVE,
    ),
)
