"""Names of topics and namespaces, parsed and formatted by Pulsar's rules.

    persistent://tenant/namespace/local-name      the full form
    tenant/namespace/local-name                   persistent
    local-name                                    persistent, in public/default

The domain is `persistent` or `non-persistent`. Tenants and namespaces consist of ASCII letters,
digits and `- = : . _`. A local name may hold any character but a slash, and must not be blank.
Names with a cluster between tenant and namespace (Pulsar's V1 form) are refused, as in Pulsar since
4.2. A local name that ends with `-partition-N`, N written without leading zeros, is partition N of
the topic with the name before it.

Mirrors org.apache.pulsar.common.naming.{TopicName,NamespaceName} with two exceptions. The domain is
converted to lower case, so that a managed ledger never belongs to two topics. `-partition-N`
without a name before it is an ordinary topic.
"""

from __future__ import annotations

import functools
import re

from pyxbroker.base import limits
from pyxbroker.base.errors import InvalidTopicName
from pyxbroker.base.url_encoding import encode

PUBLIC_TENANT = "public"
DEFAULT_NAMESPACE = "default"
PARTITIONED_TOPIC_SUFFIX = "-partition-"
PERSISTENT = "persistent"
NON_PERSISTENT = "non-persistent"

CACHED_NAMES_MAX = 10_000
CACHED_NAMESPACES_MAX = 1_000
CACHED_NAME_LENGTH_MAX = 1_024  # characters; clients must not fill the memory with huge names
SHOWN_LENGTH_MAX = 256  # characters of an invalid name that its error shows
PARTITION_INDEX_MAX = 2**31 - 1

_RESERVED_NAMES = (".", "..")
_NAMED_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)
_DOMAINS = (PERSISTENT, NON_PERSISTENT)
SYSTEM_NAMESPACE = "pulsar/system"
TRANSACTION_COORDINATORS = "transaction_coordinator_assign"
"""The partitioned topic in SYSTEM_NAMESPACE whose owners are the transaction coordinators."""
TRANSACTION_LOG = "__transaction_log_"
"""The beginning of the name of a coordinator's log in SYSTEM_NAMESPACE."""
PENDING_ACKS = "__transaction_pending_ack"
"""The end of the name of the log of a subscription's pending acknowledgements."""
CHANGE_EVENTS = "__change_events"
SNAPSHOTS = "__transaction_buffer_snapshot"
SNAPSHOT_INDEXES = "__transaction_buffer_snapshot_indexes"
SNAPSHOT_SEGMENTS = "__transaction_buffer_snapshot_segments"
"""The system topics of a namespace with the snapshots of transaction buffers."""
"""The topic, or partitioned topic, of a namespace that stores its topic policies."""


