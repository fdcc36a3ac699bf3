"""Checks of grants in bodies: for namespaces, topics and subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyxbroker.admin.policy_bodies import enum_values_of
from pyxbroker.admin.resources.names import check_length, texts_of
from pyxbroker.base.limits import TOPIC_NAME_BYTES_MAX
from pyxbroker.base.slices import Slices, in_slices
from pyxbroker.policies.grants import ROLES, SUBSCRIPTIONS, TOPICS
from pyxbroker.web.errors import HttpError

ACTIONS = ("produce", "consume", "functions", "sources", "sinks", "packages")
ENTRIES_MAX = 1_000  # per namespace, and per topic or subscription of it
NAME_BYTES_MAX = 1_024


def checked_actions(value: object) -> list[str]:
    """Return a valid list of actions. Raises HttpError 400."""
    if not isinstance(value, list):
        raise HttpError(400, f"actions must be a list, not {value!r:.100}.")
    if len(value) > ENTRIES_MAX:
        raise HttpError(400, f"{len(value)} actions are more than the {ENTRIES_MAX} allowed.")
    return enum_values_of(value, ACTIONS, "An action")


async def checked_grants(value: dict[str, Any]) -> dict[str, Any]:
    """Return the grants for a new namespace without unknown parts. Raises HttpError 400.

    Up to a million entries are checked in time slices.
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
    async for name, each in in_slices(_entries(value, part, NAME_BYTES_MAX).items(), slices):
        found[name] = check(each)
    return found


def _entries(value: object, part: str, name_bytes_max: int) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise HttpError(400, f"{part} must be an object, not {value!r:.100}.")
    if len(value) > ENTRIES_MAX:
        raise HttpError(400, f"{part} has {len(value)} names; the maximum is {ENTRIES_MAX}.")
    for name in value:
        check_length("name", name, name_bytes_max, 400)
    return value


def _checked_roles(value: object) -> list[str]:
    return texts_of(value, "Roles", ENTRIES_MAX, NAME_BYTES_MAX)
