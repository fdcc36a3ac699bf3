"""Options that the subcommands of `pyxbroker perf` share."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pyxbroker.base.errors import InvalidTopicName
from pyxbroker.base.topic_name import TopicName
from pyxbroker.cli import Parser, connecting, fail
from pyxbroker.cli.login_options import add_login_options, add_service_url, complete
from pyxbroker.client.settings import ClientSettings

_ONE_LOOP = "one event loop serves all connections; start several processes to use several cores"
_TRANSACTIONS = "the load generator has no transactions"
_LISTENERS = "the load generator calls no listeners"
_PROXY = "name the proxy by --service-url"

REFUSED = {
    "-bw": _ONE_LOOP,
    "--busy-wait": _ONE_LOOP,
    "-ioThreads": _ONE_LOOP,
    "--num-io-threads": _ONE_LOOP,
    "-threads": _ONE_LOOP,
    "--num-test-threads": _ONE_LOOP,
    "-lt": _LISTENERS,
    "--num-listener-threads": _LISTENERS,
    "-txn": _TRANSACTIONS,
    "--txn-enable": _TRANSACTIONS,
    "-abort": _TRANSACTIONS,
    "-nmt": _TRANSACTIONS,
    "--numMessage-perTransaction": _TRANSACTIONS,
    "-ntxn": _TRANSACTIONS,
    "-tto": _TRANSACTIONS,
    "--txn-timeout": _TRANSACTIONS,
    "--proxy-url": _PROXY,
    "--proxy-protocol": _PROXY,
    "-ml": "limit messages without receipt by --max-outstanding",
    "--memory-limit": "limit messages without receipt by --max-outstanding",
    "-mlr": "lookups are made one after the other",
    "--max-lookup-request": "lookups are made one after the other",
    "-i": "use --interval",
    "--stats-interval-seconds": "use --interval",
    "--ssl-factory-plugin": "it names a class of Java",
    "--ssl-factory-plugin-params": "it is for a class of Java",
    "--tls-enable-hostname-verification": "they are verified, if not --tls-allow-insecure",
}
"""Options of several commands of pulsar-perf that do not exist here, with the reason."""


class PerfParser(Parser):
    """The options of one subcommand. Options of pulsar-perf that do not exist have a sentence."""

    def __init__(self, name: str, about: str, arguments: str, refused: Mapping[str, str]) -> None:
        super().__init__(f"perf {name}", about, arguments)
        self._refused = refused

    def parse(self, arguments: Sequence[str]) -> Namespace:
        for each in arguments:
            option = each.partition("=")[0]
            if option in self._refused and option not in self._option_string_actions:
                self.error(f"pulsar-perf's option {option} is not built: {self._refused[option]}.")
        return super().parse(arguments)


def add_connection_options(parser: Parser) -> None:
    add = parser.options.add_argument
    add_service_url(parser, "-u", "--service-url")
    add_login_options(parser)
    add("--listener-name", metavar="NAME", default="", help="The advertised listener.")
    add(
        *("-c", "--max-connections"),
        type=positive,
        metavar="N",
        default=1,
        help="Connections to each broker for producers, and for consumers [%(default)s].",
    )


def add_output_options(parser: Parser) -> None:
    add = parser.options.add_argument
    add("--interval", type=seconds, metavar="S", default=10.0, help="Time between lines [10].")
    add("--json", type=Path, metavar="FILE", help="Write the numbers as JSON.")
    add("--html", type=Path, metavar="FILE", help="Write a page with curves.")
    add("--histogram-file", type=Path, metavar="FILE", help="Write an HdrHistogram log.")


def add_topic_options(parser: Parser) -> None:
    parser.add_argument("topics", metavar="TOPIC", nargs="+", help="A topic.")
    add = parser.options.add_argument
    add(
        *("-t", "--num-topics", "--num-topic"),
        type=positive,
        metavar="N",
        default=1,
        help="Number of topics: TOPIC-0, TOPIC-1 and so on [%(default)s].",
    )


def add_messages_option(parser: Parser, short: str, of: str) -> None:
    """Add the number of messages. of: whose messages these are."""
    parser.options.add_argument(
        *(short, "--num-messages"),
        type=count,
        metavar="N",
        default=0,
        help=f"Messages of all {of} together; 0: without end [%(default)s].",
    )


def add_duration_option(parser: Parser, default: float = 0.0) -> None:
    parser.options.add_argument(
        *("-time", "--test-duration"),
        type=seconds,
        metavar="S",
        default=default,
        help="Time of the test; 0: without end [%(default)g].",
    )


def client_settings(options: Namespace) -> ClientSettings:
    """Return the settings of the client that the options describe. Exits after a wrong one."""
    complete(options)
    connecting.check_service_url(options.service_url, "--service-url")
    return connecting.client_settings(
        options,
        options.service_url,
        lookup_retry_s=3.0,
        listener=options.listener_name,
        client_version="pyxbroker-perf",
    )


def topics(names: Iterable[str], count: int = 1, separator: str = "-") -> tuple[str, ...]:
    """Return the topics that the options name. Exits after a wrong name."""
    found = list(names)
    if len(found) == 1 and count > 1:
        found = [f"{found[0]}{separator}{index}" for index in range(count)]
    elif len(found) != count and count > 1:
        fail(f"--num-topics is {count}, and {len(found)} topics are named", 2)
    try:
        return tuple(str(TopicName.get(each)) for each in found)
    except InvalidTopicName as error:
        fail(str(error), 2)


def positive(text: str) -> int:
    """Return an integer of at least 1, for argparse."""
    return _integer(text, 1)


def count(text: str) -> int:
    """Return an integer of at least 0, for argparse."""
    return _integer(text, 0)


def _integer(text: str, least: int) -> int:
    if not (text.isdecimal() and int(text) >= least):
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least {least}.")
    return int(text)


def seconds(text: str) -> float:
    """Return a number of at least 0, for argparse."""
    return _number(text, "a number from 0 to 1,000,000,000")


def rate(text: str) -> float:
    """Return messages per second; 0 stands for the maximum. For argparse."""
    return 0.0 if text == "max" else _number(text, "max, or a number from 0 to 1,000,000,000")


def _number(text: str, expected: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 <= number <= 1e9:
        raise ArgumentTypeError(f"{text!r} is not {expected}.")
    return number
