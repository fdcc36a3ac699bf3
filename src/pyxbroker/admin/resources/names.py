"""Helpers of resources: names in paths, and bodies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pyxbroker.admin.request import Request
from pyxbroker.auth.authorization import BrokerId, ClusterName
from pyxbroker.base.errors import InvalidTopicName, NamespaceNotFound
from pyxbroker.base.limits import properties_trouble, too_long
from pyxbroker.base.slices import Slices
from pyxbroker.base.topic_name import NamespaceName, TenantName, TopicName
from pyxbroker.policies.records import DELETED
from pyxbroker.web.coercion import to_text
from pyxbroker.web.errors import HttpError

# JSON schemas of several endpoints.
STRINGS = {"type": "array", "items": {"type": "string"}}
STRING_MAP = {"type": "object", "additionalProperties": {"type": "string"}}

NAMESPACE_NOT_FOUND = "Namespace not found"
NO_NAMESPACE = "Namespace does not exist"
NOT_PERSISTENT = "Need to provide a persistent topic name"
NODE_NAME_BYTES_MAX = 256


def this_broker(request: Request) -> BrokerId:
    """Return the id of this broker."""
    return BrokerId(request.app.broker.broker_id)


def cluster_of(request: Request) -> ClusterName:
    """Return the cluster of a path, which need not exist."""
    return ClusterName(request.parameters["cluster"])


def domain_of(request: Request) -> str:
    """Return `persistent` or `non-persistent`, the only domains with these resources."""
    return str(request.parameters["domain"])


def tenant_of(request: Request) -> TenantName:
    """Return the tenant of a path. Raises HttpError 412."""
    try:
        name = TenantName(request.parameters["tenant"])
    except InvalidTopicName:
        raise HttpError(412, "Tenant name is not valid") from None
    _check_length(request, name)
    return name


def namespace_name_of(request: Request) -> NamespaceName:
    """Return the namespace of a path. Raises HttpError 412."""
    parts = request.parameters
    try:
        name = NamespaceName(parts["tenant"], parts["namespace"])
    except InvalidTopicName:
        raise HttpError(412, "Namespace name is not valid") from None
    _check_length(request, name)
    return name


def namespace_of(request: Request) -> str:
    """Return the namespace of a path as `tenant/namespace`. Raises HttpError 412."""
    return str(namespace_name_of(request))


def topic_of(request: Request) -> TopicName:
    """Return the topic of a path. Raises HttpError 412."""
    parts = request.parameters
    try:
        namespace = NamespaceName(parts["tenant"], parts["namespace"])
        name = TopicName(domain_of(request), namespace, parts["topic"])
    except InvalidTopicName:
        raise HttpError(412, "Topic name is not valid") from None
    _check_length(request, name)
    return name


def check_not_system(name: TopicName, operation: str) -> None:
    """Raise HttpError 405 for a topic of the broker itself, whose contents the broker needs."""
    if name.is_system:
        raise HttpError(405, f"{operation} on a system topic is not allowed")


def check_not_internal(name: TopicName) -> None:
    """Raise HttpError 400 for a name that transactions use."""
    if name.is_transaction_internal:
        raise HttpError(400, "Cannot create topic in system topic format!")


def _check_length(request: Request, name: TopicName | NamespaceName | TenantName) -> None:
    """Raise HttpError 412 for a name that is too long, except to delete it."""
    if request.method == "DELETE":
        return
    try:
        name.check_length()
    except InvalidTopicName as error:
        raise HttpError(412, str(error)) from None


def partitioned_topic_of(request: Request) -> TopicName:
    """Return the topic of a path, which must not be a partition. Raises HttpError 412."""
    name = topic_of(request)
    if "-partition-" in name.local_name:
        raise HttpError(412, "Partitioned Topic Name should not contain '-partition-'")
    return name


async def check_namespace(
    request: Request,
    namespace: str,
    reason: str = NAMESPACE_NOT_FOUND,
    allow_deleted: bool = False,
) -> None:
    """Raise HttpError 404 if the namespace does not exist, or is being deleted (unless allowed)."""
    slices = Slices()
    try:
        record = await request.app.broker.topics.policies.namespace_fields(namespace)
    except NamespaceNotFound:
        raise HttpError(404, reason) from None
    await slices.pause()  # it may be half a megabyte that is not cached
    if record.get(DELETED) is True and not allow_deleted:
        raise HttpError(404, "Namespace is deleted")


async def require_namespace(request: Request) -> None:
    """Raise HttpError 404 if the namespace of a path does not exist. Used as a precheck."""
    await check_namespace(request, namespace_of(request))


def require_persistent(status: int, reason: str) -> Callable[[Request], Awaitable[None]]:
    """Return a precheck that refuses non-persistent topics."""

    async def check(request: Request) -> None:
        if domain_of(request) == "non-persistent":
            raise HttpError(status, reason)

    return check


async def check_tenant(request: Request) -> None:
    """Raise TenantNotFound if the tenant of a path does not exist."""
    await request.app.broker.tenants.record(request.parameters["tenant"])


async def has_body(request: Request) -> bool:
    """Return True if the request has a body. Raises HttpError.

    For some requests without a body, Pulsar first checks whether their resource exists.
    """
    content = request.endpoint.content
    assert content is not None
    return bool(await request.read(content.bytes_max))


async def read_json(request: Request) -> object:
    """Return the body as JSON, or None if it is empty.

    Raises HttpError 415 for an unsupported media type, and 400 if a required body is empty.
    """
    if not await read_body(request):
        return None
    content = request.endpoint.content
    assert content is not None
    return await request.json(content.bytes_max, content.tokens_max)


async def read_body(request: Request) -> bytes:
    """Return the raw body, of a media type that the endpoint accepts. Raises HttpError."""
    content = request.endpoint.content
    assert content is not None
    body = await request.read(content.bytes_max)
    if not body:
        if content.required:
            raise HttpError(400, "The request entity cannot be empty.")
        return body
    if request.content_type not in content.schemas:
        given = repr(request.content_type) if request.content_type else "unknown"
        wanted = " or ".join(content.schemas)
        raise HttpError(415, f"The Content-Type of the body must be {wanted}, it is {given}.")
    return body


def node_name_of(request: Request, parameter: str, what: str) -> str:
    """Return a path parameter that becomes the name of a metadata node. Raises HttpError 412."""
    name: str = request.parameters[parameter]
    if "/" in name or "\0" in name or name in (".", "..") or not name.strip():
        raise HttpError(412, f"The name of a {what} cannot be {name!r:.100}.")
    check_length(f"name of the {what}", name, NODE_NAME_BYTES_MAX)
    return name


def check_length(what: str, text: str, bytes_max: int, status: int = 412) -> None:
    """Raise HttpError with this status for a text that is too long."""
    trouble = too_long(what, text, bytes_max)
    if trouble is not None:
        raise HttpError(status, trouble)


def texts_of(value: object, what: str, count_max: int, bytes_max: int) -> list[str]:
    """Return the distinct strings of a JSON list. Raises HttpError 400."""
    if not isinstance(value, list):
        raise HttpError(400, f"{what} must be a list of strings, not {_shown(value)}.")
    if len(value) > count_max:
        raise HttpError(400, f"{what} has {len(value)} strings; the maximum is {count_max}.")
    try:
        texts = [to_text(each) for each in value]
    except ValueError:
        raise HttpError(400, f"{what} must be a list of strings, not {_shown(value)}.") from None
    for each in texts:
        check_length(f"text in {what}", each, bytes_max, 400)
    return list(dict.fromkeys(texts))


def strings_of(value: object, what: str) -> dict[str, str]:
    """Return a JSON object of strings without null values. Raises HttpError 400."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise HttpError(400, f"{what} must be a JSON object, not {_shown(value)}.")
    texts = {}
    for key, each in value.items():
        if each is None:
            continue
        try:
            texts[key] = to_text(each)
        except ValueError:
            raise HttpError(400, f"{what}: the value of {key!r} must be a string.") from None
    trouble = properties_trouble("properties", texts.items())
    if trouble is not None:
        raise HttpError(400, trouble)
    return texts


def _shown(value: object) -> str:
    return repr(value)[:100]
