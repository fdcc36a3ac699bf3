"""Aggregation of a stream of events in windows, from topic to topic.

It is a streaming query with event time and a watermark. A window is sent when the watermark has
passed its end, and later events of it are dropped. The checkpoint stores the position of the query
and the open windows.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyxbroker.base.command_line import Parser
from pyxbroker.spark.errors import WrongOption
from pyxbroker.spark.options import STREAM
from pyxbroker.spark.pipelines.arguments import (
    add_source,
    add_start,
    check_sink,
    check_source,
    job_parser,
    pair,
    source_options,
    topic_name,
)
from pyxbroker.spark.pipelines.job import Job
from pyxbroker.spark.pipelines.reasons import plain_reason
from pyxbroker.spark.pipelines.streams import add_stream, duration, run_stream

if TYPE_CHECKING:
    from argparse import Namespace

    from pyspark.sql import DataFrame

ABOUT = """\
Aggregate a stream of events in windows, from topic to topic.

The columns are those of the connector: __key, __eventTime and so on, the fields
of records where the topic has a schema, and with --fields those of JSON. A
window becomes a message in JSON with windowStart, windowEnd, the groups and the
selected values; its key consists of the groups.

Example:
  pyxbroker pipeline run aggregate --service-url pulsar://localhost:6650 \\
      --topic orders --fields 'customer string, amount double' \\
      --window '1 minute' --group-by customer --select 'sum(amount) as amount' \\
      --to orders-by-minute --checkpoint /srv/checkpoints/orders-by-minute
"""

TIME = "coalesce(__eventTime, __publishTime)"
GROUP = "cast(__key as string) as key"
SELECT = "count(*) as messages"
MOMENT = "date_format(window.{}, \"yyyy-MM-dd'T'HH:mm:ss.SSS'Z'\") as {}"


def command(arguments: Sequence[str]) -> None:
    given = _parser().parse(arguments)
    job = Job("aggregate", given)
    with job.run():
        source = source_options(given) | {"startingOffsets": given.start}
        sink = dict(given.to_option) | {
            "service.url": given.to_service_url or given.service_url,
            "topic": given.to,
        }
        check_source(STREAM, source)
        check_sink(sink)
        with job.session() as spark:
            rows = spark.readStream.format("pulsar-decoded").options(**source).load()
            windows = _messages(rows, given)
            writer = windows.writeStream.format("pulsar").options(**sink)
            run_stream(job, writer.outputMode(given.output), "aggregated")


def _messages(rows: DataFrame, given: Namespace) -> DataFrame:
    """Return a message for each window. Raises WrongOption for SQL that Spark rejects."""
    from pyspark.errors import AnalysisException

    try:
        return _windows(rows, given)
    except AnalysisException as error:
        given_as = "--fields, --where, --time, --group-by or --select"
        raise WrongOption(
            f"Spark cannot use the SQL of {given_as}: {plain_reason(error)}"
        ) from error


def _windows(rows: DataFrame, given: Namespace) -> DataFrame:
    from pyspark.sql.functions import col, expr, from_json, struct, to_json, window

    if given.fields is not None:
        fields = from_json(col("value").cast("string"), given.fields)
        rows = rows.withColumn("value", fields).select("*", "value.*")
    if given.where is not None:
        rows = rows.where(given.where)
    groups = [expr(each) for each in given.group_by or [GROUP]]
    names = rows.select(*groups).columns
    measures = [expr(each) for each in given.select or [SELECT]]
    spans = window("time", given.window, given.slide or given.window)
    found = (
        rows.withColumn("time", expr(given.time))
        .withWatermark("time", given.watermark)
        .groupBy(spans.alias("window"), *groups)
        .agg(*measures)
    )
    shown = [expr(MOMENT.format(end, f"window{end.title()}")) for end in ("start", "end")]
    value = to_json(struct(*shown, *(f"`{each}`" for each in found.columns[1:])))
    key = ", ".join(f"coalesce(cast(`{each}` as string), '')" for each in names)
    return found.select(
        value.alias("value"),
        expr(f"concat_ws('|', {key})").alias("__key"),
        col("window.end").alias("__eventTime"),
    )


def _parser() -> Parser:
    parser = job_parser("aggregate", ABOUT)
    add_source(parser)
    add_start(parser)
    add = parser.options.add_argument
    add("--fields", metavar="COLUMNS", help="Fields of JSON payloads: 'name string, n int'.")
    add("--where", metavar="SQL", help="A condition for events, such as 'amount > 0'.")
    add("--time", default=TIME, metavar="SQL", help="The time of an event [%(default)s].")
    add(
        "--window",
        type=duration,
        default="1 minute",
        metavar="TIME",
        help="The length of a window [%(default)s].",
    )
    add(
        "--slide",
        type=duration,
        metavar="TIME",
        help="The time between starts of windows [the length].",
    )
    add(
        "--watermark",
        type=duration,
        default="1 minute",
        metavar="TIME",
        help="How late an event may arrive [%(default)s].",
    )
    add(
        "--group-by",
        action="append",
        metavar="SQL",
        help=f"A column that divides events into groups; may be given several times [{GROUP}].",
    )
    add(
        "--select",
        action="append",
        metavar="SQL",
        help=f"A value of each group; may be given several times [{SELECT}].",
    )
    add(
        "--output",
        choices=("append", "update"),
        default="append",
        help="append: send a window when it is complete; update: at each change [%(default)s].",
    )
    add("--to", required=True, type=topic_name, metavar="TOPIC", help="The topic for windows.")
    add("--to-service-url", metavar="URL", help="A broker of another cluster, for --to.")
    add(
        "--to-option",
        type=pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="An option of the connector for writing; may be given several times.",
    )
    add_stream(parser, is_checkpoint_required=True)
    return parser


if __name__ == "__main__":
    command(sys.argv[1:])
