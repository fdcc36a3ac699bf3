"""Isolation policies of namespaces, which select the brokers that may serve them.

Each is Pulsar's NamespaceIsolationData, in one record per cluster. Expressions match the host of a
broker, as in Pulsar's placement. REST answers the same; Pulsar's REST matches the id of the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
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
    host = host_of(broker_id) or broker_id
    policy, is_primary = None, False
    namespaces: list[str] = []
    for name, fields in policies.items():
        if not isinstance(fields, dict):
            continue  # written by another broker, which may understand it
        primary = await matches_any(fields.get(PRIMARY), host)
        if primary or await matches_any(fields.get(SECONDARY), host):
            policy, is_primary = name, primary
            namespaces += _texts(fields.get(NAMESPACES))
    return BrokerPolicies(policy, is_primary, namespaces)


async def matches_any(expressions: object, text: str) -> bool:
    """Return True if an expression of a list in a record matches the whole text.

    An expression that RE2 does not know matches nothing; another broker has written it.
    """
    async for each in in_slices(_texts(expressions)):
        if _matches(each, text):
            return True
    return False


class IsolationPolicy(NamedTuple):
    """The isolation policy of a namespace, as placement uses it."""

    name: str
    primary: list[str]
    secondary: list[str]
    min_limit: int
    """Primary brokers below which the secondary brokers may serve the namespace, too."""
    usage_threshold: int
    """Resource usage in percent from which a primary broker does not count; 100 means never."""


class Isolation:
    """The isolation policies of a cluster. A changed record needs a new object."""

    def __init__(self, record: object = None) -> None:
        self._policies: list[tuple[list[str], IsolationPolicy]] = []
        for name, fields in record.items() if isinstance(record, dict) else ():
            if isinstance(fields, dict):
                self._policies.append((_texts(fields.get(NAMESPACES)), _policy(name, fields)))
        self._matches = lru_cache(maxsize=CACHE_MAX)(_matches)

    def policy(self, namespace: str) -> IsolationPolicy | None:
        """Return the first policy whose expressions match a namespace."""
        for namespaces, policy in self._policies:
            if self._any(namespaces, namespace):
                return policy
        return None

    def candidates(
        self, namespace: str, broker_ids: Iterable[str], usage: Callable[[str], float]
    ) -> list[str]:
        """Return the brokers that may serve a namespace. `usage` returns that of one in percent."""
        policy = self.policy(namespace)
        if policy is None:
            return [
                each
                for each in broker_ids
                if not any(self._any(one.primary, host_of(each)) for _, one in self._policies)
            ]
        primary, secondary, available = [], [], 0
        for each in broker_ids:
            if self._any(policy.primary, host_of(each)):
                primary.append(each)
                available += (
                    policy.usage_threshold >= ALWAYS or usage(each) <= policy.usage_threshold
                )
            elif self._any(policy.secondary, host_of(each)):
                secondary.append(each)
        return primary + secondary if available < policy.min_limit else primary

    def reason(self, namespace: str, broker_ids: Collection[str]) -> str:
        """Return why the policies allow none of the brokers, or "" if they allow one."""
        if not broker_ids or self.candidates(namespace, broker_ids, lambda broker_id: 0.0):
            return ""
        count = "the one broker" if len(broker_ids) == 1 else f"the {len(broker_ids)} brokers"
        policy = self.policy(namespace)
        if policy is None:
            return (
                f"no isolation policy applies to {namespace}, and isolation policies reserve"
                f" {count} for other namespaces"
            )
        allowed = policy.primary + (policy.secondary if policy.min_limit > 0 else [])
        hosts = ", ".join(allowed[:HOSTS_SHOWN_MAX])
        more = ", ..." if len(allowed) > HOSTS_SHOWN_MAX else ""
        return (
            f"isolation policy {policy.name!r} allows [{hosts}{more}], and none of {count} matches"
        )

    def _any(self, expressions: list[str], text: str) -> bool:
        return any(self._matches(each, text) for each in expressions)


CACHE_MAX = 10_000  # results of expressions
ALWAYS = 100
HOSTS_SHOWN_MAX = 5  # expressions in a message


def host_of(broker_id: str) -> str:
    """Return the host of a broker id."""
    return broker_id.rpartition(":")[0]


def _policy(name: str, fields: Mapping[str, Any]) -> IsolationPolicy:
    failover = fields.get("auto_failover_policy")
    parameters = failover.get("parameters") if isinstance(failover, dict) else None
    if not isinstance(parameters, dict):
        parameters = {}
    return IsolationPolicy(
        name,
        _texts(fields.get(PRIMARY)),
        _texts(fields.get(SECONDARY)),
        _whole(parameters.get("min_limit"), 0),
        _whole(parameters.get("usage_threshold"), ALWAYS),
    )


def _whole(value: object, default: int) -> int:
    try:
        return int(str(value))
    except ValueError:
        return default


def _matches(expression: str, text: str) -> bool:
    try:
        return compile_expression(expression).fullmatch(text.encode()) is not None
    except ExpressionError as error:
        log.warning(
            "an expression of an isolation policy cannot be read",
            expression=expression,
            error=error,
        )
        return False


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
