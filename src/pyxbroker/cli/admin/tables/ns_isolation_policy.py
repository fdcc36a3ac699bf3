"""Commands about namespaces that are reserved for some brokers."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from pyxbroker.cli.admin.output import java_text, pairs_of, pretty
from pyxbroker.cli.admin.rows import (
    argument,
    choice,
    delete,
    function,
    get,
    option,
    pairs,
    words,
)
from pyxbroker.client.admin import AdminClient

PATH = "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies"
CLUSTER = argument("cluster", "The cluster.")
POLICY = argument("policy", "The isolation policy.")
TYPE = "min_available"
PARAMETERS = {"min_limit", "usage_threshold"}


async def _set(client: AdminClient, values: Namespace) -> None:
    body = {
        "namespaces": values.namespaces,
        "primary": values.primary,
        "secondary": values.secondary or [],
        "auto_failover_policy": {
            "policy_type": values.auto_failover_policy_type,
            "parameters": values.auto_failover_policy_params,
        },
    }
    if values.unload_scope:
        body["unload_scope"] = values.unload_scope
    path = f"/admin/v2/clusters/{values.cluster}/namespaceIsolationPolicies/{values.policy}"
    await client.post(path, body)


def _check(values: Namespace) -> str:
    if set(values.auto_failover_policy_params) != PARAMETERS:
        return "--auto-failover-policy-params has to be min_limit=N,usage_threshold=PERCENT."
    return ""


def _policies(answer: dict[str, dict[str, Any]]) -> str:
    """Return a line for each policy, as Java prints it."""
    return pairs_of({name: _java(each) for name, each in answer.items()})


def _java(policy: dict[str, Any]) -> str:
    failover = policy.get("auto_failover_policy") or {}
    fields = {
        "namespaces": policy.get("namespaces"),
        "primary": policy.get("primary"),
        "secondary": policy.get("secondary"),
        "autoFailoverPolicy": "AutoFailoverPolicyDataImpl("
        f"policyType={failover.get('policy_type')},"
        f" parameters={java_text(failover.get('parameters'))})",
        "unloadScope": policy.get("unload_scope"),
    }
    texts = ", ".join(f"{name}={java_text(each)}" for name, each in fields.items())
    return f"NamespaceIsolationDataImpl({texts})"


def _brokers(answer: list[Any]) -> str:
    return "\n".join(map(pretty, answer))


COMMANDS = {
    "set": function(
        "Create or change an isolation policy.",
        _set,
        CLUSTER,
        POLICY,
        option(
            "--namespaces", "Regular expressions, separated by commas.", "", words, required=True
        ),
        option("--primary", "Regular expressions of brokers.", "", words, required=True),
        option("--secondary", "Brokers that are used without primary ones.", "", words),
        option("--auto-failover-policy-type", f"{TYPE}.", "", choice(TYPE), required=True),
        option(
            "--auto-failover-policy-params",
            "min_limit=N,usage_threshold=PERCENT.",
            "",
            pairs,
            required=True,
        ),
        option(
            "--unload-scope",
            "What is unloaded afterwards: all_matching, none or changed.",
            "",
            choice("all_matching", "none", "changed"),
        ),
        check=_check,
    ),
    "get": get("Print an isolation policy.", f"{PATH}/{{policy}}", CLUSTER, POLICY),
    "list": get("Print all isolation policies of a cluster.", PATH, CLUSTER, printed=_policies),
    "delete": delete("Delete an isolation policy.", f"{PATH}/{{policy}}", CLUSTER, POLICY),
    "brokers": get(
        "Print the namespaces that are reserved for each broker.",
        f"{PATH}/brokers",
        CLUSTER,
        printed=_brokers,
    ),
    "broker": get(
        "Print the namespaces that are reserved for a broker.",
        f"{PATH}/brokers/{{broker}}",
        CLUSTER,
        option("--broker", "The broker.", "{broker}", required=True),
    ),
}
