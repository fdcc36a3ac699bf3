"""Endpoints of Pulsar that this broker refuses.

Parts that are switched off get the answers of a Pulsar without them; parts that are not built get
501 and a reason. The row of an endpoint that is built is removed from this table:
tests/test_pulsar_endpoints.py finds endpoints in both tables, and the router prefers the working
one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from pyxbroker.admin.pulsar_endpoints import endpoints, rows_of
from pyxbroker.admin.request import Request
from pyxbroker.auth.authorization import (
    AUTHENTICATED,
    OFFLOAD,
    TENANT_ADMIN,
    Resource,
    Right,
    Scope,
)
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.web.endpoint import Answer, Content, Endpoint, Schema
from pyxbroker.web.errors import refusal
from pyxbroker.web.response import Response

NOT_FOUND = 404
NOT_IMPLEMENTED = 501
BODY_BYTES_MAX = 16 << 10
# The right that Pulsar requires, by the last segment of a path. Others require the right to read or
# write the offload policy, or the policy in POLICIES.
RIGHTS = {"offload": OFFLOAD}
POLICIES = {"shadowTopics": "SHADOW_TOPIC"}


class Part(NamedTuple):
    """Endpoints with the same answer: lines of methods and paths, or whole groups of Pulsar's.

    `about` names the part. A part with status 404 adds no rows to the router.
    """

    about: str
    status: int
    reason: str
    lines: str = ""
    groups: tuple[str, ...] = ()

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the methods and paths of the part."""
        for line in filter(None, self.lines.split("\n")):
            yield from rows_of(line)
        if self.groups:
            for each in endpoints(self.groups):
                yield each.method, each.path


OFF = (
    Part(
        "functions and connectors",
        409,
        "Pulsar Function Worker is not enabled, probably functionsWorkerEnabled is set to false",
        groups=("functions",),
    ),
    Part(
        "packages",
        503,
        "Package Management Service is not enabled in the broker.",
        groups=("packages",),
    ),
    Part(
        "choosing a broker by its resources",
        409,
        "The load manager does not support this operation.",
        "GET /admin/v2/broker-stats/broker-resource-availability/{tenant}/{namespace}",
    ),
    Part("WebSocket", NOT_FOUND, "", groups=("WebSocket",)),
    Part("the proxy", NOT_FOUND, "", groups=("proxy",)),
)
"""Optional parts of Pulsar that this broker does not have."""

NOT_BUILT = (
    Part(
        "other clusters",
        NOT_IMPLEMENTED,
        "Other clusters are not built yet: nothing is replicated, and nothing migrates.",
        """
POST /admin/v2/clusters/{cluster}/migrate
PUT TOPIC/shadowTopics
""",
    ),
    Part(
        "offloading",
        NOT_IMPLEMENTED,
        "Offloading is not built yet: all ledgers stay with the bookies.",
        """
GET NAMESPACE/scanOffloadedLedgers
PUT TOPIC/offload
""",
    ),
    Part(
        "shutdown of a broker",
        NOT_IMPLEMENTED,
        "Shutdown by REST is not built: send SIGTERM to the broker.",
        "POST /admin/v2/brokers/shutdown",
    ),
)
"""Endpoints that are not built yet."""


@lru_cache(maxsize=1)
def refused() -> tuple[Endpoint, ...]:
    """Return an Endpoint for each refused endpoint. The router itself answers those with 404."""
    return tuple(
        _row(part, method, path)
        for part in (*OFF, *NOT_BUILT)
        if part.status != NOT_FOUND
        for method, path in part.rows()
    )


def _row(part: Part, method: str, path: str) -> Endpoint:
    checks = part.status == NOT_IMPLEMENTED and "{namespace}" in path

    async def refuse(request: Request) -> Response:
        if checks:
            await _check(request)
        return refusal(part.status, part.reason)

    answer = Answer(part.reason, status=part.status)
    content = None
    if checks and method in ("PUT", "POST"):
        schemas: dict[str, Schema] = {"application/json": {}}
        content = Content("Ignored.", schemas, bytes_max=BODY_BYTES_MAX)
    about = f"Refused: {part.about}."
    if not checks:
        return Endpoint(method, path, refuse, AUTHENTICATED, about, answer)
    right = _right_of(method, path)
    return Endpoint(method, path, refuse, right, about, answer, _resource_of, content=content)


def _right_of(method: str, path: str) -> Right:
    """Return the right to learn whether a namespace or a topic exists."""
    end = path.rpartition("/")[2]
    if end in RIGHTS:
        return RIGHTS[end]
    scope = Scope.TOPIC_POLICY if "{topic}" in path else Scope.NAMESPACE_POLICY
    verb = "READ" if method == "GET" else "WRITE"
    return Right(scope, f"{verb} {POLICIES.get(end, 'OFFLOAD')}", (TENANT_ADMIN,))


def _resource_of(request: Request) -> Resource:
    # Deferred as in _check().
    from pyxbroker.admin.resources.names import namespace_name_of, topic_of

    return topic_of(request) if "topic" in request.parameters else namespace_name_of(request)


async def _check(request: Request) -> None:
    """Raise HttpError for an invalid body, an invalid name, or a missing namespace or topic.

    As in Pulsar, these errors precede the refusal.
    """
    # Deferred: these endpoints are rarely called.
    from pyxbroker.admin.resources.names import (
        NO_NAMESPACE,
        check_namespace,
        namespace_of,
        read_json,
        topic_of,
    )
    from pyxbroker.admin.resources.topic_work import check_topic

    if request.endpoint.content is not None:
        await read_json(request)
    if "topic" in request.parameters:
        await check_topic(request, topic_of(request))
    else:
        await check_namespace(request, namespace_of(request), NO_NAMESPACE)
