"""Isolation policies of namespaces, which select the brokers that may serve them.

Each is Pulsar's NamespaceIsolationData, in one record per cluster. This broker does not apply them:
it is the only one, and serves every namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyxbroker.base.expressions import ExpressionError, compile_expression
from pyxbroker.base.log import get_logger
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.slices import in_slices

log = get_logger("pyxbroker.isolation")

NAMESPACES = "namespaces"
PRIMARY = "primary"
SECONDARY = "secondary"


class BrokerPolicies(NamedTuple):
    """The isolation policies of a cluster that apply to a broker."""

    policy: str | None  # the last one that names it
    is_primary: bool
    namespaces: list[str]  # expressions of all policies that name it


async def policies_of_broker(policies: Mapping[str, Any], broker_id: str) -> BrokerPolicies:
    """Return the policies that apply to a broker with the id `host:port`."""
    policy, is_primary = None, False
    namespaces: list[str] = []
    for name, fields in policies.items():
        if not isinstance(fields, dict):
            continue  # written by another broker, which may understand it
        primary = await matches_any(fields.get(PRIMARY), broker_id)
        if primary or await matches_any(fields.get(SECONDARY), broker_id):
            policy, is_primary = name, primary
            namespaces += _texts(fields.get(NAMESPACES))
    return BrokerPolicies(policy, is_primary, namespaces)


async def matches_any(expressions: object, text: str) -> bool:
    """Return True if an expression of a list in a record matches the whole text.

    An expression that RE2 does not know matches nothing; another broker has written it.
    """
    async for each in in_slices(_texts(expressions)):
        try:
            if compile_expression(each).fullmatch(text.encode()) is not None:
                return True
        except ExpressionError as error:
            log.warning(
                "an expression of an isolation policy cannot be read", expression=each, error=error
            )
    return False


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
