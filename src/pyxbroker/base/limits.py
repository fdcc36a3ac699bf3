"""How long names and other text may be, and how many there may be: what is looked at before
anything is stored. docs/compatibility.md, "Limits", has the same table with its reasons.

Apache Pulsar has no limits of its own here; what its metadata store does not take it finds out
after it has begun. A node of ZooKeeper holds 1 MiB, and so does the list of a node's children: a
managed ledger's node has the properties of its topic, a cursor's those of its subscription, and a
namespace's children are its topics.
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
CHUNK_UUID_BYTES_MAX = 1_088  # a client makes it of its producer's name and a number
TEXT_BYTES_MAX = 64 << 10  # what has no limit of its own

SURELY_SHORT = 64  # characters, whichever they are: within each of these limits
SURELY_SHORT_VALUE = 16 << 10  # of a property

# The whole of what a client may call a topic, or a namespace: domain://tenant/namespace/topic.
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
"""Of one command, with those of the messages in it, of which as many metadata and properties as a
consumer may have are less. To parse so many takes 0.2 ms. SEND, ACK, FLOW and
REDELIVER_UNACKNOWLEDGED_MESSAGES, whose fields are read where they lie, have no such limit; hash
ranges, of which protobuf makes nothing, have their own."""

COMMAND_BYTES_MAX = 1 << 20
"""Of one command that has neither such fields nor a schema: all that it may have is less."""

METADATA_FIELDS_MAX = 100_000
"""Of one message, each property being one. They are looked at again whenever it is sent."""

HASH_RANGES_MAX = 65_536
"""Of one STICKY consumer: as many as there are hashes. More of them overlap."""

PARTITIONS_MAX = 100_000
"""Of one topic, unless maxNumPartitionsPerPartitionedTopic says another number. They are made in
ten seconds, and the list of their names is still one that the metadata store and a client can take;
both grow with the number."""

PARTITIONS_SUBSCRIPTIONS_MAX = 1_000_000
"""Of one request that makes partitions, each with the subscriptions that the topic has."""

PARTITIONS_PROPERTIES_BYTES_MAX = 256 << 20
"""Of one request that writes properties of subscriptions into each partition."""


def bytes_over(text: str, bytes_max: int) -> int:
    """The length of a text in UTF-8 when that is over the limit, else 0."""
    if len(text) * 4 <= bytes_max:
        return 0
    length = len(text.encode("utf-8", "surrogatepass"))
    return length if length > bytes_max else 0


def too_long(what: str, text: str, bytes_max: int) -> str | None:
    """The sentence for a text that is over its limit."""
    length = bytes_over(text, bytes_max)
    if not length:
        return None
    return f"The {what} is too long: it has {length} bytes, and at most {bytes_max} are allowed."


def too_many(what: str, count: int) -> str:
    """The sentence for more properties than there may be."""
    return f"The {what} are too many: {count}, and at most {PROPERTIES_MAX} are allowed."


def properties_bytes(properties: Mapping[str, str]) -> int:
    """The bytes of keys and values together."""
    return len("".join(chain.from_iterable(properties.items())).encode("utf-8", "surrogatepass"))


def copies_trouble(bytes_each: int, partitions: int) -> str | None:
    """The sentence for properties of subscriptions that are too much for so many partitions."""
    if bytes_each * partitions <= PARTITIONS_PROPERTIES_BYTES_MAX:
        return None
    return (
        f"Properties of {bytes_each} bytes would be written into {partitions} partitions, and one"
        f" request may write {PARTITIONS_PROPERTIES_BYTES_MAX} bytes of them: shorten them, or name"
        " partitions one by one."
    )


def properties_trouble(what: str, properties: Collection[tuple[str, str]]) -> str | None:
    """The sentence for properties that are too many, too long or no text."""
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
