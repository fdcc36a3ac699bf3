"""Commands about brokers."""

from __future__ import annotations

from pyxbroker.cli.admin.output import java_text, pairs_of
from pyxbroker.cli.admin.rows import argument, choice, delete, flag, get, option, post

PATH = "/admin/v2/brokers"
CLUSTER = argument("cluster", "The cluster.")
CONFIG = option("-c --config", "The name of the setting.", "{config}", required=True)


def _namespaces(answer: dict[str, dict[str, object]]) -> str:
    """Return a line for each bundle, with Java's text of its status."""
    return pairs_of(
        {
            bundle: "NamespaceOwnershipStatus("
            + ", ".join(f"{name}={java_text(each)}" for name, each in status.items())
            + ")"
            for bundle, status in answer.items()
        }
    )


COMMANDS = {
    "list": get("List the brokers of a cluster.", f"{PATH}/{{cluster}}", CLUSTER),
    "leader-broker": get("Print the leader.", f"{PATH}/leaderBroker"),
    "namespaces": get(
        "Print the bundles of a broker.",
        f"{PATH}/{{cluster}}/{{url}}/ownedNamespaces",
        CLUSTER,
        option("-u --url", "The broker, as `list` prints it.", "{url}", required=True),
        printed=_namespaces,
    ),
    "update-dynamic-config": post(
        "Set a dynamic setting.",
        f"{PATH}/configuration/{{config}}/{{value}}",
        CONFIG,
        option("-v --value", "Its value.", "{value}", required=True),
    ),
    "delete-dynamic-config": delete(
        "Remove a dynamic setting; the one in the file applies.",
        f"{PATH}/configuration/{{config}}",
        CONFIG,
    ),
    "list-dynamic-config": get("List the dynamic settings.", f"{PATH}/configuration"),
    "get-all-dynamic-config": get(
        "Print the dynamic settings that are set.",
        f"{PATH}/configuration/values",
        printed=pairs_of,
    ),
    "get-internal-config": get(
        "Print where a broker stores data and metadata.", f"{PATH}/internal-configuration"
    ),
    "get-runtime-config": get(
        "Print all settings of a broker.", f"{PATH}/configuration/runtime", printed=pairs_of
    ),
    "healthcheck": get(
        "Check that the broker stores and dispatches a message.",
        f"{PATH}/health",
        option("-tv --topic-version", "V1 or V2.", "?topicVersion", choice("V1", "V2")),
    ),
    "backlog-quota-check": get(
        "Apply the quotas of backlogs now.",
        f"{PATH}/backlog-quota-check",
        printed=lambda answer: "ok",
    ),
    "version": get("Print the version of the broker.", f"{PATH}/version"),
    "shutdown": post(
        "Stop the broker.",
        f"{PATH}/shutdown",
        option(
            "-m --max-concurrent-unload-per-sec",
            "Bundles that are unloaded per second; 0: no limit.",
            "?maxConcurrentUnloadPerSec",
            int,
            default=0,
        ),
        flag(
            "-f --forced-terminate-topic",
            "Do not wait for topics that cannot be closed.",
            "?forcedTerminateTopic",
        ),
        printed=lambda answer: "Successfully shutdown broker gracefully",
    ),
}
