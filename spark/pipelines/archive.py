"""An archive of topics in partitioned files, with each message once, also after interruptions.

It is a streaming query, whose checkpoint has the messages of each batch. The files of a batch are
valid when the batch is complete, which the log next to them (`_spark_metadata`) or the table
records. An interrupted batch is written again, and its first files are ignored.
"""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyxbroker.base.command_line import Parser
from pyxbroker.spark.errors import WrongOption
from pyxbroker.spark.options import STREAM
from pyxbroker.spark.pipelines.arguments import (
    add_source,
    add_start,
    check_source,
    job_parser,
    pair,
    source_options,
)
from pyxbroker.spark.pipelines.formats import FORMATS, ICEBERG, PARQUET, need_format
from pyxbroker.spark.pipelines.job import Job
from pyxbroker.spark.pipelines.streams import add_stream, run_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ABOUT = """\
Archive topics as partitioned files, each message once.

Run it again with the same --checkpoint and it continues. Payloads are stored as
bytes, with key, properties, times and message id, so that `replay` can write
them back.

Example:
  pyxbroker pipeline run archive --service-url pulsar://localhost:6650 \\
      --topic orders --to /srv/archive --until-now
"""

PARTITIONS = {
    "topic": ("__topic", "__topic"),
    "date": ("__date", "date_format(__publishTime, 'yyyy-MM-dd')"),
    "hour": ("__hour", "date_format(__publishTime, 'HH')"),
}
"""The partitions of files: the column and its SQL. Times are in UTC."""


def command(arguments: Sequence[str]) -> None:
    parser = _parser()
    given = parser.parse(arguments)
    job = Job("archive", given)
    with job.run():
        source = source_options(given) | {"startingOffsets": given.start}
        if given.checkpoint is None:
            if given.format != PARQUET:
                raise WrongOption("--checkpoint is required if the archive is a table")
            given.checkpoint = f"{given.to.rstrip('/')}/_checkpoint"
        check_source(STREAM, source)
        with job.session() as spark:
            need_format(spark, given.format)
            reader = spark.readStream.format("pulsar-decoded" if given.decode else "pulsar-raw")
            _write(job, reader.options(**source).load())


def _write(job: Job, rows: DataFrame) -> None:
    from pyspark.sql.functions import expr

    given = job.given
    for each in given.partition_by:
        column, expression = PARTITIONS[each]
        rows = rows.withColumn(column, expr(expression))
    writer = rows.writeStream.format(given.format).options(**dict(given.write_option))
    writer = writer.partitionBy(*(PARTITIONS[each][0] for each in given.partition_by))
    if given.format == ICEBERG:
        run_stream(job, writer, "archived", table=given.to)
    else:
        run_stream(job, writer.option("path", given.to), "archived")


def _parser() -> Parser:
    parser = job_parser("archive", ABOUT)
    add_source(parser)
    add_start(parser)
    add = parser.options.add_argument
    add("--to", required=True, metavar="PLACE", help="A directory; for iceberg, a table's name.")
    add(
        "--format",
        choices=FORMATS,
        default=PARQUET,
        help="%(choices)s [%(default)s].",
    )
    add(
        "--partition-by",
        type=_partitions,
        default=["topic", "date"],
        metavar="LIST",
        help=f"Some of {', '.join(PARTITIONS)}, separated by commas [topic,date].",
    )
    add(
        "--decode",
        action="store_true",
        help="Store columns by the topics' schema instead of bytes: for queries, not for `replay`.",
    )
    add(
        "--write-option",
        type=pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="An option of the format, such as compression=zstd; may be given several times.",
    )
    add_stream(parser)
    return parser


def _partitions(text: str) -> list[str]:
    found = [each.strip() for each in text.split(",") if each.strip()]
    for each in found:
        if each not in PARTITIONS:
            raise ArgumentTypeError(f"{each!r} is not one of {', '.join(PARTITIONS)}.")
    return found


if __name__ == "__main__":
    command(sys.argv[1:])
