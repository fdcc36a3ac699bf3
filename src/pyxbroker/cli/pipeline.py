"""`pyxbroker pipeline`: jobs of Spark's on topics, as they are."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from pyxbroker.cli import Group, Parser
from pyxbroker.spark.pipelines import PIPELINES

ABOUT = """\
Run a job of Spark's on topics.

They work against any broker of Pulsar's protocol, and need PySpark:
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
    "list": "The jobs that there are.",
    "run": "Run one of them.",
}


def command(arguments: Sequence[str]) -> None:
    name, rest = Group("pipeline", ABOUT, SUBCOMMANDS, EXAMPLES).choose(arguments)
    if name == "list":
        Parser("pipeline list", SUBCOMMANDS[name]).parse(rest)
        width = max(map(len, PIPELINES))
        for each, about in PIPELINES.items():
            print(f"{each:{width}}  {about}")
        return
    group = Group("pipeline run", "Run a job of Spark's on topics.", PIPELINES, "")
    job, options = group.choose(rest)
    importlib.import_module(f"pyxbroker.spark.pipelines.{job}").command(options)
