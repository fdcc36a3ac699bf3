"""Which topics a pattern names, and the hash by which a client sees that a list has not changed.

A pattern is a regular expression in the syntax of Java or RE2, as clients write it. It is matched
against `tenant/namespace/local-name`: the domain in front is cut off, and of a partition it is the
partitioned topic's name that counts. Mirrors org.apache.pulsar.common.topics.TopicList.

Python's engine backtracks, and a pattern comes from anybody. So only those are evaluated here that
cannot take long: few repetitions and none of a group. Of the others the client is told that the
list was not filtered, and does it itself, as it must with patterns that Pulsar finds too long.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable

from pyxbroker._native import crc32c
from pyxbroker.base.errors import MetadataStoreError
from pyxbroker.base.topic_name import NON_PERSISTENT, PERSISTENT, TopicName

REPETITIONS_MAX = 2  # each one more makes a mismatch slower by the length of the name
OPTIONS_MAX = 8  # each one more makes it twice as slow

# What a pattern is made of, as far as its cost is concerned. A quantifier may be lazy.
_TOKEN = re.compile(
    r"(?P<escape>\\(?P<escaped>.))|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|\(\?|"
    r"(?P<group>\)[*+{])|(?P<repetition>[*+][?+]?|\{\d*,?\d*\}[?+]?)|(?P<option>\?[?+]?)|.",
    re.DOTALL,
)
# Escapes that mean the same in Java, RE2 and Python; with a letter, others do not.
_COMMON_ESCAPES = frozenset("dDsSwWbBtnrfv0")
# Between brackets Java reads the first two as arithmetic of sets; Python warns that it may, of all.
_SET_ARITHMETIC = ("&&", "[[", "||", "--", "~~")
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|$)", re.DOTALL)
_NAMED_GROUP = re.compile(r"\(\?<(?=[A-Za-z])")


def without_domain(pattern: str) -> str:
    """The pattern without the domain in front. Raises MetadataStoreError for an unknown domain."""
    if "://" not in pattern:
        return pattern
    prefix, rest = pattern.split("://")[:2]
    for domain in (NON_PERSISTENT, PERSISTENT):
        if prefix.endswith(domain):
            return prefix.removesuffix(domain) + rest
    raise MetadataStoreError(f"The topics pattern has the domain {prefix!r}, which is none.")


def compile_pattern(pattern: str) -> re.Pattern[str] | None:
    """What matches the names that the pattern means; None when it has to be left to the client.

    Raises MetadataStoreError for what is no regular expression.
    """
    text = without_domain(pattern)
    text = _QUOTED.sub(lambda quoted: re.escape(quoted.group(1)), text)
    text = _NAMED_GROUP.sub("(?P<", text)
    if not _is_common_syntax(text):
        return None
    try:
        with warnings.catch_warnings():
            # What Python may come to understand in another way.
            warnings.simplefilter("error", FutureWarning)
            compiled = re.compile(text, re.ASCII)
    except FutureWarning:
        return None
    except (re.error, OverflowError, RecursionError) as error:
        raise MetadataStoreError(f"The topics pattern {pattern!r} is not valid: {error}") from error
    return compiled if _is_cheap(text) else None


def _is_common_syntax(text: str) -> bool:
    """Whether it means the same to every engine."""
    if "[" in text and any(each in text for each in _SET_ARITHMETIC):
        return False
    for token in _TOKEN.finditer(text):
        escaped = token["escaped"]
        if escaped and escaped.isalpha() and escaped not in _COMMON_ESCAPES:
            return False
        if token["set"] and "[" in token["set"][1:]:
            return False
    return True


def _is_cheap(text: str) -> bool:
    repetitions = options = 0
    for token in _TOKEN.finditer(text):
        if token["group"]:
            return False
        repetitions += token["repetition"] is not None
        options += token["option"] is not None
    return repetitions <= REPETITIONS_MAX and options <= OPTIONS_MAX


def matches(pattern: re.Pattern[str], topic: TopicName) -> bool:
    """Whether a pattern names a topic, or the partitioned topic that it is a part of."""
    return pattern.fullmatch(topic.partitioned_topic_name.split("://", 1)[1]) is not None


def topics_hash(topics: Iterable[str]) -> str:
    """Hash of a list of names in any order: CRC-32C of the sorted names joined by commas, as the
    eight hexadecimal digits of its bytes, the lowest first (Guava's crc32c as text).

    Java sorts by UTF-16 code units; so do we.
    """
    names = list(topics)
    names.sort(key=None if all(map(str.isascii, names)) else _utf16)
    return crc32c(",".join(names).encode()).to_bytes(4, "little").hex()


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
