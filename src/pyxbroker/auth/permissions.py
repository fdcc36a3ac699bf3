"""Holders of rights (Pulsar's PulsarAuthorizationProvider): superusers by the settings,
administrators by their tenant's record, other roles by the grants in their namespace's record.

Each check reads both records from a cache that is notified of changes. A grant therefore takes
effect as soon as it is written, and so does its removal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from pyxbroker.auth.authentication import names_of
from pyxbroker.auth.authorization import (
    CONSUME,
    DELETE_TENANT,
    GET_TENANT,
    PRODUCE,
    SUPERUSER,
    TENANT_ADMIN,
    UPDATE_TENANT,
    BrokerId,
    ClusterName,
    Resource,
    Right,
    Scope,
)
from pyxbroker.auth.principal import Principal
from pyxbroker.base.errors import AuthorizationError, NotPermitted
from pyxbroker.base.properties import ConfigError
from pyxbroker.base.system_cursors import is_system_cursor
from pyxbroker.base.topic_name import NamespaceName, TenantName, TopicName
from pyxbroker.policies.grants import AUTH, ROLES, SUBSCRIPTIONS, TOPICS
from pyxbroker.policies.records import Fields
from pyxbroker.settings.config import Config

PROVIDER = "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"
ADMINISTRATORS = "adminRoles"  # field in the record of a tenant
MODE = "subscription_auth_mode"  # field in the record of a namespace
PREFIX = "Prefix"
ANY = "*"  # wildcard at the end or the beginning of a role in a grant

INVALID_ROLES = "Invalid roles."  # Pulsar's text
NOT_A_PROXY = "Must not set proxyVersion without connecting as a ProxyRole."
MISFIT = "Invalid combination of Original principal cannot be empty if the request is via proxy."
NO_PREFIX = (
    "Failed to create consumer - The subscription name needs to be prefixed by the authentication"
    " role, like {role}-xxxx for topic: {topic}"
)
NO_TENANT = "Tenant does not exist"
# As in Pulsar, these do not reveal to a role without rights if the tenant exists.
OF_TENANT_RECORD = frozenset((GET_TENANT, UPDATE_TENANT, DELETE_TENANT))
# For operations on a whole namespace. Pulsar does not check the subscription's prefix for them.
NO_PREFIX_IN_NAMESPACE = (
    "The subscription name needs to be prefixed by the authentication role, like {role}-xxxx for"
    " namespace: {namespace}"
)


class WrongPrefix(AuthorizationError):
    """Raised for a subscription whose name does not begin with its consumer's role."""


class TenantMissing(AuthorizationError):
    """Raised if the tenant does not exist; only superusers have rights on its resources."""

    http_status = 404


class Records(Protocol):
    """Reads the records of tenants and namespaces from metadata."""

    async def tenant(self, name: str) -> Fields | None:
        """Return the record of a tenant, or None."""
        ...

    async def namespace(self, name: str) -> Fields | None:
        """Return the record of a namespace, or None."""
        ...


def check_settings(config: Config) -> None:
    """Raise ConfigError for settings with which authorization cannot work."""
    if not config.authenticationEnabled:
        # Pulsar's text.
        raise ConfigError(
            "Invalid broker configuration. Authentication must be enabled with"
            " authenticationEnabled=true when authorization is enabled with"
            " authorizationEnabled=true."
        )
    if config.authorizationProvider != PROVIDER:
        raise ConfigError(
            f"authorizationProvider is {config.authorizationProvider!r}, and can only be"
            f" {PROVIDER}."
        )


