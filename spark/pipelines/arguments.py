"""The options that jobs share, and their translation to the connector's options.

Jobs have few options of their own. Other options of the connector are given as
`--option NAME=VALUE`, so they are not repeated here.
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace

from pyxbroker.base.command_line import Parser
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.options import SINK, Options
from pyxbroker.spark.plan import cluster_of
from pyxbroker.spark.topics import name_of, topics_of

LOCAL = "local[*]"
POSITION = ("__ledgerId", "__entryId", "__batchIndex")
"""Columns that sort the messages of a topic; the batch index is -1 for an entry of one message."""


def job_parser(name: str, about: str) -> Parser:
    """Return the parser of a job, with the options that all jobs have."""
    parser = Parser(f"pipeline run {name}", about)
    add = parser.options.add_argument
    add("--master", metavar="URL", help=f"Where Spark runs [{LOCAL}]; spark-submit has its own.")
    add(
        "--conf",
        type=pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="A setting of Spark, such as spark.driver.memory=2g; may be given several times.",
    )
    return parser


def add_cluster(parser: Parser) -> None:
    """Add the options for the address of a cluster."""
    add = parser.options.add_argument
    add("--service-url", required=True, metavar="URL", help="pulsar://host:port of a broker.")
    add_options(parser)


def add_source(parser: Parser, is_admin_required: bool = False) -> None:
    """Add the options for the topics to read."""
    add_cluster(parser)
    parser.options.add_argument(
        "--admin-url",
        required=is_admin_required,
        metavar="URL",
        help="http://host:port of a web port: with it, many tasks read a large topic.",
    )
    add_topics(parser)


def add_topics(parser: Parser) -> None:
    add = parser.options.add_argument
    add(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC",
        help="A topic to read; may be given several times. Partitions are included.",
    )
    add(
        "--topics-pattern",
        metavar="PATTERN",
        help="tenant/namespace/EXPRESSION instead: all topics that a regular expression matches.",
    )


def add_start(parser: Parser) -> None:
    parser.options.add_argument(
        "--start",
        metavar="WHERE",
        default="earliest",
        help="Where a first run begins: earliest, latest, or JSON of message ids [%(default)s].",
    )


def add_options(parser: Parser) -> None:
    parser.options.add_argument(
        "--option",
        type=pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Any other option of the connector (docs/spark.md); may be given several times.",
    )


def topic_name(text: str) -> str:
    """Return the full name of a topic."""
    try:
        return str(name_of(text))
    except PulsarSparkError as error:
        raise ArgumentTypeError(str(error)) from error


def pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ArgumentTypeError(f"{text!r}: expected NAME=VALUE.")
    return name.strip(), value


def source_options(given: Namespace) -> dict[str, str]:
    """Return the connector's options for the topics of a job."""
    found = dict(given.option) | {"service.url": given.service_url}
    if given.admin_url is not None:
        found["admin.url"] = given.admin_url
    if given.topics_pattern is not None:
        found["topicsPattern"] = given.topics_pattern
    if len(given.topic) == 1:
        found["topic"] = given.topic[0]
    elif given.topic:
        found["topics"] = ",".join(given.topic)
    return found


def check_source(role: str, given: dict[str, str]) -> list[str]:
    """Find the broker and the topics before Spark is started. Raises PulsarSparkError.

    Return the topics, with each partition as a topic.
    """
    options = Options(role, given)
    with cluster_of(options) as cluster:
        found = topics_of(options, cluster.any_broker())
        for topic in found:
            cluster.ends(topic)
    return found


def check_sink(given: dict[str, str]) -> None:
    """Find the broker of a sink before Spark is started. Raises PulsarSparkError."""
    with cluster_of(Options(SINK, given)) as cluster:
        cluster.any_broker()
