"""Isolation policies of namespaces: which brokers may serve which namespaces.

Each is Pulsar's NamespaceIsolationData in the one record that its cluster has for all of them.
Nothing here goes by what they say: there is one broker, and it serves every namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyxbroker.base.expressions import ExpressionError, compile_expression
from pyxbroker.base.log import get_logger
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.slices import Slices

log = get_logger("pyxbroker.isolation")

NAMESPACES = "namespaces"
PRIMARY = "primary"
SECONDARY = "secondary"


class OfBroker(NamedTuple):
    """What the isolation policies of a cluster say of a broker."""

    policy: str | None  # the last one that names it
    is_primary: bool
    namespaces: list[str]  # expressions, of all policies that name it


async def of_broker(policies: Mapping[str, Any], broker_id: str) -> OfBroker:
    """What policies say of a broker, `host:port` as its id is."""
    policy, is_primary = None, False
    namespaces: list[str] = []
    for name, fields in policies.items():
        if not isinstance(fields, dict):
            continue  # Of another broker, which may know what it means.
        primary = await matches_any(fields.get(PRIMARY), broker_id)
        if primary or await matches_any(fields.get(SECONDARY), broker_id):
            policy, is_primary = name, primary
            namespaces += _texts(fields.get(NAMESPACES))
    return OfBroker(policy, is_primary, namespaces)


async def matches_any(expressions: object, text: str) -> bool:
    """Whether an expression of a list in a record matches all of a text.

    One that RE2 does not know matches nothing: another broker has written it.
    """
    slices = Slices()
    for each in _texts(expressions):
        try:
            if compile_expression(each).fullmatch(text.encode()) is not None:
                return True
        except ExpressionError as error:
            log.warning(
                "an expression of an isolation policy cannot be read", expression=each, error=error
            )
        await slices.pause()
    return False


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
