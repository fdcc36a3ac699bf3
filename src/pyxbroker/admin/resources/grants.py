"""Changes of the grants in a namespace's record.

Grants are stored even without authorization, so that operators can set them before they enable it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyxbroker.admin.grant_checks import ENTRIES_MAX, NAME_BYTES_MAX, checked_actions
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import STRINGS, check_length, read_json, texts_of
from pyxbroker.admin.resources.namespaces import change_record
from pyxbroker.base.compact_json import to_json
from pyxbroker.base.errors import NamespaceNotFound
from pyxbroker.base.topic_name import PARTITIONED_TOPIC_SUFFIX, TopicName
from pyxbroker.policies.grants import AUTH, TOPICS
from pyxbroker.policies.records import Fields
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

BYTES_MAX = 512 << 10  # of all grants of a namespace, whose record is one node
NO_NAMESPACE_OF_TOPIC = "Topic's namespace does not exist"
GRANTS = {"type": "object", "additionalProperties": STRINGS}


class Grant(NamedTuple):
    """The actions of a role on a topic; None revokes them, but not those on its namespace."""

    topic: TopicName
    role: str
    actions: list[str] | None


async def change_topics(request: Request, grants: list[Grant]) -> Response:
    """Change the grants on topics, which are of one namespace."""
    granted: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
    revoked: defaultdict[str, set[str]] = defaultdict(set)
    for topic, role, actions in grants:
        if actions is None:
            revoked[str(topic)].add(role)
        else:
            granted[str(topic)][role] = actions

    def change(topics: dict[str, Any]) -> None:
        for name, roles in granted.items():
            merged = (topics.get(name) or {}) | roles
            if len(merged) > ENTRIES_MAX:
                raise HttpError(400, f"A topic has at most {ENTRIES_MAX} such grants.")
            topics[name] = merged
        if revoked:
            _revoke(topics, revoked)

    namespace = grants[0].topic.namespace
    try:
        await request.app.broker.namespaces.change(namespace, changing(TOPICS, change))
    except NamespaceNotFound:
        raise HttpError(404, NO_NAMESPACE_OF_TOPIC) from None
    return Response.empty()


def _revoke(topics: dict[str, Any], revoked: Mapping[str, set[str]]) -> None:
    """Revoke grants on topics, and on their partitions, as in Pulsar, in one pass over
    all grants.
    """
    nobody: set[str] = set()
    for name in list(topics):
        above = name.rpartition(PARTITIONED_TOPIC_SUFFIX)[0]
        of_it, of_all = revoked.get(name, nobody), revoked.get(above, nobody)
        if not (of_it or of_all):
            continue
        left = {
            role: actions
            for role, actions in (topics[name] or {}).items()
            if role not in of_it and role not in of_all
        }
        if left:
            topics[name] = left
        else:
            del topics[name]


def auth_of(record: Fields, part: str) -> dict[str, Any]:
    """Return a part of the grants in a record, as a copy."""
    return dict((record.get(AUTH) or {}).get(part) or {})


async def change_part_of(
    request: Request, part: str, change: Callable[[dict[str, Any]], object], missing: str
) -> Response:
    """Change a part of the grants. Raises HttpError 404 if the namespace does not exist."""
    await change_record(request, changing(part, change), missing)
    return Response.empty()


def changing(part: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Fields], None]:
    """Return a function that changes a part of the grants in a record.

    It raises HttpError 400 for too many grants.
    """

    def change_part(record: Fields) -> None:
        entries = auth_of(record, part)
        change(entries)
        if len(entries) > ENTRIES_MAX:
            raise HttpError(400, f"A namespace has at most {ENTRIES_MAX} such grants.")
        record[AUTH] = (record.get(AUTH) or {}) | {part: entries}
        if len(to_json(record[AUTH])) > BYTES_MAX:
            raise HttpError(400, f"The grants of a namespace have at most {BYTES_MAX} bytes.")

    return change_part


async def actions_of(request: Request) -> list[str]:
    """Return the actions of a body. Raises HttpError 400."""
    return checked_actions(await texts_of_body(request, "Actions should not be null"))


async def texts_of_body(request: Request, missing: str) -> list[str]:
    """Return the distinct texts of a body, and check the lengths of names in the path.

    Raises HttpError 400.
    """
    body = await read_json(request)
    if body is None:
        raise HttpError(400, missing)
    for each in ("role", "subscription"):
        check_length("name", request.parameters.get(each, ""), NAME_BYTES_MAX, 400)
    return texts_of(body, "The body", ENTRIES_MAX, NAME_BYTES_MAX)
