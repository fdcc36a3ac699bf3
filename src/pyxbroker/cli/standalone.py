"""`pyxbroker standalone`: broker, storage, metadata and REST in one process, in the foreground.

Modules that the first message does not need are imported after the broker's port is open.
"""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyxbroker.base.log import write_repeated
from pyxbroker.base.properties import ConfigError
from pyxbroker.cli import Parser, fail
from pyxbroker.cli.data_directory import DEFAULT_DATA, DataDirectory, DataDirectoryError
from pyxbroker.cli.launcher_options import (
    add_launcher_options,
    apply_launcher_options,
    log_ignored_options,
)
from pyxbroker.cli.serving import (
    Observer,
    StartError,
    StorageLine,
    add_options,
    load_settings,
    observers_of,
    run,
)
from pyxbroker.settings.config import SCHEMA, Config

if TYPE_CHECKING:
    from pyxbroker.roles.standalone import Standalone

ABOUT = """\
Run broker, storage, metadata and admin REST in one process.

An acknowledged message is on disk: it survives kill -9 and a power cut.
Settings come from FILE, from environment variables PULSAR_PREFIX_<key>, and
from the options here.

Examples:
  pyxbroker standalone
  pyxbroker standalone --data /srv/pulsar --config standalone.conf
  pyxbroker standalone --broker-port 0 --web-port 0          # any free ports; see the banner
  pyxbroker standalone --metadata zk:127.0.0.1:2181/pulsar
  pyxbroker standalone --set maxMessageSize=10485760
  pyxbroker standalone --ready-file ready.json --broker-port 0 --web-port 0
  pyxbroker standalone --accept-loss                         # if a lost file has no backup
"""


def command(arguments: Sequence[str]) -> None:
    parser = _parser()
    options = parser.parse(arguments)
    apply_launcher_options(parser, options)
    try:
        observers = observers_of(options, Path(options.data).absolute())
        if options.test_control is not None:
            observers.append(options.test_control)
        config = load_settings(options)
        log_ignored_options(options)
        if not options.data.strip():
            raise ConfigError("--data is empty: name the directory of messages and metadata.")
        directory = DataDirectory(Path(options.data), _named_by(options.config, config))
        try:
            if options.wipe_data:
                _check_wipe(config)
                directory.wipe()
            data, accept_loss = directory.path, options.accept_loss
            start = partial(_start, config, data, accept_loss)
            run(config, start, StorageLine("data", str(data)), observers)
        finally:
            directory.close()
    except (ConfigError, DataDirectoryError, StartError) as error:
        write_repeated(is_end=True)
        fail(str(error))


def _named_by(file: str | None, config: Config) -> Iterator[str]:
    """Yield the absolute paths that the command line and the settings name."""
    if file:
        yield str(Path(file).absolute())
    for key in SCHEMA:
        value = getattr(config, key)
        if isinstance(value, str):
            yield from (each.strip().removeprefix("embedded:") for each in value.split(","))


def _check_wipe(config: Config) -> None:
    """Raise ConfigError if some of the data is not in the data directory."""
    for key in ("metadataStoreUrl", "journalDirectories", "ledgerDirectories"):
        if place := getattr(config, key):
            raise ConfigError(
                f"--wipe-data deletes only what is in --data, and {key} is {place}. Delete both"
                " yourself, because each is useless without the other."
            )


def _parser() -> Parser:
    parser = Parser("standalone", ABOUT)
    add = parser.options.add_argument
    add(
        "--data",
        metavar="DIR",
        default=DEFAULT_DATA,
        help="Directory of messages and metadata, created if missing [%(default)s].",
    )
    add_options(
        parser,
        file="A standalone.conf or broker.conf of Pulsar.",
        metadata="Metadata store: zk:host:port[,host:port][/chroot] [embedded in DIR].",
    )
    add(
        "--accept-loss",
        action="store_true",
        help="Start although files are missing; the log names the loss.",
    )
    add("--test-control", type=_control, help=SUPPRESS)  # see cli/control.py
    add_launcher_options(parser)
    return parser


def _control(text: str) -> Observer:
    from pyxbroker.cli.control import Control

    return Control.of_option(text)


async def _start(
    config: Config, data_directory: Path, accept_loss: bool, on_step: Callable[[str], None]
) -> Standalone:
    from pyxbroker.roles.start import start_standalone

    return await start_standalone(config, data_directory, accept_loss, on_step)
