"""/admin/v2/clusters: the clusters of this instance, as in Pulsar's Clusters."""

from __future__ import annotations

from typing import Any

from pyxbroker.admin.policy_bodies import Field
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import (
    STRINGS,
    check_length,
    cluster_of,
    has_body,
    node_name_of,
    read_json,
    texts_of,
)
from pyxbroker.auth.authorization import (
    AUTHENTICATED,
    CREATE_CLUSTER,
    DELETE_CLUSTER,
    DELETE_FAILURE_DOMAIN,
    GET_CLUSTER,
    GET_FAILURE_DOMAIN,
    GET_PEER_CLUSTERS,
    READ_MIGRATION,
    UPDATE_CLUSTER,
    UPDATE_FAILURE_DOMAIN,
    UPDATE_PEER_CLUSTERS,
)
from pyxbroker.base.compact_json import to_short_json
from pyxbroker.base.errors import InvalidTopicName
from pyxbroker.base.limits import CLUSTER_BYTES_MAX, TEXT_BYTES_MAX
from pyxbroker.base.topic_name import TenantName
from pyxbroker.broker.clusters import BROKERS
from pyxbroker.web.endpoint import Answer, Content, Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import JSON, Response

PATH = "/admin/v2/clusters"
ONE = PATH + "/{cluster}"
PEERS_PATH = ONE + "/peers"
DOMAINS_PATH = ONE + "/failureDomains"
DOMAIN_PATH = DOMAINS_PATH + "/{domainName}"

# The node of an instance's global configuration; Pulsar does not list it either.
GLOBAL = "global"
PEERS = "peerClusterNames"
NAMES_MAX = 1_000
NAME_BYTES_MAX = 1_024
BODY_BYTES_MAX = 256 << 10
LISTS_BYTES_MAX = 64 << 10
DOMAIN_BYTES_MAX = 16 << 10

# The fields of Pulsar's ClusterData in Pulsar's order, and their JSON types.
FIELDS: dict[str, type] = {
    "serviceUrl": str,
    "serviceUrlTls": str,
    "brokerServiceUrl": str,
    "brokerServiceUrlTls": str,
    "proxyServiceUrl": str,
    "authenticationPlugin": str,
    "authenticationParameters": str,
    "proxyProtocol": str,
    PEERS: list,
    "brokerClientTlsEnabled": bool,
    "tlsAllowInsecureConnection": bool,
    "brokerClientTlsEnabledWithKeyStore": bool,
    "brokerClientTlsTrustStoreType": str,
    "brokerClientTlsTrustStore": str,
    "brokerClientTlsTrustStorePassword": str,
    "brokerClientTlsKeyStoreType": str,
    "brokerClientTlsKeyStore": str,
    "brokerClientTlsKeyStorePassword": str,
    "brokerClientTrustCertsFilePath": str,
    "brokerClientKeyFilePath": str,
    "brokerClientCertificateFilePath": str,
    "brokerClientSslFactoryPlugin": str,
    "brokerClientSslFactoryPluginParams": str,
    "listenerName": str,
}
BOOLEAN, STRING = Field("boolean", False), Field("string")
URLS = {
    "serviceUrl": (
        ("http://",),
        "Illegal service url, example: http://pulsar.example.com:8080",
    ),
    "serviceUrlTls": (
        ("https://",),
        "Illegal service tls url, example: https://pulsar.example.com:8443",
    ),
    "brokerServiceUrl": (
        ("pulsar://",),
        "Illegal broker service url, example: pulsar://pulsar.example.com:6650",
    ),
    "brokerServiceUrlTls": (
        ("pulsar+ssl://",),
        "Illegal broker service tls url, example: pulsar+ssl://pulsar.example.com:6651",
    ),
    "proxyServiceUrl": (
        ("pulsar+ssl://", "pulsar://"),
        "Illegal proxy service url, example: pulsar+ssl://ats-proxy.example.com:4443 or"
        " pulsar://ats-proxy.example.com:4080",
    ),
}
"""The schemes that a URL may have, and the refusal of others."""


async def get_clusters(request: Request) -> Response:
    """Return the names of all clusters."""
    names = await request.app.broker.clusters.names()
    # Requested to learn whether a broker is up, so it does not wait for the import of orjson.
    return Response(to_short_json([name for name in names if name != GLOBAL]), JSON)


async def get_cluster(request: Request) -> Response:
    """Return Pulsar's ClusterData."""
    return Response.json(await request.app.broker.clusters.record(request.parameters["cluster"]))


