"""/admin/v2/brokers: which ones there are, and whether this one is well, as in Pulsar's Brokers."""

from __future__ import annotations

import asyncio
from typing import Any

from pyxbroker import __version__
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import STRINGS, this_broker
from pyxbroker.auth.authorization import (
    AUTHENTICATED,
    BACKLOG_QUOTA_CHECK,
    GET_INTERNAL_CONFIGURATION,
    GET_LEADER,
    HEALTH_CHECK,
    LIST_BROKERS,
    LIST_OWNED,
    BrokerId,
)
from pyxbroker.broker.served_bundles import topics_by_bundle
from pyxbroker.metadata import paths
from pyxbroker.settings.config import DEFAULT_METADATA_URL
from pyxbroker.web.endpoint import Answer, Endpoint, Query
from pyxbroker.web.errors import HttpError, refusal
from pyxbroker.web.response import JSON, Response

HEALTH_TIMEOUT_S = 10.0
OWNED = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
ANY: dict[str, Any] = {"type": "object", "additionalProperties": True}


async def health(request: Request) -> Response:
    """Whether messages can be published: the storage takes entries and the metadata answers.

    Apache Pulsar publishes and reads a message for this, in a topic of its own that grows with each
    question. Here the journal itself says whether it works, and asking leaves nothing behind.
    """
    broker = request.app.broker
    asked = request.argument("brokerId")
    if asked is not None:
        _check_here(request, asked)
    reason = broker.failure()
    if reason is not None:
        return refusal(503, reason)
    cluster = paths.cluster(broker.config.clusterName)
    found = await asyncio.wait_for(broker.metadata.get(cluster), HEALTH_TIMEOUT_S)
    if found is None:
        return refusal(503, f"The metadata store has no cluster {broker.config.clusterName!r}.")
    return _word("ok")


async def ready(request: Request) -> Response:
    """Whether the broker has started; a broker that has not does not serve this port."""
    return _word("ok")


async def version(request: Request) -> Response:
    """The version of the broker's program."""
    return _word(__version__)


async def get_brokers(request: Request) -> Response:
    """The brokers of the cluster: this one, whichever cluster is asked for."""
    return Response.json([request.app.broker.broker_id])


async def get_brokers_of(request: Request) -> Response:
    """Those of a cluster: there is one, whatever it is called."""
    return await get_brokers(request)


async def get_leader(request: Request) -> Response:
    """Pulsar's BrokerInfo of the leader: there is no other broker."""
    broker = request.app.broker
    url = broker.addresses.web_url or broker.addresses.web_url_tls
    return Response.json({"serviceUrl": url, "brokerId": broker.broker_id})


async def get_owned(request: Request) -> Response:
    """The bundles of which a broker serves topics, with Pulsar's NamespaceOwnershipStatus."""
    _check_here(request, request.parameters["brokerId"])
    broker = request.app.broker
    served = await topics_by_bundle(broker.topics.registry, broker.namespaces)
    return Response.json({f"{namespace}/{bundle}": OWNED for namespace, bundle in served})


async def get_internal_configuration(request: Request) -> Response:
    """Pulsar's InternalConfigurationData: where the metadata is, for tools beside brokers."""
    url = request.app.broker.config.metadataStoreUrl or DEFAULT_METADATA_URL
    names = ("zookeeperServers", "configurationStoreServers")
    urls = ("metadataStoreUrl", "configurationMetadataStoreUrl")
    return Response.json(dict.fromkeys((*names, *urls), url) | {"ledgersRootPath": paths.LEDGERS})


async def check_quotas(request: Request) -> Response:
    """Looks at the backlog quotas of all open topics, now."""
    await request.app.broker.topics.upkeep.check_quotas()
    return Response.empty()


def _check_here(request: Request, broker_id: str) -> None:
    """Raises HttpError 404 for another broker."""
    if broker_id != request.app.broker.broker_id:
        reason = f"Broker id '{broker_id:.100}' not found in available brokers."
        raise HttpError(404, reason)


def _named_broker(request: Request) -> BrokerId:
    """The broker of a path, which there may not be."""
    return BrokerId(request.parameters["brokerId"])


def _word(text: str) -> Response:
    # Pulsar answers these words bare, yet calls them JSON.
    return Response.text(text, JSON)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/admin/v2/brokers/health",
        health,
        HEALTH_CHECK,
        "Whether messages can be published: 503 says why not.",
        Answer("The word ok, bare."),
        query=(Query("brokerId", "Of this broker; another one is 404."),),
        resource=this_broker,
    ),
    Endpoint(
        "GET",
        "/admin/v2/brokers",
        get_brokers,
        LIST_BROKERS,
        "The brokers of this cluster.",
        Answer("Their ids.", STRINGS),
        resource=this_broker,
    ),
    Endpoint(
        "GET",
        "/admin/v2/brokers/{cluster}",
        get_brokers_of,
        LIST_BROKERS,
        "The brokers of a cluster.",
        Answer("Their ids.", STRINGS),
        resource=this_broker,
    ),
    Endpoint(
        "GET",
        "/admin/v2/brokers/leaderBroker",
        get_leader,
        GET_LEADER,
        "The broker that leads the others.",
        Answer("Pulsar's BrokerInfo.", ANY),
        resource=this_broker,
    ),
    Endpoint(
        "GET",
        "/admin/v2/brokers/{cluster}/{brokerId}/ownedNamespaces",
        get_owned,
        LIST_OWNED,
        "The bundles of which a broker serves topics.",
        Answer("Pulsar's NamespaceOwnershipStatus of each.", ANY),
        resource=_named_broker,
    ),
    Endpoint(
        "GET",
        "/admin/v2/brokers/internal-configuration",
        get_internal_configuration,
        GET_INTERNAL_CONFIGURATION,
        "Where the metadata is.",
        Answer("Pulsar's InternalConfigurationData.", ANY),
        resource=this_broker,
    ),
    Endpoint(
        "GET",
        "/admin/v2/brokers/backlog-quota-check",
        check_quotas,
        BACKLOG_QUOTA_CHECK,
        "Looks at the backlog quotas of topics that are open.",
        resource=this_broker,
    ),
    Endpoint(
        "GET",
        "/admin/v2/brokers/ready",
        ready,
        AUTHENTICATED,
        "Whether the broker has started.",
        Answer("The word ok, bare."),
    ),
    Endpoint(
        "GET",
        "/admin/v2/brokers/version",
        version,
        AUTHENTICATED,
        "The version of the broker's program.",
        Answer("The version, bare."),
    ),
)
