"""The names of topics from their nodes in metadata."""

from __future__ import annotations

from pyxbroker.base.errors import InvalidTopicName
from pyxbroker.base.log import get_logger
from pyxbroker.base.topic_name import TopicName
from pyxbroker.base.url_encoding import decode

log = get_logger("pyxbroker.topics")


def topic_of_node(domain: str, namespace: str, node: str) -> TopicName | None:
    """Return the topic of a node; log a warning and return None if its name is invalid."""
    try:
        return TopicName.get(f"{domain}://{namespace}/{decode(node)}")
    except InvalidTopicName as error:
        log.warning(
            "a node in metadata has an invalid topic name",
            namespace=namespace,
            node=node,
            error=error,
        )
        return None