class TenantName:
    """A tenant. Equal names compare equal; immutable."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        """Raise InvalidTopicName if the name has an invalid character."""
        if not _is_entity(name):
            raise InvalidTopicName(
                f"{_shown(name)} is not a tenant: it must be made of letters, digits and - = : . _"
                " only."
            )
        self._name = name

    def check_length(self) -> None:
        """Raise InvalidTopicName if the name is too long for a new tenant."""
        _check_length("tenant's name", self._name, limits.TENANT_BYTES_MAX)

    def __str__(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"TenantName({self._name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TenantName) and other._name == self._name

    def __hash__(self) -> int:
        return hash(self._name)


class NamespaceName:
    """`tenant/namespace`. Equal names compare equal; immutable."""

    __slots__ = ("_name", "local_name", "tenant")

    tenant: str
    local_name: str

    def __init__(self, tenant: str, local_name: str) -> None:
        """Raise InvalidTopicName if a part has an invalid character."""
        self._name = f"{tenant}/{local_name}"
        for what, part in (("tenant", tenant), ("namespace", local_name)):
            if not _is_entity(part):
                raise InvalidTopicName(
                    f"{_shown(self._name)} is not a namespace: its {what} {_shown(part)} must be"
                    " made of letters, digits and - = : . _ only."
                )
        self.tenant = tenant
        self.local_name = local_name

    @classmethod
    def get(cls, name: str) -> NamespaceName:
        """Parse `tenant/namespace`. Raises InvalidTopicName."""
        parts = name.split("/")
        if len(parts) != 2:
            raise InvalidTopicName(
                f"{_shown(name)} is not a namespace: it has the form tenant/namespace."
            )
        return cls(parts[0], parts[1])

    @classmethod
    def shared(cls, tenant: str, local_name: str) -> NamespaceName:
        """Return one object for all topics of a namespace, from a cache of recently used ones.

        Raises InvalidTopicName.
        """
        is_short = len(tenant) + len(local_name) < CACHED_NAME_LENGTH_MAX
        return (_shared_namespace if is_short else cls)(tenant, local_name)

    def check_length(self) -> None:
        """Raise InvalidTopicName if a part is too long for a new namespace."""
        _check_length("tenant's name", self.tenant, limits.TENANT_BYTES_MAX)
        _check_length("namespace's name", self.local_name, limits.NAMESPACE_BYTES_MAX)

    def __str__(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"NamespaceName({self._name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamespaceName) and other._name == self._name

    def __hash__(self) -> int:
        return hash(self._name)


class TopicName:
    """A topic's full name and its parts. Equal names compare equal; immutable."""

    __slots__ = (
        *("_full_name", "domain", "is_persistent", "is_system", "local_name", "namespace"),
        *("namespace_name", "partition_index"),
    )

    domain: str
    is_persistent: bool
    namespace_name: NamespaceName
    namespace: str  # `tenant/namespace`
    local_name: str
    partition_index: int  # -1: not a partition
    is_system: bool  # an internal topic, which lists omit; SystemTopicNames

    def __init__(self, domain: str, namespace_name: NamespaceName, local_name: str) -> None:
        """Create a name from parts; use `get` for a client's text. Raises InvalidTopicName."""
        self._full_name = f"{domain}://{namespace_name}/{local_name}"
        if domain not in _DOMAINS:
            raise InvalidTopicName(
                f"{_shown(self._full_name)} is not a topic name: the domain {_shown(domain)} is"
                " neither persistent nor non-persistent."
            )
        if not local_name or local_name.isspace():
            raise InvalidTopicName(
                f"{_shown(self._full_name)} is not a topic name: the part after the namespace is"
                " blank."
            )
        if "/" in local_name:
            raise InvalidTopicName(
                f"{_shown(self._full_name)} is not a topic name: the part after the namespace has"
                " a slash."
            )
        if local_name in _RESERVED_NAMES:
            raise InvalidTopicName(
                f"{_shown(self._full_name)} is not a topic name: {local_name} is no name of a node"
                " in metadata."
            )
        self.domain = domain
        self.is_persistent = domain == PERSISTENT
        self.namespace_name = namespace_name
        self.namespace = namespace = str(namespace_name)
        self.local_name = local_name
        self.partition_index = _partition_index(local_name)
        self.is_system = namespace == SYSTEM_NAMESPACE or (
            "__" in local_name and _is_system(self._base_local_name())
        )

    @classmethod
    def get(cls, name: str) -> TopicName:
        """Return the topic of a full or short name, from a cache of recently used names.

        Raises InvalidTopicName with a message for the user.
        """
        found = _cache.get(name)
        if found is None:
            found = _parse(name)
            if len(name) <= CACHED_NAME_LENGTH_MAX:
                if len(_cache) >= CACHED_NAMES_MAX:
                    del _cache[next(iter(_cache))]
                _cache[name] = found
        return found

    @property
    def tenant(self) -> str:
        return self.namespace_name.tenant

    @property
    def namespace_portion(self) -> str:
        """The namespace without its tenant."""
        return self.namespace_name.local_name

    @property
    def is_partitioned(self) -> bool:
        """True if the name is that of one partition."""
        return self.partition_index >= 0

    @property
    def is_snapshots(self) -> bool:
        """True for a topic that has the snapshots of transaction buffers by their topics."""
        return self.is_system and self.local_name in (SNAPSHOTS, SNAPSHOT_INDEXES)

    @property
    def is_change_events(self) -> bool:
        """True for the topic, or a partition of it, that stores a namespace's topic policies."""
        return self.is_persistent and self._base_local_name() == CHANGE_EVENTS

    @property
    def is_transaction_internal(self) -> bool:
        """True for the name of a log of transactions, and of the topic whose partitions assign
        coordinators to brokers: no client can use them.
        """
        if self._full_name.endswith(PENDING_ACKS):
            return True
        return self.namespace == SYSTEM_NAMESPACE and self.local_name.startswith(
            (TRANSACTION_COORDINATORS, TRANSACTION_LOG)
        )

    @property
    def encoded_local_name(self) -> str:
        """The local name as Java's URLEncoder writes it: one path element."""
        return encode(self.local_name)

    @property
    def managed_ledger_name(self) -> str:
        """`tenant/namespace/domain/<encoded local name>`: the path below /managed-ledgers in the
        metadata store. TopicName.getPersistenceNamingEncoding."""
        return f"{self.namespace_name}/{self.domain}/{self.encoded_local_name}"

    @property
    def schema_name(self) -> str:
        """The name under which the topic's schemas are stored; all partitions share it."""
        return f"{self.namespace_name}/{encode(self._base_local_name())}"

    @property
    def in_other_domain(self) -> TopicName:
        """The topic with the same name in the other domain."""
        domain = NON_PERSISTENT if self.is_persistent else PERSISTENT
        return TopicName.get(f"{domain}://{self.namespace_name}/{self.local_name}")

    @property
    def partitioned_topic_name(self) -> str:
        """The full name of the partitioned topic if this is a partition, else the topic's own."""
        return f"{self.domain}://{self.namespace_name}/{self._base_local_name()}"

    def check_length(self) -> None:
        """Raise InvalidTopicName if a part is too long for a new topic.

        Names in the metadata store may have any length, so that they can be listed and deleted.
        """
        if len(self._full_name) <= limits.SURELY_SHORT:
            return
        self.namespace_name.check_length()
        _check_length("topic's name", self._base_local_name(), limits.TOPIC_BYTES_MAX)

    def partition(self, index: int) -> TopicName:
        """Return partition `index`, counted from 0; a partition returns itself."""
        if self.is_partitioned:
            return self
        suffix = f"{PARTITIONED_TOPIC_SUFFIX}{index}"
        found = _cache.get(self._full_name + suffix)
        if found is not None:
            return found
        # Not cached: an iteration over 100,000 partitions must not evict the names of clients.
        return TopicName(self.domain, self.namespace_name, self.local_name + suffix)

    def _base_local_name(self) -> str:
        if self.partition_index < 0:
            return self.local_name
        return self.local_name[: self.local_name.rindex(PARTITIONED_TOPIC_SUFFIX)]

    def __str__(self) -> str:
        return self._full_name

    def __repr__(self) -> str:
        return f"TopicName({self._full_name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicName) and other._full_name == self._full_name

    def __hash__(self) -> int:
        return hash(self._full_name)