async def get_migration(request: Request) -> Response:
    """Return Pulsar's ClusterPolicies."""
    return Response.json(await request.app.broker.clusters.migration(request.parameters["cluster"]))


async def create(request: Request) -> Response:
    """Create the record of a cluster."""
    name = request.parameters["cluster"]
    fields = await _data(request)
    try:
        TenantName(name)
    except InvalidTopicName:
        raise HttpError(412, "Cluster name is not valid") from None
    check_length("cluster's name", name, CLUSTER_BYTES_MAX)
    await request.app.broker.clusters.create(name, fields)
    return Response.empty(200)


async def update(request: Request) -> Response:
    """Replace the record of a cluster."""
    fields = await _data(request)
    await request.app.broker.clusters.replace(request.parameters["cluster"], fields)
    return Response.empty(200)


async def delete(request: Request) -> Response:
    """Delete a cluster with its failure domains, unless a tenant may be in it."""
    await request.app.broker.clusters.delete(request.parameters["cluster"])
    return Response.empty()


async def _data(request: Request) -> dict[str, Any]:
    """Return the ClusterData of a body without unknown fields. Raises HttpError."""
    body = await read_json(request)
    if body is None:
        raise HttpError(400, "cluster data is required")
    if not isinstance(body, dict):
        raise HttpError(400, f"A ClusterData is a JSON object, not {body!r:.100}.")
    fields: dict[str, Any] = {}
    for name, kind in FIELDS.items():
        value = body.get(name)
        if value is None and kind is bool:
            value = False
        if value is None:
            continue
        if kind is list:
            fields[name] = texts_of(value, name, NAMES_MAX, NAME_BYTES_MAX)
            continue
        value = (BOOLEAN if kind is bool else STRING).read(value, name)
        if isinstance(value, str):
            check_length(name, value, TEXT_BYTES_MAX, 400)
        fields[name] = value
    for name, (beginnings, text) in URLS.items():
        url = fields.get(name, "")
        if url.strip() and not url.lower().startswith(beginnings):
            raise HttpError(400, text)
    return fields


# --- peers ------------------------------------------------------------------------------------


async def get_peers(request: Request) -> Response:
    """Return the peers of a cluster, to which clients are redirected."""
    record = await request.app.broker.clusters.record(request.parameters["cluster"])
    peers = record.get(PEERS)
    return Response.empty(200) if peers is None else Response.json(peers)


async def set_peers(request: Request) -> Response:
    """Set the peers of a cluster."""
    name = request.parameters["cluster"]
    body = await read_json(request)
    clusters = request.app.broker.clusters
    await clusters.record(name)
    peers = None if body is None else texts_of(body, "The peers", NAMES_MAX, NAME_BYTES_MAX)
    known = set(await clusters.names())
    for each in peers or ():
        if each == name:
            raise HttpError(412, f"{name} itself can't be part of peer-list")
        if each not in known:
            raise HttpError(412, f"Peer cluster {each} does not exist")
    await clusters.set_field(name, PEERS, peers)
    return Response.empty()


# --- failure domains --------------------------------------------------------------------------


async def get_failure_domains(request: Request) -> Response:
    """Return the failure domains of a cluster with their brokers."""
    name = request.parameters["cluster"]
    return Response.json(await request.app.broker.clusters.failure_domains(name))


async def get_failure_domain(request: Request) -> Response:
    """Return the brokers of a failure domain."""
    name, domain = await _domain_of(request)
    found = (await request.app.broker.clusters.failure_domains(name)).get(domain)
    if found is None:
        raise HttpError(404, f"Domain {domain} for cluster {name} does not exist")
    return Response.json(found)


async def set_failure_domain(request: Request) -> Response:
    """Set the brokers of a failure domain."""
    if not await has_body(request):
        await check_cluster(request)
    body = await read_json(request)
    if not isinstance(body, dict):
        raise HttpError(400, f"A FailureDomain is a JSON object, not {body!r:.100}.")
    brokers = body.get(BROKERS)
    fields: dict[str, Any] = {}
    if brokers is not None:
        fields[BROKERS] = texts_of(brokers, BROKERS, NAMES_MAX, NAME_BYTES_MAX)
    name, domain = await _domain_of(request)
    await request.app.broker.clusters.set_failure_domain(name, domain, fields)
    return Response.empty()


async def delete_failure_domain(request: Request) -> Response:
    """Delete a failure domain; its brokers are in no domain afterwards."""
    name, domain = await _domain_of(request)
    await request.app.broker.clusters.delete_failure_domain(name, domain)
    return Response.empty(200)


