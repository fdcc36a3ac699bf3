"""The topics that a broker serves, grouped by bundle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from pyxbroker.base.bundles import bundle_of
from pyxbroker.base.errors import NamespaceNotFound
from pyxbroker.base.slices import in_slices

if TYPE_CHECKING:
    from pyxbroker.broker.topics.topic import Topic


async def topics_by_bundle(
    topics: Iterable[Topic], boundaries_of: Callable[[str], Awaitable[list[int]]]
) -> dict[tuple[str, str], list[Topic]]:
    """Group topics by namespace and range. Topics whose namespace is deleted meanwhile are left
    out. `boundaries_of` returns the boundaries of a namespace's bundles.
    """
    found: dict[tuple[str, str], list[Topic]] = {}
    boundaries: dict[str, list[int]] = {}
    async for topic in in_slices(list(topics)):
        namespace = topic.name.namespace
        if namespace not in boundaries:
            try:
                boundaries[namespace] = await boundaries_of(namespace)
            except NamespaceNotFound:
                boundaries[namespace] = []
        bundle = bundle_of(topic.name, boundaries[namespace])
        if bundle is not None:
            found.setdefault((namespace, str(bundle)), []).append(topic)
    return found
