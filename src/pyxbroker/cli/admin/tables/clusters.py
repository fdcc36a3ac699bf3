"""Commands about clusters."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from pyxbroker.cli.admin.output import pairs_of, pretty
from pyxbroker.cli.admin.rows import (
    argument,
    choice,
    delete,
    flag,
    function,
    get,
    json_file,
    option,
    post,
    words,
)
from pyxbroker.client.admin import AdminClient

PATH = "/admin/v2/clusters/{cluster}"
CLUSTER = argument("cluster", "The cluster.")
DOMAIN = option("--domain-name", "The failure domain.", "{domain}", required=True)
BROKERS = option("--broker-list", "Its brokers, separated by commas.", "brokers", words)


DATA = (
    option("--url", "The URL of its web port.", "serviceUrl"),
    option("--url-secure", "The same with TLS.", "serviceUrlTls"),
    option("--broker-url", "The URL of its brokers.", "brokerServiceUrl"),
    option("--broker-url-secure", "The same with TLS.", "brokerServiceUrlTls"),
    option("--proxy-url", "The URL of a proxy.", "proxyServiceUrl"),
    option("--proxy-protocol", "SNI.", "proxyProtocol", choice("SNI")),
    option("--auth-plugin", "The login of other clusters.", "authenticationPlugin"),
    option("--auth-parameters", "The parameters of that login.", "authenticationParameters"),
    option(
        "-pn --peer-cluster-names", "Peer clusters, separated by commas.", "peerClusterNames", words
    ),
    flag("--tls-enable", "Other clusters connect with TLS.", "brokerClientTlsEnabled"),
    flag("--tls-allow-insecure", "They accept any certificate.", "tlsAllowInsecureConnection"),
    flag("--tls-enable-keystore", "They use key stores.", "brokerClientTlsEnabledWithKeyStore"),
    option(
        "--tls-trust-store-type",
        "The type of the trust store.",
        "brokerClientTlsTrustStoreType",
        default="JKS",
    ),
    option("--tls-trust-store", "The trust store.", "brokerClientTlsTrustStore"),
    option("--tls-trust-store-pwd", "Its password.", "brokerClientTlsTrustStorePassword"),
    option(
        "--tls-key-store-type",
        "The type of the key store.",
        "brokerClientTlsKeyStoreType",
        default="JKS",
    ),
    option("--tls-key-store", "The key store.", "brokerClientTlsKeyStore"),
    option("--tls-key-store-pwd", "Its password.", "brokerClientTlsKeyStorePassword"),
    option("--tls-trust-certs-filepath", "Trusted authorities.", "brokerClientTrustCertsFilePath"),
    option("--tls-key-filepath", "The key of the certificate.", "brokerClientKeyFilePath"),
    option("--tls-certs-filepath", "The certificate.", "brokerClientCertificateFilePath"),
    option(
        "--tls-factory-plugin",
        "A class of Java.",
        "brokerClientSslFactoryPlugin",
        default="org.apache.pulsar.common.util.DefaultPulsarSslFactory",
    ),
    option("--tls-factory-plugin-params", "Its parameters.", "brokerClientSslFactoryPluginParams"),
    option("--listener-name", "The listener that other clusters use.", "listenerName"),
    option("--cluster-config-file", "A JSON file with these values.", "", json_file),
)


async def _set(client: AdminClient, values: Namespace, method: str) -> None:
    """Send the options; what is not given comes from the file, or is the default."""
    body = {each.to: each.default for each in DATA if each.default is not None}
    body |= values.cluster_config_file or {}
    for each in DATA:
        given = getattr(values, each.dest)
        if each.to and given is not None and given != each.default:
            body[each.to] = given
    await client.request(method, f"/admin/v2/clusters/{values.cluster}", body)


async def _create(client: AdminClient, values: Namespace) -> None:
    await _set(client, values, "PUT")


async def _update(client: AdminClient, values: Namespace) -> None:
    await _set(client, values, "POST")


async def _list(client: AdminClient, values: Namespace) -> list[str]:
    clusters: list[str] = await client.get("/admin/v2/clusters")
    if not values.current:
        return clusters
    settings = await client.get("/admin/v2/brokers/configuration/runtime")
    return [f"{each}(*)" if each == settings.get("clusterName") else each for each in clusters]


def _domains(answer: dict[str, dict[str, Any]]) -> str:
    return pairs_of(
        {
            name: f"FailureDomainImpl(brokers=[{', '.join(each.get('brokers') or ())}])"
            for name, each in answer.items()
        }
    )


COMMANDS = {
    "list": function(
        "List the clusters.", _list, flag("-c --current", "Mark the cluster of the broker by (*).")
    ),
    "get": get("Print the settings of a cluster.", PATH, CLUSTER),
    "create": function("Create a cluster.", _create, CLUSTER, *DATA),
    "update": function("Change the settings of a cluster.", _update, CLUSTER, *DATA),
    "delete": delete("Delete a cluster.", PATH, CLUSTER),
    "get-peer-clusters": get("List the peer clusters.", f"{PATH}/peers", CLUSTER, printed=pretty),
    "update-peer-clusters": post(
        "Set the peer clusters.",
        f"{PATH}/peers",
        CLUSTER,
        option("--peer-clusters", "Clusters, separated by commas.", "=", words, required=True),
    ),
    "get-cluster-migration": get(
        "Print where a cluster is migrated to.", f"{PATH}/migrate", CLUSTER
    ),
    "update-cluster-migration": post(
        "Set where a cluster is migrated to.",
        f"{PATH}/migrate",
        CLUSTER,
        flag("--migrated", "It is migrated.", "?migrated"),
        option("--service-url", "The URL of the new web port.", "serviceUrl"),
        option("--service-url-secure", "The same with TLS.", "serviceUrlTls"),
        option("--broker-url", "The URL of the new brokers.", "brokerServiceUrl"),
        option("--broker-url-secure", "The same with TLS.", "brokerServiceUrlTls"),
        body={},
    ),
    "get-failure-domain": get(
        "Print the brokers of a failure domain.",
        f"{PATH}/failureDomains/{{domain}}",
        CLUSTER,
        DOMAIN,
    ),
    "create-failure-domain": post(
        "Create a failure domain.",
        f"{PATH}/failureDomains/{{domain}}",
        CLUSTER,
        DOMAIN,
        BROKERS,
        body={},
    ),
    "update-failure-domain": post(
        "Change the brokers of a failure domain.",
        f"{PATH}/failureDomains/{{domain}}",
        CLUSTER,
        DOMAIN,
        BROKERS,
        body={},
    ),
    "delete-failure-domain": delete(
        "Delete a failure domain.", f"{PATH}/failureDomains/{{domain}}", CLUSTER, DOMAIN
    ),
    "list-failure-domains": get(
        "Print the failure domains of a cluster.",
        f"{PATH}/failureDomains",
        CLUSTER,
        printed=_domains,
    ),
}
