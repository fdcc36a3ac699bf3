"""`pyxbroker initialize-cluster-metadata`: create the metadata of a new cluster in ZooKeeper."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Sequence

from pyxbroker.base.errors import InvalidTopicName
from pyxbroker.base.log import configure
from pyxbroker.base.properties import ConfigError
from pyxbroker.base.topic_name import TenantName
from pyxbroker.cli import Parser, fail, print_waiting
from pyxbroker.metadata.store import MetadataError
from pyxbroker.roles.cluster_stores import ClusterSettings, Setup, set_up_cluster

BUNDLES_MAX = 2**32
SCHEMES = {
    "web_service_url": "http",
    "web_service_url_tls": "https",
    "broker_service_url": "pulsar",
    "broker_service_url_tls": "pulsar+ssl",
}

ABOUT = """\
Create the metadata of a new cluster in ZooKeeper, as Pulsar's command of the
same name does. It may run again: existing nodes stay as they are, except that
the tenants and namespaces public and pulsar are shared with the new cluster.
A metadata store that another cluster uses is refused.

Example:
  pyxbroker initialize-cluster-metadata --cluster east \\
    --metadata-store zk:zk1:2181 --configuration-metadata-store zk:zk1:2181 \\
    --web-service-url http://broker:8080 --broker-service-url pulsar://broker:6650
"""


def command(arguments: Sequence[str]) -> None:
    options = _parser().parse(arguments)
    configure("WARNING")
    local, shared = options.metadata_store, options.configuration_metadata_store
    if not local or not shared:
        fail("--metadata-store and --configuration-metadata-store are both needed.", 2)
    if not 0 < options.bundles <= BUNDLES_MAX:
        fail(f"--default-namespace-bundle-number is {options.bundles}; expected 1 to 2^32.", 2)
    check_cluster_name(options.cluster)
    for name, scheme in SCHEMES.items():
        url = getattr(options, name)
        if url and not url.startswith(f"{scheme}://"):
            option = name.replace("_", "-")
            fail(f"--{option} is {url!r}; expected {scheme}://host:port.", 2)
    try:
        written = asyncio.run(
            set_up_cluster(local, shared, options.session_timeout, _setup(options), print_waiting)
        )
    except (ConfigError, MetadataError) as error:
        fail(f"The cluster is not initialized: {error}")
    for path in written:
        print(f"written: {path}")
    print(f"The metadata of cluster {options.cluster!r} is complete.")


def check_cluster_name(name: str) -> None:
    """Fail for a name that no cluster may have."""
    try:
        TenantName(name)  # a cluster's name has the same characters
    except InvalidTopicName:
        fail(f"--cluster is {name!r}; expected letters, digits and - = : . _ only.", 2)


def _setup(options: Namespace) -> Setup:
    more = {
        "authenticationPlugin": options.auth_plugin,
        "authenticationParameters": options.auth_parameters,
        "proxyServiceUrl": options.proxy_url,
        "proxyProtocol": options.proxy_protocol,
    }
    return Setup(
        ClusterSettings(
            cluster=options.cluster,
            web_service_url=options.web_service_url,
            broker_service_url=options.broker_service_url or "",
            web_service_url_tls=options.web_service_url_tls or "",
            broker_service_url_tls=options.broker_service_url_tls or "",
            namespace_bundles=options.bundles,
            transaction_coordinators=options.coordinators,
        ),
        options.existing_bk_metadata_service_uri is not None,
        {name: value for name, value in more.items() if value},
    )


def _parser() -> Parser:
    parser = Parser("initialize-cluster-metadata", ABOUT)
    add = parser.options.add_argument
    add("-c", "--cluster", required=True, metavar="NAME", help="Name of the cluster.")
    add(
        *("-md", "--metadata-store", "-zk", "--zookeeper"),
        dest="metadata_store",
        metavar="URL",
        help="Metadata store of the cluster: zk:host:port[,host:port][/chroot].",
    )
    add(
        *("-cms", "--configuration-metadata-store", "-cs", "--configuration-store"),
        *("-gzk", "--global-zookeeper"),
        dest="configuration_metadata_store",
        metavar="URL",
        help="Metadata store of what clusters share; for one cluster the same.",
    )
    add(
        *("-uw", "--web-service-url"),
        required=True,
        metavar="URL",
        help="URL of REST for other clusters and tools.",
    )
    add("-tw", "--web-service-url-tls", metavar="URL", help="The same with TLS.")
    add("-ub", "--broker-service-url", metavar="URL", help="URL of the brokers for clients.")
    add("-tb", "--broker-service-url-tls", metavar="URL", help="The same with TLS.")
    add("--auth-plugin", metavar="CLASS", help="How other clusters authenticate here.")
    add("--auth-parameters", metavar="TEXT", help="Parameters of that authentication.")
    add("-pp", "--proxy-protocol", choices=("SNI",), help="Protocol of a proxy before brokers.")
    add("-pu", "--proxy-url", metavar="URL", help="URL of that proxy.")
    add(
        *("-bn", "--default-namespace-bundle-number"),
        dest="bundles",
        type=int,
        default=16,
        metavar="N",
        help="Bundles of public/default [%(default)s].",
    )
    add_coordinators(parser)
    add(
        *("--existing-bk-metadata-service-uri", "--bookkeeper-metadata-service-uri"),
        dest="existing_bk_metadata_service_uri",
        metavar="URI",
        help="BookKeeper has its metadata there: none is created.",
    )
    add_session_timeout(parser)
    ignored = "Accepted, without effect."
    add("--initial-num-stream-storage-containers", type=int, metavar="N", help=ignored)
    add("-mscp", "--metadata-store-config-path", metavar="FILE", help=ignored)
    add("-cmscp", "--configuration-metadata-store-config-path", metavar="FILE", help=ignored)
    return parser


def add_coordinators(parser: Parser) -> None:
    """Add the option with the number of transaction coordinators."""
    parser.options.add_argument(
        "--initial-num-transaction-coordinators",
        dest="coordinators",
        type=int,
        default=16,
        metavar="N",
        help="Transaction coordinators [%(default)s].",
    )


def add_session_timeout(parser: Parser) -> None:
    """Add the option with the timeout of the session."""
    parser.options.add_argument(
        "--zookeeper-session-timeout-ms",
        dest="session_timeout",
        type=int,
        default=30_000,
        metavar="N",
        help="Timeout of the session with ZooKeeper [%(default)s].",
    )
