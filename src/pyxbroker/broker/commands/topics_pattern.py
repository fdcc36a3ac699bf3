"""Topic patterns, and the hash that tells a client if a topic list has changed.

A pattern is a regular expression in RE2's syntax, as in Pulsar's brokers. It is matched against
`tenant/namespace/local-name`, without the domain. For a partition, the name of the partitioned
topic is matched. Mirrors org.apache.pulsar.common.topics.TopicList.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

from pyxbroker._native import crc32c
from pyxbroker.base.errors import MetadataStoreError
from pyxbroker.base.expressions import Expression, ExpressionError, compile_expression
from pyxbroker.base.topic_name import NON_PERSISTENT, PERSISTENT, TopicName

Pause = Callable[[], Awaitable[None]]  # yields to other tasks when the time slice is used

PART_NAMES = 256  # of a long list, processed between two pauses
SAMPLES_PER_PART = 4


class BeyondRE2(MetadataStoreError):
    """An expression that may be valid, in a syntax other than RE2's."""


TopicsPattern = Expression


def without_domain(pattern: str) -> str:
    """Return the pattern without its domain. Raises MetadataStoreError for an unknown domain."""
    if "://" not in pattern:
        return pattern
    prefix, rest = pattern.split("://")[:2]
    for domain in (NON_PERSISTENT, PERSISTENT):
        if prefix.endswith(domain):
            return prefix.removesuffix(domain) + rest
    raise MetadataStoreError(f"The topics pattern has the unknown domain {prefix!r}.")


def compile_pattern(pattern: str) -> TopicsPattern:
    """Compile a pattern.

    Raises MetadataStoreError for an invalid expression, and BeyondRE2 for one that may be valid in
    another regular expression engine.
    """
    return _compiled(without_domain(pattern))


def _compiled(text: str) -> TopicsPattern:
    try:
        return compile_expression(text)
    except ExpressionError as error:
        if error.may_be_java:
            raise BeyondRE2(
                f"The topics pattern {text!r} is not evaluated by this broker, which knows the"
                f" syntax of RE2: {error}."
            ) from error
        raise MetadataStoreError(f"The topics pattern {text!r} is not valid: {error}.") from error


def matches(pattern: TopicsPattern, topic: TopicName) -> bool:
    """Return True if a pattern matches a topic, or the partitioned topic of a partition."""
    # RE2 works on bytes; for a str it would convert match positions to characters.
    name = topic.partitioned_topic_name.split("://", 1)[1].encode()
    return pattern.fullmatch(name) is not None


async def sorted_parts(names: Sequence[str], pause: Pause) -> list[list[str]]:
    """Return the names sorted, in a list of short lists.

    The order is Java's, by UTF-16 code units. The work is split by pauses, because sorting 100,000
    names in one call takes 30 ms.
    """
    key: Callable[[str], Any] = str
    for names_now in _cut(names):
        if not all(map(str.isascii, names_now)):
            key = _utf16
            break
        await pause()
    count = len(names) // PART_NAMES
    if count == 0:
        return [sorted(names, key=key)]
    # Boundaries of the parts, chosen from a larger sample so that their lengths are similar.
    samples = [key(name) for name in names[:: max(len(names) // (count * SAMPLES_PER_PART), 1)]]
    samples.sort()
    begins = samples[SAMPLES_PER_PART::SAMPLES_PER_PART]
    parts: list[list[str]] = [[] for _ in range(len(begins) + 1)]
    for names_now in _cut(names):
        for name in names_now:
            parts[bisect_right(begins, key(name))].append(name)
        await pause()
    for part in parts:
        part.sort(key=key)
        await pause()
    return parts


async def hash_of_parts(parts: Iterable[list[str]], pause: Pause) -> str:
    """Return the hash of a sorted list: CRC-32C of the names joined by commas, as eight hexadecimal
    digits of its bytes in little-endian order (Guava's crc32c as text).
    """
    crc = 0
    is_first = True
    for part in parts:
        if part:
            text = ",".join(part)
            crc = crc32c((text if is_first else "," + text).encode(), crc)
            is_first = False
        await pause()
    return crc.to_bytes(4, "little").hex()


async def topics_hash(names: Sequence[str], pause: Pause) -> str:
    """Return the hash of a list in any order."""
    return await hash_of_parts(await sorted_parts(names, pause), pause)


def _cut(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[at : at + PART_NAMES] for at in range(0, len(names), PART_NAMES))


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