async def _domain_of(request: Request) -> tuple[str, str]:
    """Return the cluster and the failure domain of a path. Raises HttpError 412."""
    name = await check_cluster(request)
    return name, node_name_of(request, "domainName", "failure domain")


async def check_cluster(request: Request) -> str:
    """Return the cluster of a path. Raises HttpError 412 if it does not exist."""
    name: str = request.parameters["cluster"]
    if name not in await request.app.broker.clusters.names():
        raise HttpError(412, f"Cluster {name} does not exist.")
    return name


DATA: dict[str, Any] = {
    "type": "object",
    "properties": {
        name: {str: {"type": "string"}, bool: {"type": "boolean"}, list: STRINGS}[kind]
        for name, kind in FIELDS.items()
    },
}
CLUSTER_DATA = Content(
    "Pulsar's ClusterData.", {"application/json": DATA}, bytes_max=BODY_BYTES_MAX
)
DOMAIN: dict[str, Any] = {"type": "object", "properties": {BROKERS: STRINGS}}
SET = Answer("Done; no body.", status=200)

ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_clusters,
        AUTHENTICATED,
        "The names of all clusters of this instance.",
        Answer("The names.", STRINGS),
    ),
    Endpoint(
        "GET",
        ONE,
        get_cluster,
        GET_CLUSTER,
        "The addresses of a cluster's brokers.",
        Answer("Pulsar's ClusterData.", DATA),
        resource=cluster_of,
    ),
    Endpoint(
        "GET",
        ONE + "/migrate",
        get_migration,
        READ_MIGRATION,
        "Returns whether a cluster has migrated, and to which cluster. A broker of Apache Pulsar on"
        " this metadata store can set it.",
        Answer("Pulsar's ClusterPolicies.", {"type": "object"}),
        cluster_of,
    ),
    Endpoint(
        "PUT",
        ONE,
        create,
        CREATE_CLUSTER,
        "Creates the record of a cluster.",
        SET,
        content=CLUSTER_DATA,
        resource=cluster_of,
    ),
    Endpoint(
        "POST",
        ONE,
        update,
        UPDATE_CLUSTER,
        "Replaces the record of a cluster.",
        SET,
        content=CLUSTER_DATA,
        resource=cluster_of,
    ),
    Endpoint(
        "DELETE",
        ONE,
        delete,
        DELETE_CLUSTER,
        "Deletes a cluster that no tenant may be in, with its failure domains.",
        resource=cluster_of,
    ),
    Endpoint(
        "GET",
        PEERS_PATH,
        get_peers,
        GET_PEER_CLUSTERS,
        "The peers of a cluster.",
        Answer("The names; empty if not set.", STRINGS),
        resource=cluster_of,
    ),
    Endpoint(
        "POST",
        PEERS_PATH,
        set_peers,
        UPDATE_PEER_CLUSTERS,
        "Sets the peers of a cluster.",
        content=Content(
            "The names of clusters.", {"application/json": STRINGS}, bytes_max=LISTS_BYTES_MAX
        ),
        resource=cluster_of,
    ),
    Endpoint(
        "GET",
        DOMAINS_PATH,
        get_failure_domains,
        GET_FAILURE_DOMAIN,
        "The failure domains of a cluster; empty if the cluster does not exist.",
        Answer(
            "Pulsar's FailureDomain by name.", {"type": "object", "additionalProperties": DOMAIN}
        ),
        resource=cluster_of,
    ),
    Endpoint(
        "GET",
        DOMAIN_PATH,
        get_failure_domain,
        GET_FAILURE_DOMAIN,
        "The brokers of a failure domain.",
        Answer("Pulsar's FailureDomain.", DOMAIN),
        resource=cluster_of,
    ),
    Endpoint(
        "POST",
        DOMAIN_PATH,
        set_failure_domain,
        UPDATE_FAILURE_DOMAIN,
        "Sets the brokers of a failure domain; a broker is in one domain.",
        content=Content(
            "Pulsar's FailureDomain.",
            {"application/json": DOMAIN},
            required=True,
            bytes_max=DOMAIN_BYTES_MAX,
        ),
        resource=cluster_of,
    ),
    Endpoint(
        "DELETE",
        DOMAIN_PATH,
        delete_failure_domain,
        DELETE_FAILURE_DOMAIN,
        "Deletes a failure domain.",
        SET,
        resource=cluster_of,
    ),
)
