"""Settings of a cluster of several brokers."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, limit, setting

MODULAR = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
FAILURE_TIMEOUT_MS_MIN = 100


class SeveralBrokers(Section, title="Several brokers"):
    loadManagerClassName: str = setting(
        MODULAR,
        "How the brokers of a cluster share its bundles. A broker starts only with"
        " ModularLoadManagerImpl. This and the other settings of this section have no effect in"
        " standalone.",
    )
    namespaceBundleUnloadingTimeoutMs: int = limit(
        60_000,
        "Time after which a bundle is given up although topics of it are still being closed.",
        unit="ms",
        minimum=1,
        dynamic=True,
    )
    brokerFailureTimeoutMs: int = limit(
        1000,
        "Time after which a broker that does not answer the other ones, in the opinion of most of"
        " them, loses its bundles; one whose process has ended loses them immediately. At least"
        f" {FAILURE_TIMEOUT_MS_MIN}. 0: only"
        " the end of its session with the metadata store counts, as for Apache's brokers. Pulsar"
        " has no such setting.",
        unit="ms",
        minimum=0,
    )
    brokerClientAuthenticationPlugin: str = setting(
        "",
        "How this broker logs in to other brokers, such as"
        " org.apache.pulsar.client.impl.auth.AuthenticationToken; its role has to be a superuser."
        " Empty: it forwards the credentials of the REST request that it answers. Topic policies"
        " need the login where authentication is enabled.",
    )
    brokerClientAuthenticationParameters: str = setting(
        "", "The parameters of that login, such as file:///path/of/token."
    )
    brokerClientTlsEnabled: bool = setting(False, "Ask other brokers over TLS.")
    brokerClientTrustCertsFilePath: str = setting(
        "", "Authorities that other brokers are verified with, PEM; empty: the system's."
    )
    tlsHostnameVerificationEnabled: bool = setting(
        False, "Verify that the certificate of another broker is for its host name."
    )
