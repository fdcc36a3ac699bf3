"""What of Pulsar's REST is answered without being done: parts that are switched off, as a Pulsar
without them answers, and what is not built, 501 with a sentence.

A row that is built goes out of the table: tests/test_pulsar_endpoints.py finds one that is in both,
and the router takes the one that works.
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
# The right that Pulsar asks for, by the end of a path; at others it is one to read or to write the
# policy about offloading, or the one that is named here.
RIGHTS = {"offload": OFFLOAD}
POLICIES = {"shadowTopics": "SHADOW_TOPIC"}


class Part(NamedTuple):
    """Endpoints that are answered alike: lines of methods and paths, or whole groups of Pulsar's.

    `about` says in a few words what they are about. A part with 404 has no rows: nothing is there.
    """

    about: str
    status: int
    reason: str
    lines: str = ""
    groups: tuple[str, ...] = ()

    def rows(self) -> Iterator[tuple[str, str]]:
        """Its methods and paths."""
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
        "transactions",
        503,
        "This Broker is not configured with transactionCoordinatorEnabled=true.",
        groups=("transactions",),
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
"""Parts of Pulsar that one switches on, and that this broker does not have."""

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
        "the end of a broker",
        NOT_IMPLEMENTED,
        "Nobody may stop the broker by REST: send it SIGTERM.",
        "POST /admin/v2/brokers/shutdown",
    ),
)
"""What is not done yet."""


@lru_cache(maxsize=1)
def refused() -> tuple[Endpoint, ...]:
    """A row for each endpoint of the parts that is answered."""
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
        content = Content("It is not looked at.", schemas, bytes_max=BODY_BYTES_MAX)
    about = f"About {part.about}."
    if not checks:
        return Endpoint(method, path, refuse, AUTHENTICATED, about, answer)
    right = _right_of(method, path)
    return Endpoint(method, path, refuse, right, about, answer, _resource_of, content=content)


def _right_of(method: str, path: str) -> Right:
    """What one needs to be told whether a namespace or a topic is there."""
    end = path.rpartition("/")[2]
    if end in RIGHTS:
        return RIGHTS[end]
    scope = Scope.TOPIC_POLICY if "{topic}" in path else Scope.NAMESPACE_POLICY
    verb = "READ" if method == "GET" else "WRITE"
    return Right(scope, f"{verb} {POLICIES.get(end, 'OFFLOAD')}", (TENANT_ADMIN,))


def _resource_of(request: Request) -> Resource:
    # Imported as late as in _check().
    from pyxbroker.admin.resources.names import namespace_name_of, topic_of

    return topic_of(request) if "topic" in request.parameters else namespace_name_of(request)


async def _check(request: Request) -> None:
    """What is wrong besides is told first: the body, the names, and what is not there. Raises
    HttpError.
    """
    # What is not built needs them as seldom as it is asked for.
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
