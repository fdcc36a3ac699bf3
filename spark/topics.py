"""The topics that a source reads: named topics, their partitions, and matches of a pattern."""

from __future__ import annotations

import re

from pyxbroker.base.errors import InvalidTopicName
from pyxbroker.base.topic_name import PERSISTENT, TopicName
from pyxbroker.spark.broker_connection import BrokerConnection
from pyxbroker.spark.errors import PulsarSparkError, TopicMissing, WrongOption
from pyxbroker.spark.options import Options


def topics_of(options: Options, broker: BrokerConnection, may_be_none: bool = False) -> list[str]:
    """Return the full names of the topics to read, with each partition as a topic, in order.

    It does not check that named topics exist. Raises WrongOption, and TopicMissing if a pattern has
    no match, unless `may_be_none`.
    """
    if options["topicsPattern"] is not None:
        try:
            found = _matching(options["topicsPattern"], broker)
        except TopicMissing:
            if not may_be_none and not options["waitingForNonExistedTopic"]:
                raise
            found = []
    else:
        found = [each for name in _named(options) for each in _partitions_of(name, broker)]
    return sorted(set(found))


def is_named(options: Options, topic: str) -> bool:
    """Return True if the options have this exact name."""
    if options["topicsPattern"] is not None:
        return False
    return topic in {str(each) for each in _named(options)}


def is_wanted(options: Options, topic: str) -> bool:
    """Return True if the options select the topic, by name, partitioned topic or pattern."""
    name = TopicName.get(topic)
    if options["topicsPattern"] is not None:
        namespace, expression = _pattern(options["topicsPattern"])
        return name.namespace == namespace and _matches(expression, name)
    whole = TopicName.get(name.partitioned_topic_name)
    return name in _named(options) or whole in _named(options)


def _named(options: Options) -> list[TopicName]:
    """Return the named topics. Raises WrongOption."""
    option = "topic" if options["topic"] is not None else "topics"
    names = [options[option]] if option == "topic" else options[option].split(",")
    return [_name_of(option, each) for each in names]


def name_of(text: str) -> TopicName:
    """Parse a topic name. Raises PulsarSparkError."""
    try:
        return TopicName.get(text.strip())
    except InvalidTopicName as error:
        raise PulsarSparkError(str(error)) from error


def _name_of(option: str, text: str) -> TopicName:
    try:
        name = TopicName.get(text.strip())
    except InvalidTopicName as error:
        raise WrongOption(f"{option}: {error}") from error
    if not name.is_persistent:
        raise WrongOption(f"{option}: {name} is not persistent, so it stores no messages to read.")
    return name


def _partitions_of(name: TopicName, broker: BrokerConnection) -> list[str]:
    if name.is_partitioned:
        return [str(name)]
    count = broker.partitions(str(name))
    return [str(name.partition(index)) for index in range(count)] if count else [str(name)]


def _matching(pattern: str, broker: BrokerConnection) -> list[str]:
    """Return the topics that match a pattern. Raises WrongOption, TopicMissing."""
    namespace, expression = _pattern(pattern)
    names = [TopicName.get(each) for each in broker.topics(namespace)]
    found = [str(name) for name in names if not name.is_system and _matches(expression, name)]
    if not found:
        raise TopicMissing(
            f"no topic of {namespace} matches {expression.pattern!r}. Brokers delete a topic that"
            " no client uses, unless a subscription or retention keeps it."
        )
    return found


def _matches(expression: re.Pattern[str], name: TopicName) -> bool:
    local_name = name.partitioned_topic_name.rpartition("/")[2]
    return expression.fullmatch(local_name) is not None


def _pattern(pattern: str) -> tuple[str, re.Pattern[str]]:
    """Return (namespace, expression for local names). Raises WrongOption."""
    domain, separator, rest = pattern.rpartition("://")
    if separator and domain != PERSISTENT:
        raise WrongOption(f"topicsPattern is {pattern!r}: only persistent topics can be read.")
    parts = rest.split("/", 2)
    if len(parts) not in (1, 3):
        raise WrongOption(
            f"topicsPattern is {pattern!r}: it has the form tenant/namespace/expression."
        )
    namespace = "/".join(parts[:2]) if len(parts) == 3 else "public/default"
    try:
        return namespace, re.compile(parts[-1])
    except re.error as error:
        raise WrongOption(
            f"topicsPattern is {pattern!r}, which is not a regular expression: {error}."
        ) from error