class Permissions:
    """The rights of all roles of one broker. Raises ConfigError for unusable settings."""

    def __init__(self, config: Config, records: Records) -> None:
        check_settings(config)
        self._config = config
        self._superusers = frozenset[str]()
        self.read_superusers()
        self._proxies = frozenset(names_of(config.proxyRoles))
        self._has_wildcards = config.authorizationAllowWildcardsMatching
        self._records = records

    def read_superusers(self) -> bool:
        """Read the superusers from the settings. Return True if a role was removed."""
        before = self._superusers
        self._superusers = frozenset(names_of(self._config.superUserRoles))
        return not before <= self._superusers

    # --- roles of a principal -----------------------------------------------------------------

    def check_connect(self, principal: Principal, proxy_version: str) -> None:
        """Raise AuthorizationError if the two roles of a CONNECT do not match."""
        role, original = principal
        if role in self._proxies:
            if not original or original in self._proxies:
                raise AuthorizationError(INVALID_ROLES)
            return
        if original:
            raise AuthorizationError(INVALID_ROLES)
        if proxy_version:
            raise AuthorizationError(NOT_A_PROXY)

    def _roles(self, principal: Principal) -> tuple[str | None, ...]:
        """Return the roles that all need a right. Raises NotPermitted if they do not match."""
        role, original = principal
        if role in self._proxies:
            if not original or original in self._proxies:
                raise NotPermitted(MISFIT)
            return role, original
        if original and original != role:
            raise NotPermitted(MISFIT)
        return (role,)

    # --- rights -------------------------------------------------------------------------------

    async def check(
        self, principal: Principal, right: Right, resource: Resource, subscription: str = ""
    ) -> None:
        """Raise AuthorizationError if a principal does not have a right on a resource, and on the
        subscription if one is named. Raises TenantMissing if the tenant does not exist.
        """
        if right.scope in (Scope.OPEN, Scope.AUTHENTICATED):
            return
        for role in self._roles(principal):
            if not await self._has(role, right, resource, subscription):
                raise refusal_of(principal, right, resource)

    async def _has(
        self, role: str | None, right: Right, resource: Resource, subscription: str
    ) -> bool:
        if role is None:
            return False
        if role in self._superusers:
            return True
        if resource is None or isinstance(resource, BrokerId | ClusterName):
            return False
        if TENANT_ADMIN in right.holders and await self._is_administrator(role, right, resource):
            return True
        actions = frozenset((PRODUCE, CONSUME)).intersection(right.holders)
        if not actions or isinstance(resource, TenantName):
            return False
        if isinstance(resource, TopicName) and resource.is_system:
            # A system topic stores policies, so only administrators may produce to it.
            return False
        is_about_subscription = actions == {CONSUME} and bool(subscription)
        if is_about_subscription and is_system_cursor(subscription):
            # The cursor of compaction protects the compacted data.
            return False
        record = await self._records.namespace(_namespace_of(resource))
        if record is None:
            return False
        grants = _object(record.get(AUTH))
        if is_about_subscription:
            if not _may_use(grants, subscription, role):
                return False
            if record.get(MODE) == PREFIX and not subscription.startswith(role):
                raise _wrong_prefix(role, resource)
        topic = None
        if isinstance(resource, TopicName) and right.scope is Scope.TOPIC:
            topic = resource
        return any(
            self._grants(roles, role, actions, has_patterns)
            for roles, has_patterns in _granted(grants, topic)
        )

    async def _is_administrator(
        self, role: str, right: Right, resource: TenantName | NamespaceName | TopicName
    ) -> bool:
        tenant = str(resource) if isinstance(resource, TenantName) else _tenant_of(resource)
        record = await self._records.tenant(tenant)
        if record is None and right not in OF_TENANT_RECORD:
            raise TenantMissing(NO_TENANT)
        return record is not None and role in _texts(record.get(ADMINISTRATORS))

    def _grants(
        self, roles: Mapping[str, Any], role: str, actions: frozenset[str], has_patterns: bool
    ) -> bool:
        """Return True if these grants allow a role one of the actions."""
        if not actions.isdisjoint(_texts(roles.get(role))):
            return True
        if not (has_patterns and self._has_wildcards):
            return False
        return any(
            _matches(pattern, role) and not actions.isdisjoint(_texts(granted))
            for pattern, granted in roles.items()
        )


def _wrong_prefix(role: str, resource: NamespaceName | TopicName) -> WrongPrefix:
    if isinstance(resource, TopicName):
        return WrongPrefix(NO_PREFIX.format(role=role, topic=resource))
    return WrongPrefix(NO_PREFIX_IN_NAMESPACE.format(role=role, namespace=resource))


def _tenant_of(resource: NamespaceName | TopicName) -> str:
    return resource.tenant


def _namespace_of(resource: NamespaceName | TopicName) -> str:
    return str(resource) if isinstance(resource, NamespaceName) else resource.namespace


# --- grants -----------------------------------------------------------------------------------


def _granted(grants: Fields, topic: TopicName | None) -> Iterable[tuple[Fields, bool]]:
    """Return the grants of a namespace and of a topic, each with a flag: roles may be patterns. A
    partition has its own grants, and those of the partitioned topic for roles named exactly, as in
    Pulsar.
    """
    yield _object(grants.get(ROLES)), True
    if topic is not None:
        of_topics = _object(grants.get(TOPICS))
        yield _object(of_topics.get(str(topic))), True
        if topic.is_partitioned:
            yield _object(of_topics.get(topic.partitioned_topic_name)), False


