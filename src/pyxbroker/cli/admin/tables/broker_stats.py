"""Commands about the statistics of a broker."""

from __future__ import annotations

from pyxbroker.cli.admin.rows import argument, flag, get

PATH = "/admin/v2/broker-stats"
INDENT = flag("-i --indent", "No effect: JSON is indented anyway.")

COMMANDS = {
    "monitoring-metrics": get(
        "Print the metrics of Pulsar's older monitoring.", f"{PATH}/metrics", INDENT
    ),
    "mbeans": get(
        "Print the beans of Java. A broker in Python has none.", f"{PATH}/mbeans", INDENT
    ),
    "topics": get("Print the statistics of the topics of a broker.", f"{PATH}/topics", INDENT),
    "destinations": get(
        "Print the statistics of the topics of a broker.", f"{PATH}/topics", INDENT
    ),
    "allocator-stats": get(
        "Print the statistics of an allocator of memory.",
        f"{PATH}/allocator-stats/{{allocator}}",
        argument("allocator", "Its name: default or ml-cache."),
    ),
    "load-report": get("Print the load of the broker.", f"{PATH}/load-report"),
}
