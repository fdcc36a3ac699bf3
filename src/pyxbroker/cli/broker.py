"""`pyxbroker broker`: a broker whose metadata is in ZooKeeper and whose ledgers are on bookies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyxbroker.base.log import name_role, write_repeated
from pyxbroker.base.properties import ConfigError
from pyxbroker.cli import Parser, fail
from pyxbroker.cli.serving import (
    StartError,
    StorageLine,
    add_options,
    load_settings,
    observers_of,
    run,
)
from pyxbroker.settings.config import Config

if TYPE_CHECKING:
    from pyxbroker.roles.broker import ClusterBroker

ABOUT = """\
Run a broker of a cluster: metadata in ZooKeeper, messages on BookKeeper's bookies.

The broker has no data of its own. It waits for ZooKeeper and the bookies, and
shares the topics of the cluster with its other brokers. Create the metadata of
a new cluster with pyxbroker initialize-cluster-metadata.

Examples:
  pyxbroker broker --config broker.conf
  pyxbroker broker --metadata zk:127.0.0.1:2181 --set clusterName=east
"""


def command(arguments: Sequence[str]) -> None:
    options = _parser().parse(arguments)
    name_role("broker")
    try:
        observers = observers_of(options)
        config = load_settings(options, is_cluster=True)
        storage = StorageLine("metadata", config.metadataStoreUrl)
        run(config, partial(_start, config), storage, observers)
    except (ConfigError, StartError) as error:
        write_repeated(is_end=True)
        fail(str(error))


def _parser() -> Parser:
    parser = Parser("broker", ABOUT)
    add_options(
        parser,
        file="A broker.conf of Pulsar.",
        metadata="Metadata store: zk:host:port[,host:port][/chroot] [metadataStoreUrl].",
    )
    return parser


async def _start(config: Config, on_step: Callable[[str], None]) -> ClusterBroker:
    from pyxbroker.roles.broker import StartRefused, start_broker

    on_step("")  # the role logs what it waits for
    try:
        return await start_broker(config)
    except StartRefused as error:
        raise StartError(f"The broker cannot start: {error}.") from None
