"""Limits of names, texts and counts, checked before anything is stored.

docs/compatibility.md, "Limits", has the same table with its reasons. Apache Pulsar has no such
limits: it finds out during an operation what its metadata store refuses. A node of ZooKeeper holds
1 MiB, and so does the list of a node's children. A managed ledger's node has the properties of its
topic, a cursor's node those of its subscription, and the children of a namespace are its topics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain

# Bytes of UTF-8.
TENANT_BYTES_MAX = 256
NAMESPACE_BYTES_MAX = 256
CLUSTER_BYTES_MAX = 256
TOPIC_BYTES_MAX = 1_024  # of the local name, without `-partition-N`
SUBSCRIPTION_BYTES_MAX = 1_024
PRODUCER_BYTES_MAX = 1_024
CONSUMER_BYTES_MAX = 1_024
CLIENT_VERSION_BYTES_MAX = 1_024
CHUNK_UUID_BYTES_MAX = 1_088  # clients build it from the producer's name and a number
TEXT_BYTES_MAX = 64 << 10  # a text without a limit of its own

SURELY_SHORT = 64  # characters: any text of this length is within all of these limits
SURELY_SHORT_VALUE = 16 << 10  # likewise for the value of a property

# Full names of a namespace and of a topic: domain://tenant/namespace/topic.
NAMESPACE_NAME_BYTES_MAX = TENANT_BYTES_MAX + 1 + NAMESPACE_BYTES_MAX
PARTITION_SUFFIX_BYTES_MAX = 21
TOPIC_NAME_BYTES_MAX = (
    len("non-persistent://")
    + NAMESPACE_NAME_BYTES_MAX
    + 1
    + TOPIC_BYTES_MAX
    + PARTITION_SUFFIX_BYTES_MAX
)

# Properties of a topic or a subscription, and the metadata of a producer or a consumer.
PROPERTIES_MAX = 1_000
PROPERTY_KEY_BYTES_MAX = 1_024
PROPERTY_VALUE_BYTES_MAX = 64 << 10
PROPERTIES_BYTES_MAX = 256 << 10  # keys and values together

COMMAND_FIELDS_MAX = 10_000
"""Fields of one command, including those of nested messages. The metadata and properties that a
consumer may have are fewer. Parsing that many fields takes 0.2 ms. SEND, ACK, FLOW and
REDELIVER_UNACKNOWLEDGED_MESSAGES, whose fields are read in place, have no such limit. Hash ranges,
for which protobuf creates no objects, have their own."""

COMMAND_BYTES_MAX = 1 << 20
"""Bytes of one command without such fields and without a schema, well above what is legitimate."""

METADATA_FIELDS_MAX = 100_000
"""Fields of one message's metadata, each property being one. Each delivery scans them again."""

HASH_RANGES_MAX = 65_536
"""Ranges of one STICKY consumer: as many as there are hashes. More of them would overlap."""

PARTITIONS_MAX = 100_000
"""Partitions of one topic, unless maxNumPartitionsPerPartitionedTopic is set. Creating them takes
ten seconds, and the metadata store and clients can still handle the list of their names. Both grow
with the number."""

PARTITIONS_SUBSCRIPTIONS_MAX = 1_000_000
"""Subscriptions times partitions that one request may create."""

PARTITIONS_PROPERTIES_BYTES_MAX = 256 << 20
"""Properties of subscriptions that one request may write, over all partitions."""

COORDINATORS_MAX = 1_000
"""Transaction coordinators of a cluster. Requests about all of them ask each of their brokers."""

OPEN_TRANSACTIONS_MAX = 100_000
"""Open transactions of one coordinator, unless maxActiveTransactionsPerCoordinator is lower. Each
takes about 2 KB, and a recovery reads all of them."""

TRANSACTION_PARTICIPANTS_MAX = 10_000
"""Partitions and subscriptions of one transaction, which its end has to reach."""

TRANSACTION_NAMES_MAX = 1_000
"""Partitions or subscriptions that one command adds to a transaction. Clients add one at a time."""

TRANSACTION_NAMES_BYTES_MAX = 64 << 20
"""Names of the partitions and subscriptions of all open transactions of one coordinator. Each of
them counts for 100 bytes more, which is what the broker needs for it."""

TOPIC_TRANSACTIONS_MAX = 100_000
"""Open transactions with messages of one topic. Each takes about 300 bytes."""

PENDING_ACK_TRANSACTIONS_MAX = 100_000
"""Open transactions with acknowledgements on one subscription. Each takes about 1 KB."""

PENDING_ACK_WORDS_MAX = 1_000_000
"""Words of 64 bits of ack sets that are pending on one subscription, for messages of batches."""


def bytes_over(text: str, bytes_max: int) -> int:
    """Return the length of a text in UTF-8 if it exceeds the limit, else 0."""
    if len(text) * 4 <= bytes_max:
        return 0
    length = len(text.encode("utf-8", "surrogatepass"))
    return length if length > bytes_max else 0


def too_long(what: str, text: str, bytes_max: int) -> str | None:
    """Return the error message for a text that exceeds its limit, else None."""
    length = bytes_over(text, bytes_max)
    if not length:
        return None
    return f"The {what} is too long: it has {length} bytes, and at most {bytes_max} are allowed."


def too_many(what: str, count: int) -> str:
    """Return the error message for too many properties."""
    return f"The {what} are too many: {count}, and at most {PROPERTIES_MAX} are allowed."


def properties_bytes(properties: Mapping[str, str]) -> int:
    """Return the total bytes of keys and values."""
    return len("".join(chain.from_iterable(properties.items())).encode("utf-8", "surrogatepass"))


def copies_trouble(bytes_each: int, partitions: int) -> str | None:
    """Return the error message if properties are too large for that many partitions, else None."""
    if bytes_each * partitions <= PARTITIONS_PROPERTIES_BYTES_MAX:
        return None
    return (
        f"Properties of {bytes_each} bytes would be written into {partitions} partitions, and one"
        f" request may write {PARTITIONS_PROPERTIES_BYTES_MAX} bytes of them: shorten them, or name"
        " partitions one by one."
    )


def properties_trouble(what: str, properties: Collection[tuple[str, str]]) -> str | None:
    """Return the error message for properties that exceed a limit or are not UTF-8, else None."""
    if len(properties) > PROPERTIES_MAX:
        return too_many(what, len(properties))
    try:
        total = len("".join(chain.from_iterable(properties)).encode())
    except UnicodeEncodeError:
        return f"The {what} have a key or value that is not UTF-8 text."
    for key, value in properties:
        if len(key) <= SURELY_SHORT and len(value) <= SURELY_SHORT_VALUE:
            continue
        found = too_long(f"key of a property in the {what}", key, PROPERTY_KEY_BYTES_MAX)
        found = found or too_long(
            f"value of a property in the {what}", value, PROPERTY_VALUE_BYTES_MAX
        )
        if found is not None:
            return found
    if total > PROPERTIES_BYTES_MAX:
        return f"The {what} have {total} bytes, and at most {PROPERTIES_BYTES_MAX} are allowed."
    return None
