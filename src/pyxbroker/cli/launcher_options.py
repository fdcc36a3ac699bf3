"""The options of `bin/pulsar standalone`, Apache's launcher, that scripts pass to a standalone.

Options about parts that do not run here are accepted. Options that would store data elsewhere, or
start fewer or more parts, are refused, because a script that sets them relies on them.
"""

from __future__ import annotations

from argparse import SUPPRESS, Namespace

from pyxbroker.base.log import get_logger
from pyxbroker.cli import Parser

log = get_logger("pyxbroker.standalone")

# Each with the name of its value, if it has one.
WITHOUT_EFFECT: dict[tuple[str, ...], str | None] = {
    ("-nfw", "--no-functions-worker"): None,
    ("-nss", "--no-stream-storage"): None,
    ("-fwc", "--functions-worker-conf"): "FILE",
    ("--stream-storage-port",): "N",
    ("--bookkeeper-port",): "N",
    ("--zookeeper-port",): "N",
    ("--zookeeper-dir",): "DIR",
}
ONE_DIRECTORY = "messages and metadata are in one directory. Name it with --data DIR."
REFUSED = {
    "--bookkeeper-dir": ONE_DIRECTORY,
    "--metadata-dir": ONE_DIRECTORY,
    "--only-broker": "a standalone has its own storage. Run `pyxbroker broker` instead.",
    "--no-broker": "the storage does not run without a broker.",
}


def add_launcher_options(parser: Parser) -> None:
    """Add the options to the parser of `pyxbroker standalone`."""
    add = parser.add_argument_group("Options of Apache's launcher").add_argument
    add("-c", dest="config", metavar="FILE", default=SUPPRESS, help="The same as --config.")
    add(
        *("-a", "--advertised-address"),
        metavar="NAME",
        help="The setting advertisedAddress: name or address of this host for clients.",
    )
    add("--wipe-data", action="store_true", help="First delete all messages and metadata in DIR.")
    add(
        "--metadata-url",
        dest="metadata",
        metavar="URL",
        default=SUPPRESS,
        help="The same as --metadata.",
    )
    add("--num-bookies", metavar="N", help="Number of bookies; only 1 is possible.")
    for names, value in WITHOUT_EFFECT.items():
        if value is None:
            add(*names, action="store_true", help="Accepted; a standalone has none.")
        else:
            add(*names, metavar=value, help=SUPPRESS)
    for name in REFUSED:
        if name.endswith("-dir"):
            add(name, help=SUPPRESS)
        else:
            add(name, action="store_const", const="", help=SUPPRESS)


def apply_launcher_options(parser: Parser, options: Namespace) -> None:
    """Set the settings that the options stand for. Exit if an option is refused."""
    for name, reason in REFUSED.items():
        if _value(options, name) is not None:
            parser.error(f"{name} is not supported: {reason}")
    if options.num_bookies not in (None, "1"):
        parser.error(
            f"--num-bookies is {options.num_bookies}, and a standalone has one bookie. For more,"
            " run `pyxbroker broker` on a BookKeeper cluster."
        )
    if options.advertised_address is not None:
        options.set.insert(0, ("advertisedAddress", options.advertised_address))


def log_ignored_options(options: Namespace) -> None:
    """Log the options whose values have no effect."""
    names = [names[-1] for names, value in WITHOUT_EFFECT.items() if value is not None]
    if ignored := [name for name in names if _value(options, name) is not None]:
        log.info("options of Apache's launcher have no effect here", options=",".join(ignored))


def _value(options: Namespace, name: str) -> object:
    return getattr(options, name.lstrip("-").replace("-", "_"))
