"""/admin/v2/namespaces/.../{bundle}: operations on the topics of one bundle of a namespace."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl

from pyxbroker.admin.owners import DESTINATION, check_bundle, check_destination
from pyxbroker.admin.policy_bodies import Field
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import (
    NAMESPACE_NOT_FOUND,
    NO_NAMESPACE,
    namespace_name_of,
    namespace_of,
    read_json,
)
from pyxbroker.admin.resources.namespace_topics import AUTHORITATIVE, clear, delete_subscriptions
from pyxbroker.admin.resources.namespaces import ONE
from pyxbroker.auth.authorization import (
    CLEAR_BACKLOG,
    DELETE_BUNDLE,
    READ_HASH_POSITIONS,
    SPLIT_BUNDLE,
    UNLOAD_NAMESPACE,
    UNSUBSCRIBE_NAMESPACE,
)
from pyxbroker.base import bundles
from pyxbroker.base.bundles import Bundle
from pyxbroker.base.compact_json import to_json
from pyxbroker.base.errors import NamespaceNotFound
from pyxbroker.base.slices import in_slices
from pyxbroker.broker.broker import Broker
from pyxbroker.broker.lookup import SERVE_ALL
from pyxbroker.broker.statistics.stats import read_stats
from pyxbroker.cluster import splitting
from pyxbroker.policies.shapes import LONG_MAX
from pyxbroker.settings.sections.load_balancing import (
    EQUAL_COUNTS,
    EQUAL_RANGES,
    EQUAL_RATES,
    POSITIONS,
    SPLIT_ALGORITHMS,
)
from pyxbroker.web.endpoint import Answer, Content, Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import JSON, Response

PATH = ONE + "/{bundle}"
LARGEST = "LARGEST"
HOT = "HOT"
POSITIONS_BYTES_MAX = 64 << 10
SLICE = 1_000  # topics


async def bundle_of(request: Request, missing: str = NAMESPACE_NOT_FOUND) -> Bundle:
    """Return the bundle of a path. Raises HttpError 404 for a missing namespace, and 412."""
    name, text = namespace_of(request), request.parameters["bundle"]
    try:
        boundaries = await request.app.broker.namespaces.bundles(name)
    except NamespaceNotFound:
        raise HttpError(404, missing) from None
    try:
        bundle = bundles.parse(text)
    except ValueError:
        raise HttpError(412, f"Invalid bundle range: {text:.100}") from None
    if bundle.lower not in boundaries[:-1]:
        raise HttpError(412, f"Cannot find bundle {name}/{bundle} in the bundles list")
    expected = Bundle(bundle.lower, boundaries[boundaries.index(bundle.lower) + 1])
    if bundle != expected:
        raise HttpError(
            412,
            f"Invalid upper boundary for bundle {name}/{bundle}. Expected upper boundary of"
            f" {name}/{expected}",
        )
    return bundle


async def unload(request: Request) -> Response:
    """Close the open topics of a bundle; their clients open them again."""
    request.argument("authoritative")
    bundle = await bundle_of(request)
    destination = request.argument(DESTINATION)
    if destination:
        await check_destination(request, bundle, destination)
    await request.app.broker.unload_bundle(namespace_of(request), bundle)
    return Response.empty()


async def clear_backlog(request: Request) -> Response:
    """Clear the backlogs of all subscriptions that the client may use."""
    return await clear(request, None, await bundle_of(request))


async def clear_backlog_of_subscription(request: Request) -> Response:
    """Clear the backlogs of the subscriptions with a name."""
    return await clear(request, request.parameters["subscription"], await bundle_of(request))


async def unsubscribe(request: Request) -> Response:
    """Delete the subscriptions with a name, except those with consumers."""
    return await delete_subscriptions(request, await bundle_of(request))


async def get_hash_positions(request: Request) -> Response:
    """Return the hashes of the given topics of a bundle, or of all."""
    bundle = await bundle_of(request)
    request.argument("topics")
    name = namespace_of(request)
    asked = {value for key, value in parse_qsl(request.query_string) if key == "topics"}
    found = await request.app.broker.namespaces.hashes(name, bundle)
    if asked:
        found = {each: found[each] for each in asked if each in found}
    head = to_json({"namespace": name, "bundle": str(bundle), "topicHashPositions": {}})[:-2]
    loop = asyncio.get_running_loop()
    return Response(head + await loop.run_in_executor(None, _encode, found) + b"}}", JSON)


def _encode(found: dict[str, int]) -> bytes:
    """Encode the fields as JSON in parts, between which a thread lets others run."""
    names = list(found)
    parts = (names[at : at + SLICE] for at in range(0, len(names), SLICE))
    return b",".join(to_json({each: found[each] for each in part})[1:-1] for part in parts)


async def split(request: Request) -> Response:
    """Split a bundle into two, or at positions."""
    request.argument("authoritative")
    broker = request.app.broker
    algorithm = (
        request.argument("splitAlgorithmName") or broker.config.defaultNamespaceBundleSplitAlgorithm
    )
    wanted = await _positions(request)
    name = namespace_of(request)
    text = request.parameters["bundle"]
    if text == LARGEST:
        bundle = await _largest(request)
        await check_bundle(request, bundle)
    elif text == HOT:
        # Pulsar's load manager determines it.
        raise HttpError(404, "Bundle range HOT not found")
    else:
        bundle = await bundle_of(request)
    if algorithm not in SPLIT_ALGORITHMS:
        raise HttpError(
            412,
            "Unsupported namespace bundle split algorithm, supported algorithms are"
            f" [{', '.join(SPLIT_ALGORITHMS)}]",
        )
    positions = await _boundaries(broker, name, bundle, algorithm, wanted)
    unloads = request.argument("unload")
    if positions:
        if not unloads:
            # The parts stay at this broker: no other one can take them in between.
            for lower, upper in pairwise((bundle.lower, *positions, bundle.upper)):
                await broker.ownership.find_of_bundle(name, Bundle(lower, upper), True, True)
        await broker.namespaces.split_bundle(name, bundle, positions)
    if unloads or (positions and broker.ownership is not SERVE_ALL):
        # The whole is owned no more. Topics of parts that this broker owns stay open.
        await broker.unload_bundle(name, bundle)
    return Response.empty()


async def _boundaries(
    broker: Broker, name: str, bundle: Bundle, algorithm: str, wanted: list[int]
) -> list[int]:
    """Return the boundaries that an algorithm adds to a bundle."""
    if algorithm == EQUAL_RANGES:
        return splitting.halves(bundle)
    if algorithm == EQUAL_RATES:
        registry = broker.topics.registry
        topics = [each for each in registry if each.name.namespace == name and each.name in bundle]
        hashes = {str(each.name): bundles.hash_of(each.name) for each in topics}
        loads = [
            splitting.TopicLoad(
                hashes[each.name],
                each.rate_in + each.rate_out,
                each.throughput_in + each.throughput_out,
            )
            async for each in in_slices(read_stats(topics))
            if each is not None
        ]
        return splitting.by_load(bundle, loads, broker.config)
    found = list((await broker.namespaces.hashes(name, bundle)).values())
    if algorithm == EQUAL_COUNTS:
        return splitting.halves_by_topics(bundle, await _sorted(found))
    return splitting.at_positions(bundle, len(found), wanted)


async def _largest(request: Request) -> Bundle:
    try:
        return await request.app.broker.namespaces.largest_bundle(namespace_of(request))
    except NamespaceNotFound:
        raise HttpError(404, NAMESPACE_NOT_FOUND) from None


async def _sorted(hashes: list[int]) -> list[int]:
    """Sort slices with pauses between them; merging sorted slices is fast."""
    parts: list[int] = []
    for at in range(0, len(hashes), SLICE):
        parts += sorted(hashes[at : at + SLICE])
        await asyncio.sleep(0)
    parts.sort()
    return parts


_POSITION = Field("integer", 0, maximum=LONG_MAX)


async def _positions(request: Request) -> list[int]:
    """Return the positions of a body; none without a body. Raises HttpError 400."""
    body = await read_json(request)
    if body is None:
        return []
    if not isinstance(body, list):
        raise HttpError(400, f"Positions are a list of whole numbers, not {body!r:.100}.")
    if len(body) > bundles.BUNDLES_MAX:
        raise HttpError(400, f"A namespace has at most {bundles.BUNDLES_MAX} bundles.")
    return [_POSITION.read(each, "A position") for each in body]


async def delete(request: Request) -> Response:
    """Delete the topics of a bundle with force; without it the bundle must be empty."""
    force = request.argument("force")
    request.argument("authoritative")
    broker = request.app.broker
    if force and not broker.config.forceDeleteNamespaceAllowed:
        raise HttpError(405, "Broker doesn't allow forced deletion of namespaces")
    bundle = await bundle_of(request, NO_NAMESPACE)
    await broker.namespaces.delete_bundle(namespace_of(request), bundle, force)
    return Response.empty()


NUMBERS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
HASH_POSITIONS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "namespace": {"type": "string"},
        "bundle": {"type": "string"},
        "topicHashPositions": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
}

ENDPOINTS = (
    Endpoint(
        "DELETE",
        PATH,
        delete,
        DELETE_BUNDLE,
        "Deletes the topics of a bundle, such as 0x00000000_0x40000000; the bundle itself remains.",
        resource=namespace_name_of,
        query=(
            Query(
                "force",
                "Deletes topics, if forceDeleteNamespaceAllowed is true; without it "
                "the bundle must be empty.",
                False,
            ),
            *AUTHORITATIVE,
        ),
    ),
    Endpoint(
        "PUT",
        PATH + "/unload",
        unload,
        UNLOAD_NAMESPACE,
        "Closes the open topics of a bundle; clients open them again.",
        resource=namespace_name_of,
        query=(
            Query(DESTINATION, "The id of the broker that is to own the bundle; in a cluster."),
            *AUTHORITATIVE,
        ),
    ),
    Endpoint(
        "POST",
        PATH + "/clearBacklog",
        clear_backlog,
        CLEAR_BACKLOG,
        "Clears the backlogs in a bundle of the subscriptions that the role may use.",
        resource=namespace_name_of,
        query=AUTHORITATIVE,
    ),
    Endpoint(
        "POST",
        PATH + "/clearBacklog/{subscription}",
        clear_backlog_of_subscription,
        CLEAR_BACKLOG,
        "Clears the backlogs in a bundle of the subscriptions with a name.",
        resource=namespace_name_of,
        query=AUTHORITATIVE,
    ),
    Endpoint(
        "POST",
        PATH + "/unsubscribe/{subscription}",
        unsubscribe,
        UNSUBSCRIBE_NAMESPACE,
        "Deletes the subscriptions with a name from all topics of a bundle.",
        resource=namespace_name_of,
        query=AUTHORITATIVE,
    ),
    Endpoint(
        "GET",
        PATH + "/topicHashPositions",
        get_hash_positions,
        READ_HASH_POSITIONS,
        "The hashes of the topics in a bundle.",
        Answer("The hash of each topic's name.", HASH_POSITIONS),
        namespace_name_of,
        (Query("topics", "Only these topics; repeated for each."),),
    ),
    Endpoint(
        "PUT",
        PATH + "/split",
        split,
        SPLIT_BUNDLE,
        "Splits a bundle, or the one with the most topics (LARGEST).",
        resource=namespace_name_of,
        query=(
            Query(
                "splitAlgorithmName",
                f"The algorithm: {EQUAL_RANGES}, {EQUAL_COUNTS}, {POSITIONS} or {EQUAL_RATES};"
                " default: the setting defaultNamespaceBundleSplitAlgorithm.",
            ),
            Query("unload", "Closes the topics of the bundle afterwards.", False),
            *AUTHORITATIVE,
        ),
        content=Content(
            f"The hashes to split at ({POSITIONS}).",
            {"application/json": NUMBERS},
            bytes_max=POSITIONS_BYTES_MAX,
        ),
    ),
)
