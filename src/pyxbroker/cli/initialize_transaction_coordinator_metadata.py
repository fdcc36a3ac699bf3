"""`pyxbroker initialize-transaction-coordinator-metadata`: create the metadata of transactions in
ZooKeeper.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pyxbroker.base.log import configure
from pyxbroker.base.properties import ConfigError
from pyxbroker.base.topic_name import SYSTEM_NAMESPACE
from pyxbroker.cli import Parser, fail, print_waiting
from pyxbroker.cli.initialize_cluster_metadata import (
    add_coordinators,
    add_session_timeout,
    check_cluster_name,
)
from pyxbroker.metadata.store import MetadataError
from pyxbroker.roles.cluster_stores import set_up_coordinators

ABOUT = f"""\
Create the metadata of transactions in ZooKeeper, as Pulsar's command of the
same name does: the namespace {SYSTEM_NAMESPACE} and the number of transaction
coordinators. A cluster of pyxbroker initialize-cluster-metadata has it. The
command may run again: it adds coordinators, and removes none.

Example:
  pyxbroker initialize-transaction-coordinator-metadata --cluster east \\
    --configuration-store zk:zk1:2181
"""


def command(arguments: Sequence[str]) -> None:
    options = _parser().parse(arguments)
    configure("WARNING")
    if options.coordinators <= 0:
        option = "--initial-num-transaction-coordinators"
        fail(f"{option} is {options.coordinators}; expected 1 or more.", 2)
    check_cluster_name(options.cluster)
    try:
        written = asyncio.run(
            set_up_coordinators(
                options.configuration_store,
                options.session_timeout,
                options.cluster,
                options.coordinators,
                print_waiting,
            )
        )
    except (ConfigError, MetadataError) as error:
        fail(f"The metadata of transactions is not created: {error}")
    for path in written:
        print(f"written: {path}")
    print("The metadata of transactions is complete.")


def _parser() -> Parser:
    parser = Parser("initialize-transaction-coordinator-metadata", ABOUT)
    add = parser.options.add_argument
    add("-c", "--cluster", required=True, metavar="NAME", help="Name of the cluster.")
    add(
        *("-cs", "--configuration-store"),
        required=True,
        metavar="URL",
        help="Metadata store of what clusters share: zk:host:port[,host:port][/chroot].",
    )
    add_coordinators(parser)
    add_session_timeout(parser)
    ignored = "Accepted, without effect."
    add("-cmscp", "--configuration-metadata-store-config-path", metavar="FILE", help=ignored)
    return parser
