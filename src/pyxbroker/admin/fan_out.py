"""Requests about several topics or bundles: other brokers answer for those that they own.

This broker does its own part without HTTP. The owners of the others get the same request for one
partition or bundle each, in parallel; Peers (broker/peers.py) bounds their number and their time.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from pyxbroker.admin.request import Request
from pyxbroker.base.bundles import Bundle
from pyxbroker.base.errors import SubscriptionNotFound
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.lookup import Redirect, redirect_of
from pyxbroker.broker.peers import Ask, PeerRefused, topic_path
from pyxbroker.broker.topics.partition_nodes import for_each
from pyxbroker.web.errors import HttpError

AUTHORITATIVE = "authoritative"
NOT_FOUND = 404

Take = Callable[[TopicName, Any], None]


async def elsewhere(request: Request, topic: TopicName) -> Redirect | None:
    """Return the other broker that serves a topic; None if this one does. Raises PulsarError."""
    broker = request.app.broker
    if broker.peers is None:
        return None
    return redirect_of(await broker.ownership.find(topic, authoritative=False))


async def ask(
    request: Request, to: Redirect, target: str, method: str = "", body: bytes | None = None
) -> Any:
    """Send a request with the query and the body of `request`; return the JSON of the answer.

    `target` is a percent-encoded path; `body` replaces the body. Raises HttpError,
    SubscriptionNotFound, ServiceNotReady.
    """
    fields = [
        field
        for field in request.query_string.split("&")
        if field and field.partition("=")[0] != AUTHORITATIVE
    ]
    fields.append(f"{AUTHORITATIVE}={str(to.authoritative).lower()}")
    content = request.endpoint.content
    if body is None:
        body = await request.read(content.bytes_max) if content is not None else b""
    content_type = request.content_type or ("application/json" if body else "")
    asked = Ask(method or request.method, f"{target}?{'&'.join(fields)}", content_type, body)
    peers = request.app.broker.peers
    assert peers is not None
    try:
        return await peers.ask(to, asked)
    except PeerRefused as error:
        if error.status == NOT_FOUND and error.reason.startswith("Subscription "):
            raise SubscriptionNotFound(error.reason) from None
        raise HttpError(error.status, error.reason) from None


def _path_of_part(request: Request, topic: TopicName) -> str:
    """Return the path of a request with another topic."""
    before = len("/admin/v2/{domain}/{tenant}/{namespace}/{topic}".split("/"))
    return "/".join((topic_path(topic), *request.path.split("/")[before:]))


async def for_each_topic(
    request: Request,
    topics: Iterable[tuple[TopicName, Redirect]],
    take: Take | None = None,
    on_error: Callable[[TopicName, Exception], None] | None = None,
) -> None:
    """Send the request for each topic to its owner, and pass the answers to `take`.

    All are asked; then the first error is raised, unless `on_error` takes the errors.
    """
    errors: list[Exception] = []

    async def one(item: tuple[TopicName, Redirect]) -> None:
        topic, to = item
        try:
            answer = await ask(request, to, _path_of_part(request, topic))
            if take is not None:
                take(topic, answer)
        except Exception as error:
            if on_error is not None:
                on_error(topic, error)
            else:
                errors.append(error)

    await for_each(topics, one)
    try:
        if errors:
            raise errors[0]
    finally:
        errors.clear()  # leave no cycle of the error and this frame


async def for_each_bundle(
    request: Request,
    namespace: str,
    work: Callable[[Bundle], Awaitable[None]],
    acquires: bool,
    path: Callable[[Bundle], str] | None = None,
    take: Callable[[Any], None] | None = None,
    on_missing: Callable[[SubscriptionNotFound], None] | None = None,
    method: str = "",
) -> None:
    """Apply work to the bundles of a namespace that this broker owns, and send the request to the
    owners of the others.

    Without `acquires`, bundles without an owner are left out. With `method`, the owners get another
    request: that method of `path`, without the body. Raises NamespaceNotFound.
    """
    broker = request.app.broker
    boundaries: Sequence[int] = await broker.namespaces.boundaries(namespace)
    bundles = list(itertools.starmap(Bundle, itertools.pairwise(boundaries)))
    one = partial(_in_bundle, request, namespace, work, acquires, path, take, on_missing, method)
    await for_each(bundles, one)


async def _in_bundle(
    request: Request,
    namespace: str,
    work: Callable[[Bundle], Awaitable[None]],
    acquires: bool,
    path: Callable[[Bundle], str] | None,
    take: Callable[[Any], None] | None,
    on_missing: Callable[[SubscriptionNotFound], None] | None,
    method: str,
    bundle: Bundle,
) -> None:
    ownership = request.app.broker.ownership
    to = redirect_of(
        await ownership.find_of_bundle(namespace, bundle, authoritative=False, acquires=acquires)
    )
    if to is None:
        await work(bundle)
        return
    before = len("/admin/v2/namespaces/{tenant}/{namespace}".split("/"))
    parts = request.path.split("/")
    own = "/".join((*parts[:before], str(bundle), *parts[before:]))
    try:
        target = path(bundle) if path is not None else own
        answer = await ask(request, to, target, method, b"" if method else None)
    except SubscriptionNotFound as error:
        if on_missing is None:
            raise
        on_missing(error)
        return
    if take is not None:
        take(answer)
