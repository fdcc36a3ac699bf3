"""`pyxbroker pipeline`: ready-made Spark jobs on topics."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from pyxbroker.cli import Group, Parser
from pyxbroker.spark.pipelines import PIPELINES

ABOUT = """\
Run a Spark job on topics.

The jobs work with any broker that speaks Pulsar's protocol. They need PySpark:
pip install 'pyxbroker[spark]', and Java 17 or newer.
"""

EXAMPLES = """\
Examples:
  pyxbroker pipeline list
  pyxbroker pipeline run archive --help
  pyxbroker pipeline run archive --service-url pulsar://localhost:6650 \\
      --topic orders --to /srv/archive
"""

SUBCOMMANDS = {
    "list": "List the jobs.",
    "run": "Run a job.",
}


def command(arguments: Sequence[str]) -> None:
    name, rest = Group("pipeline", ABOUT, SUBCOMMANDS, EXAMPLES).choose(arguments)
    if name == "list":
        Parser("pipeline list", SUBCOMMANDS[name]).parse(rest)
        width = max(map(len, PIPELINES))
        for each, about in PIPELINES.items():
            print(f"{each:{width}}  {about}")
        return
    group = Group("pipeline run", "Run a Spark job on topics.", PIPELINES, "")
    job, options = group.choose(rest)
    importlib.import_module(f"pyxbroker.spark.pipelines.{job}").command(options)
