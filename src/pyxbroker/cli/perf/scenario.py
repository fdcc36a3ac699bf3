"""`pyxbroker perf scenario`."""

from __future__ import annotations

from collections.abc import Sequence

from pyxbroker.cli import Group, Parser, fail
from pyxbroker.cli.perf.options import (
    REFUSED,
    PerfParser,
    add_connection_options,
    add_output_options,
    rate,
    seconds,
)
from pyxbroker.cli.perf.running import run, write_files
from pyxbroker.perf.results import NeedsLibrary
from pyxbroker.perf.scenario import BadScenario, Scenario, load, shipped

ABOUT = """\
List or run scenarios: several groups of producers and consumers.

A scenario is a YAML file. Its steps have a rate each; each step runs all groups.
"""

EXAMPLES = """\
Examples:
  pyxbroker perf scenario list
  pyxbroker perf scenario run iot-telemetry --html iot.html
  pyxbroker perf scenario run iot-telemetry --rate 3000 --rate max -time 60
  pyxbroker perf scenario run mine.yaml
"""

SUBCOMMANDS = {
    "list": "List the scenarios that are installed.",
    "run": "Run a scenario, by name or from a file.",
}


def command(arguments: Sequence[str]) -> None:
    name, rest = Group("perf scenario", ABOUT, SUBCOMMANDS, EXAMPLES).choose(arguments)
    if name == "list":
        Parser("perf scenario list", SUBCOMMANDS[name]).parse(rest)
        for each in shipped():
            print(f"{each}  {_load(each).about}")
    else:
        _run(rest)


def _run(arguments: Sequence[str]) -> None:
    parser = PerfParser("scenario run", SUBCOMMANDS["run"], "[OPTIONS] SCENARIO", REFUSED)
    parser.add_argument("scenario", metavar="SCENARIO", help="A name of the list, or a file.")
    add = parser.options.add_argument
    add(
        *("-r", "--rate"),
        type=rate,
        action="append",
        metavar="N",
        help="Messages per second, or max, instead of the steps of the file (repeatable).",
    )
    add("-time", "--test-duration", type=seconds, metavar="S", help="Time of each step.")
    add("--warmup-time", type=seconds, metavar="S", help="Time before each step.")
    add_connection_options(parser)
    add_output_options(parser)
    options = parser.parse(arguments)
    scenario = _load(options.scenario)
    if options.max_connections == 1:
        options.max_connections = scenario.connections
    results = []
    for step in options.rate or scenario.steps:
        shown = f"{step:g} msg/s" if step else "maximum rate"
        print(f"{scenario.name}, {shown}:", flush=True)
        result = run(
            options,
            f"perf scenario {scenario.name}",
            scenario.at(step),
            scenario.seconds if options.test_duration is None else options.test_duration,
            scenario.warm_up_s if options.warmup_time is None else options.warmup_time,
        )
        results.append({**result, "step": shown})
        if result["interrupted"]:
            break
    write_files(options, results)


def _load(name: str) -> Scenario:
    try:
        return load(name)
    except (BadScenario, NeedsLibrary) as error:
        fail(str(error))