def _may_use(grants: Fields, subscription: str, role: str) -> bool:
    """Return True if a subscription is open to all consumers, or to this role."""
    roles = _texts(_object(grants.get(SUBSCRIPTIONS)).get(subscription))
    return not roles or role in roles


def _matches(pattern: str, role: str) -> bool:
    if pattern.endswith(ANY):
        return role.startswith(pattern[: -len(ANY)])
    return pattern.startswith(ANY) and role.endswith(pattern[len(ANY) :])


# Other programs may have written any JSON. Values that are not a list of strings grant nothing.


def _object(value: Any) -> Fields:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> frozenset[str]:
    if not isinstance(value, list):
        return frozenset()
    return frozenset(each for each in value if isinstance(each, str))


# --- refusals, in Pulsar's words --------------------------------------------------------------

NEEDS_SUPERUSER = "This operation requires super-user access"
NEEDS_ADMINISTRATOR = "Don't have permission to administrate resources on this tenant"
# Operations that Pulsar names in its refusals; for others it requires a superuser.
_BROKER_OPERATIONS = frozenset(
    """
    HEALTH_CHECK LIST_BROKERS GET_LEADER_BROKER LIST_OWNED_NAMESPACES
    GET_INTERNAL_CONFIGURATION_DATA CHECK_BACKLOG_QUOTA LIST_DYNAMIC_CONFIGURATIONS
    LIST_RUNTIME_CONFIGURATIONS UPDATE_DYNAMIC_CONFIGURATION DELETE_DYNAMIC_CONFIGURATION
    """.split()
)
_OF_TENANT = frozenset({"LIST_NAMESPACES", "CREATE_NAMESPACE", "DELETE_NAMESPACE"})


def refusal_of(principal: Principal, right: Right, resource: Resource) -> AuthorizationError:
    """Return the error for a missing right; its text and HTTP status are Pulsar's."""
    operation, scope = right.operation, right.scope
    if scope is Scope.ADMINISTRATION:
        return NotPermitted(NEEDS_ADMINISTRATOR)
    if scope is Scope.TOPIC:
        return NotPermitted(
            f"Unauthorized to validateTopicOperation for operation [{operation}] on topic"
            f" [{resource}]"
        )
    if scope in (Scope.TOPIC_POLICY, Scope.NAMESPACE_POLICY):
        kind = "Topic" if scope is Scope.TOPIC_POLICY else "Namespace"
        verb, _, policy = operation.partition(" ")
        return AuthorizationError(
            f"Unauthorized to validate{kind}PolicyOperation for operation [{verb}] on"
            f" {kind.lower()} [{resource}] on policy [{policy}]"
        )
    if scope is Scope.NAMESPACE and right.holders != (SUPERUSER,):
        namespace = resource.namespace if isinstance(resource, TopicName) else resource
        return AuthorizationError(
            f"Unauthorized to validateNamespaceOperation for operation [{operation}] on namespace"
            f" [{namespace}]"
        )
    return NotPermitted(_refusal_above_namespaces(principal, right, resource))


def _refusal_above_namespaces(principal: Principal, right: Right, resource: Resource) -> str:
    scope = right.scope
    operation, _, policy = right.operation.partition(" ")
    who = (
        f"for originalPrincipal [{principal.original_role or 'null'}] and clientAppId"
        f" [{principal.role or 'null'}] about operation [{operation}]"
    )
    if scope is Scope.BROKER and operation in _BROKER_OPERATIONS:
        return (
            f"Unauthorized to validateBothSuperuserAndBrokerOperation {who} on broker [{resource}]"
        )
    if scope is Scope.CLUSTER:
        kind = "ClusterPolicy" if policy else "Cluster"
        return (
            f"Unauthorized to validateBothSuperuserAnd{kind}Operation {who} on cluster [{resource}]"
        )
    if scope is Scope.TENANT and operation in _OF_TENANT:
        tenant = resource.tenant if isinstance(resource, NamespaceName) else resource
        return f"Unauthorized to validateTenantOperation {who} on tenant [{tenant}]"
    if scope is Scope.TENANT:
        return f"Unauthorized to validateBothTenantOperationAndSuperUser {who} "
    return NEEDS_SUPERUSER
