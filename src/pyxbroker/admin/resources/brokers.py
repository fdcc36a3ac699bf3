"""/admin/v2/brokers: the brokers of the cluster and the health of this one, as in
Pulsar's Brokers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyxbroker import __version__
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import STRINGS, this_broker
from pyxbroker.admin.store_check import record_of_cluster
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
from pyxbroker.base.errors import ClusterNotFound
from pyxbroker.broker.served_bundles import topics_by_bundle
from pyxbroker.broker.serving_cluster import addresses_of_cluster
from pyxbroker.metadata import paths
from pyxbroker.settings.config import DEFAULT_METADATA_URL
from pyxbroker.web.endpoint import Answer, Endpoint, Query
from pyxbroker.web.errors import HttpError, refusal
from pyxbroker.web.response import JSON, Response

GLOBAL = "global"  # stands for every cluster
OWNED = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
ANY: dict[str, Any] = {"type": "object", "additionalProperties": True}


async def health(request: Request) -> Response:
    """Check that messages can be published: storage accepts writes and the metadata store answers.

    Apache Pulsar publishes and reads a message in a topic of its own, which grows with each check.
    Here the state of the journal is reported, which leaves nothing behind.
    """
    broker = request.app.broker
    asked = request.argument("brokerId")
    if asked is not None:
        _check_here(request, asked)
    reason = broker.failure()
    if reason is not None:
        return refusal(503, reason)
    if await record_of_cluster(broker) is None:
        return refusal(503, f"The metadata store has no cluster {broker.config.clusterName!r}.")
    return _plain_text("ok")


async def ready(request: Request) -> Response:
    """Answer that the broker has started; before that, the port is not served."""
    return _plain_text("ok")


async def version(request: Request) -> Response:
    """Return the version of the broker."""
    return _plain_text(__version__)


async def get_brokers(request: Request) -> Response:
    """Return the brokers of this cluster."""
    broker = request.app.broker
    if broker.cluster is None:
        return Response.json([broker.broker_id])
    return Response.json(sorted(broker.cluster.brokers()))


async def get_brokers_of(request: Request) -> Response:
    """Return the brokers of a cluster. Raises HttpError for another one."""
    await _check_cluster(request)
    return await get_brokers(request)


async def get_leader(request: Request) -> Response:
    """Return Pulsar's BrokerInfo of the leader. Raises HttpError 404 while none is known."""
    broker = request.app.broker
    if broker.cluster is None:
        url = broker.addresses.web_url or broker.addresses.web_url_tls
        return Response.json({"serviceUrl": url, "brokerId": broker.broker_id})
    leader = broker.cluster.leader()
    if leader is None:
        raise HttpError(404, "Couldn't find leader broker")
    broker_id, url = leader
    return Response.json({"serviceUrl": url, "brokerId": broker_id})


async def get_owned(request: Request) -> Response:
    """Return the bundles that a broker owns, with Pulsar's NamespaceOwnershipStatus; of a broker
    without a cluster those with open topics.
    """
    await _check_cluster(request)
    _check_here(request, request.parameters["brokerId"])
    broker = request.app.broker
    served: Iterable[tuple[str, str]]
    if broker.cluster is not None:
        served = broker.cluster.owned_bundles()
    else:
        served = await topics_by_bundle(broker.topics.registry, broker.namespaces.bundles)
    return Response.json({f"{namespace}/{bundle}": OWNED for namespace, bundle in served})


async def get_internal_configuration(request: Request) -> Response:
    """Return Pulsar's InternalConfigurationData: the addresses of metadata stores, for tools."""
    config = request.app.broker.config
    url = config.metadataStoreUrl or DEFAULT_METADATA_URL
    shared = config.configurationMetadataStoreUrl or url
    bookies = config.bookkeeperMetadataServiceUri
    data = {
        "zookeeperServers": url,
        "configurationStoreServers": shared,
        "metadataStoreUrl": url,
        "configurationMetadataStoreUrl": shared,
        "ledgersRootPath": paths.LEDGERS,
    }
    return Response.json(data | ({"bookkeeperMetadataServiceUri": bookies} if bookies else {}))


async def check_quotas(request: Request) -> Response:
    """Check the backlog quotas of all open topics now."""
    await request.app.broker.topics.upkeep.check_quotas()
    return Response.empty()


async def _check_cluster(request: Request) -> None:
    """Raise HttpError 307 for another cluster, 404 for one that does not exist. As in Pulsar, any
    name is that of this cluster without authorization.
    """
    broker, name = request.app.broker, request.parameters["cluster"]
    if not broker.config.authorizationEnabled or name in (broker.config.clusterName, GLOBAL):
        return
    try:
        record = await broker.clusters.record(name)
    except ClusterNotFound:
        raise HttpError(404, f"Cluster does not exist: cluster={name:.100}") from None

    from pyxbroker.admin.owners import redirection_to  # deferred, to start faster

    raise redirection_to(request, addresses_of_cluster(record))


def _check_here(request: Request, broker_id: str) -> None:
    """Raise HttpError 307 for another broker, 404 for one that is not registered."""
    broker = request.app.broker
    if broker_id == broker.broker_id:
        return
    addresses = None if broker.cluster is None else broker.cluster.brokers().get(broker_id)
    if addresses is None:
        raise HttpError(404, f"Broker id '{broker_id:.100}' not found in available brokers.")

    from pyxbroker.admin.owners import redirection_to  # deferred, to start faster

    raise redirection_to(request, addresses)


def _named_broker(request: Request) -> BrokerId:
    """Return the broker of a path, which need not exist."""
    return BrokerId(request.parameters["brokerId"])


def _plain_text(text: str) -> Response:
    # Pulsar answers with plain text under the media type of JSON.
    return Response.text(text, JSON)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/admin/v2/brokers/health",
        health,
        HEALTH_CHECK,
        "Checks that messages can be published; 503 has the reason if not.",
        Answer("The word ok as plain text."),
        query=(Query("brokerId", "The id of a broker of the cluster; this one by default."),),
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
        "The leader of the brokers.",
        Answer("Pulsar's BrokerInfo.", ANY),
        resource=this_broker,
    ),
    Endpoint(
        "GET",
        "/admin/v2/brokers/{cluster}/{brokerId}/ownedNamespaces",
        get_owned,
        LIST_OWNED,
        "The bundles that a broker owns; in standalone, those with open topics.",
        Answer("Pulsar's NamespaceOwnershipStatus of each.", ANY),
        resource=_named_broker,
    ),
    Endpoint(
        "GET",
        "/admin/v2/brokers/internal-configuration",
        get_internal_configuration,
        GET_INTERNAL_CONFIGURATION,
        "The address of the metadata store.",
        Answer("Pulsar's InternalConfigurationData.", ANY),
        resource=this_broker,
    ),
    Endpoint(
        "GET",
        "/admin/v2/brokers/backlog-quota-check",
        check_quotas,
        BACKLOG_QUOTA_CHECK,
        "Checks the backlog quotas of open topics.",
        resource=this_broker,
    ),
    Endpoint(
        "GET",
        "/admin/v2/brokers/ready",
        ready,
        AUTHENTICATED,
        "Returns ok once the broker has started.",
        Answer("The word ok as plain text."),
    ),
    Endpoint(
        "GET",
        "/admin/v2/brokers/version",
        version,
        AUTHENTICATED,
        "The version of the broker.",
        Answer("The version as plain text."),
    ),
)
