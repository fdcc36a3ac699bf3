"""What a body may grant, wherever it does so: for a namespace, its topics and subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyxbroker.admin.policy_bodies import names_of
from pyxbroker.admin.resources.names import check_length, texts_of
from pyxbroker.base.limits import TOPIC_NAME_BYTES_MAX
from pyxbroker.base.slices import Slices
from pyxbroker.policies.grants import ROLES, SUBSCRIPTIONS, TOPICS
from pyxbroker.web.errors import HttpError

ACTIONS = ("produce", "consume", "functions", "sources", "sinks", "packages")
ENTRIES_MAX = 1_000  # roles, subscriptions or topics of one namespace, and roles of one of those
NAME_BYTES_MAX = 1_024


def checked_actions(value: object) -> list[str]:
    """Raises HttpError 400 for what is no list of actions."""
    if not isinstance(value, list):
        raise HttpError(400, f"actions must be a list, not {value!r:.100}.")
    if len(value) > ENTRIES_MAX:
        raise HttpError(400, f"{len(value)} actions are more than the {ENTRIES_MAX} allowed.")
    return names_of(value, ACTIONS, "An action")


async def checked_grants(value: dict[str, Any]) -> dict[str, Any]:
    """Those of a new namespace; parts that we do not know are left out. Raises HttpError 400.

    There may be tens of thousands, as in the bodies that change them one by one there are not.
    """
    slices = Slices()
    found: dict[str, Any] = {}
    for part, check in ((ROLES, checked_actions), (SUBSCRIPTIONS, _checked_roles)):
        if value.get(part) is not None:
            found[part] = await _checked(value[part], part, check, slices)
    if value.get(TOPICS) is not None:
        topics = _entries(value[TOPICS], TOPICS, TOPIC_NAME_BYTES_MAX)
        found[TOPICS] = {
            topic: await _checked(roles, TOPICS, checked_actions, slices)
            for topic, roles in topics.items()
        }
    return found


async def _checked(
    value: object, part: str, check: Callable[[object], list[str]], slices: Slices
) -> dict[str, list[str]]:
    found = {}
    for name, each in _entries(value, part, NAME_BYTES_MAX).items():
        found[name] = check(each)
        await slices.pause()
    return found


def _entries(value: object, part: str, name_bytes_max: int) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise HttpError(400, f"{part} must be an object, not {value!r:.100}.")
    if len(value) > ENTRIES_MAX:
        raise HttpError(400, f"{part} has {len(value)} names, and at most {ENTRIES_MAX} may be.")
    for name in value:
        check_length("name", name, name_bytes_max, 400)
    return value


def _checked_roles(value: object) -> list[str]:
    return texts_of(value, "Roles", ENTRIES_MAX, NAME_BYTES_MAX)
