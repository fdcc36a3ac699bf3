"""The topics that metadata names: a node for each, below those of their namespace."""

from __future__ import annotations

from pyxbroker.base.errors import InvalidTopicName
from pyxbroker.base.log import get_logger
from pyxbroker.base.topic_name import TopicName
from pyxbroker.base.url_encoding import decode

log = get_logger("pyxbroker.topics")


def topic_of_node(domain: str, namespace: str, node: str) -> TopicName | None:
    """The topic of a node's name; None, with a line in the log, where none can have that name."""
    try:
        return TopicName.get(f"{domain}://{namespace}/{decode(node)}")
    except InvalidTopicName as error:
        log.warning(
            "metadata has a topic that cannot be one", namespace=namespace, node=node, error=error
        )
        return None
