"""/admin/v2/{domain}/.../why: reasons why a topic or a subscription does not move.

Pulsar has no such endpoints. They open no topic.
"""

from __future__ import annotations

from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import check_namespace, topic_of
from pyxbroker.admin.store_check import record_of_cluster
from pyxbroker.auth.authorization import GET_STATS
from pyxbroker.base.errors import TopicNotFound
from pyxbroker.broker.why.answers import why_subscription, why_topic
from pyxbroker.web.endpoint import Answer, Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
LINE_BYTES = 1 << 10  # of the answer, per subscription


async def _check_store(request: Request) -> None:
    """Raise HttpError 503 soon if the metadata store does not answer. Used as a precheck."""
    await record_of_cluster(request.app.broker)


async def get_of_topic(request: Request) -> Response:
    """Return why a topic takes no messages, with a line for each subscription."""
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    broker = request.app.broker
    topic = broker.topics.registry.loaded(name)
    lines = 0 if topic is None else len(topic.subscriptions)
    async with request.app.statistics.reserve(request, LINE_BYTES * lines):
        try:
            answer = await why_topic(broker, name)
        except TopicNotFound as error:
            raise HttpError(404, str(error)) from None
        return await Response.long_json(answer)


async def get_of_subscription(request: Request) -> Response:
    """Return why a subscription does not get messages."""
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    try:
        answer = await why_subscription(request.app.broker, name, request.parameters["subName"])
    except TopicNotFound as error:
        raise HttpError(404, str(error)) from None
    return Response.json(answer)


_TEXT = {"type": "string"}
_ANSWER = {
    "reason": _TEXT,
    "sentence": _TEXT,
    "topic": _TEXT,
    "owner": _TEXT,
    "since": {"type": "string", "format": "date-time"},
    "evidence": {"type": "object", "additionalProperties": True},
}
_LINE = {
    "type": "object",
    "properties": {"subscription": _TEXT, "reason": _TEXT, "sentence": _TEXT, "since": _TEXT},
}

ENDPOINTS = (
    Endpoint(
        "GET",
        TOPIC + "/why",
        get_of_topic,
        GET_STATS,
        "The reason why a topic takes no messages, and why each subscription does not move.",
        Answer(
            "The reason, a sentence and the evidence.",
            {
                "type": "object",
                "properties": {**_ANSWER, "subscriptions": {"type": "array", "items": _LINE}},
            },
        ),
        topic_of,
        precheck=_check_store,
    ),
    Endpoint(
        "GET",
        TOPIC + "/subscription/{subName}/why",
        get_of_subscription,
        GET_STATS,
        "The reason why a subscription does not move.",
        Answer(
            "The reason, a sentence and the evidence.",
            {"type": "object", "properties": {**_ANSWER, "subscription": _TEXT}},
        ),
        topic_of,
        precheck=_check_store,
    ),
)