_shared_namespace = functools.lru_cache(CACHED_NAMESPACES_MAX)(NamespaceName)

# Texts of clients -> topics; the oldest is evicted when the cache is full.
_cache: dict[str, TopicName] = {}


def _parse(name: str) -> TopicName:
    domain, separator, rest = name.partition("://")
    if not separator:
        return _parse_short(name)
    parts = rest.split("/")
    if len(parts) > 3:
        raise InvalidTopicName(
            f"{_shown(name)} is not a topic name: names with a cluster in them are not supported"
            " and a local name has no slash; write domain://tenant/namespace/topic."
        )
    if len(parts) < 3:
        raise InvalidTopicName(
            f"{_shown(name)} is not a topic name: it has the form domain://tenant/namespace/topic."
        )
    tenant, namespace, local_name = parts
    return TopicName(domain.lower(), NamespaceName.shared(tenant, namespace), local_name)


def _parse_short(name: str) -> TopicName:
    parts = name.split("/")
    if len(parts) == 1:
        return TopicName(PERSISTENT, NamespaceName.shared(PUBLIC_TENANT, DEFAULT_NAMESPACE), name)
    if len(parts) == 3:
        return TopicName(PERSISTENT, NamespaceName.shared(parts[0], parts[1]), parts[2])
    raise InvalidTopicName(
        f"{_shown(name)} is not a topic name: a short name is topic or tenant/namespace/topic."
    )


def _partition_index(local_name: str) -> int:
    base, _, digits = local_name.rpartition(PARTITIONED_TOPIC_SUFFIX)
    if not (base and digits.isascii() and digits.isdigit()) or len(digits) > 10:
        return -1
    index = int(digits)
    return index if str(index) == digits and index <= PARTITION_INDEX_MAX else -1


def _is_system(local_name: str) -> bool:
    return (
        local_name == CHANGE_EVENTS
        or local_name.startswith("__transaction_")
        or local_name.endswith(PENDING_ACKS)
    )


def _is_entity(text: str) -> bool:
    # `.` and `..` cannot be elements of a metadata path.
    return _NAMED_ENTITY.fullmatch(text) is not None and text not in _RESERVED_NAMES


def _check_length(what: str, text: str, bytes_max: int) -> None:
    trouble = limits.too_long(what, text, bytes_max)
    if trouble is not None:
        raise InvalidTopicName(trouble)


def _shown(text: str) -> str:
    shown = repr(text[:SHOWN_LENGTH_MAX])
    return shown if len(text) <= SHOWN_LENGTH_MAX else f"{shown}..."
