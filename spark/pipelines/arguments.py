"""The options that jobs share, and the connector's options made of them.

A job's own options are few and have the names of the command line; what else the connector knows
is given as `--option NAME=VALUE`, so that nothing of it has to be told here again.
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
    """The parser of a job, with the options that all jobs have."""
    parser = Parser(f"pipeline run {name}", about)
    add = parser.options.add_argument
    add("--master", metavar="URL", help=f"Where Spark runs [{LOCAL}]; spark-submit has its own.")
    add(
        "--conf",
        type=pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="A setting of Spark's, such as spark.driver.memory=2g; may be given several times.",
    )
    return parser


def add_cluster(parser: Parser) -> None:
    """The options that tell where a cluster is."""
    add = parser.options.add_argument
    add("--service-url", required=True, metavar="URL", help="pulsar://host:port of a broker.")
    add_options(parser)


def add_source(parser: Parser, is_admin_required: bool = False) -> None:
    """The options that tell what is read, and how."""
    add_cluster(parser)
    parser.options.add_argument(
        "--admin-url",
        required=is_admin_required,
        metavar="URL",
        help="http://host:port of a web port: large topics are read by many tasks.",
    )
    add_topics(parser)


def add_topics(parser: Parser) -> None:
    add = parser.options.add_argument
    add(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC",
        help="What is read; may be given several times. A partitioned topic is all its partitions.",
    )
    add(
        "--topics-pattern",
        metavar="PATTERN",
        help="tenant/namespace/EXPRESSION instead: topics that a regular expression matches.",
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
    """The full name of a topic."""
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
    """The connector's options for what a job reads."""
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
    """Look for the broker and the topics, before Spark is started: the topics, each partition by
    itself. Raises PulsarSparkError.
    """
    options = Options(role, given)
    with cluster_of(options) as cluster:
        found = topics_of(options, cluster.any_broker())
        for topic in found:
            cluster.ends(topic)
    return found


def check_sink(given: dict[str, str]) -> None:
    """Look for the broker of a sink, before Spark is started. Raises PulsarSparkError."""
    with cluster_of(Options(SINK, given)) as cluster:
        cluster.any_broker()
