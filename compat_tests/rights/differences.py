"""Where a role is told something else here than by Apache Pulsar 4.2.4, and why."""

from __future__ import annotations

import re
from typing import NamedTuple

from compat_tests.answers.differences import Told

LET_IN = Told(0, None)  # what comes of it then is compared elsewhere
NOT_BUILT = Told(501, None)


class Rule(NamedTuple):
    """A kind of difference."""

    what: str  # for a person
    names: str  # a pattern of role and what is asked
    there: str = ""  # a pattern of the number and the text of Apache Pulsar; empty: any
    here: str = ""  # of ours


RULES: tuple[Rule, ...] = (
    Rule(
        "a schema is for those who may look its topic up",
        "GET_(OR_CREATE_)?SCHEMA$",
        there=r"\A(0|11) ",
        here=r"\A4 Unauthorized",
    ),
    Rule(
        "what is not built says so to who may ask for it; of clusters to everybody",
        r"^administrator of the tenant \| [A-Z]+ /|\| [A-Z]+ /admin/v2/clusters/[^/]+/migrate$",
        here=r"\A501 ",
    ),
    Rule(
        "whether a namespace is there is told to its administrators alone",
        r"\| GET /admin/v2/namespaces/.*/scanOffloadedLedgers$",
        there=r"\A0 ",
        here=r"\A403 ",
    ),
    Rule(
        "what the right is for that is asked of a topic is said, and not the right to look it up",
        r"\| [A-Z]+ /admin/v2/.*/(createMissedPartitions|entryFilters|partitioned-stats|truncate)$",
        there=r"\A401 .* for operation \[LOOKUP\]",
        here=r"\A40[13] ",
    ),
    Rule(
        "partitioned topics are created by the same right in both domains",
        r"\| PUT /admin/v2/persistent/.*/partitions$",
        there=r"\A403 .* on policy \[PARTITION\]",
        here=r"\A403 .* for operation \[CREATE_TOPIC\]",
    ),
    Rule(
        "the delay of a namespace's messages is set by who sets its other policies",
        r"\| (POST|DELETE) /admin/v2/namespaces/.*/delayedDelivery$",
        there=r"\A401 ",
        here=r"\A403 .* on policy \[DELAYED_DELIVERY\]",
    ),
    Rule(
        "what a topic of its kind cannot do is told to who may do it",
        r"\| [A-Z]+ /admin/v2/(non-)?persistent/.*/(getMessageIdByIndex|properties|subscription/.*"
        r"|terminate|trim|truncate|entryFilters) *$",
        there=r"\A0 ",
        here=r"\A40[13] ",
    ),
    Rule(
        "topics of several tenants are for superusers",
        r"\| POST /admin/v2/namespaces/(grant|revoke)PermissionsOnTopics$",
        there=r"\A(0|401) ",
        here=r"\A401 ",
    ),
    Rule(
        "the broker's own topics are for administrators: who writes there sets policies",
        r"\| the broker's topic: ",
        here=r"\A4 ",
    ),
    Rule(
        "the broker's own topic is there once a policy of a topic is set",
        r"\| the broker's topic: GET_SCHEMA$",
        there=r"\A0 ",
        here=r"\A11 ",
    ),
    Rule(
        "what is wrong with the name is said, and not that somebody else serves it",
        r"\| a topic without a namespace: ",
        there=r"\A(6|11) ",
        here=r"\A11 Namespace not found: ",
    ),
    Rule(
        "whether a tenant is there is not told to who has no right in it",
        r"\| a topic without a tenant: ",
        there=r"\A(4|11) ",
        here=r"\A4 ",
    ),
    Rule(
        "names of Java's classes are left out, and who may not consume at all is told so",
        r"\| a topic with prefixes: ",
        there=r"\A4 org\.apache\.pulsar\.\S+: Failed to create consumer - The subscription name",
        here=r"\A4 (Failed to create consumer - The subscription name|Client is not authorized)",
    ),
)


# The delay of a namespace's messages is set like its other policies; resources of brokers are none
# here.
LOOSER = Rule(
    "let in here alone",
    r"^administrator of the tenant \| (POST|DELETE) /admin/v2/namespaces/.*/delayedDelivery$"
    r"|/broker-stats/broker-resource-availability/",
)


def is_equal(_name: str, there: Told, here: Told) -> bool:
    """Whether a role is told the same."""
    return there.status == here.status and (there.text is None or there.text == here.text)


def is_known(name: str, there: Told, here: Told) -> bool:
    """Whether a role is told the same, or a rule says why not."""
    return is_equal(name, there, here) or rule_of(name, there, here) is not None


def rule_of(name: str, there: Told, here: Told) -> Rule | None:
    """The first rule that explains a difference. None does that somebody is let in here alone, but
    for the few that are named.
    """
    if here.status == LET_IN.status:
        return LOOSER if re.search(LOOSER.names, name) else None
    for rule in RULES:
        if (
            re.search(rule.names, name)
            and re.search(rule.there, f"{there.status} {there.text or ''}", re.DOTALL)
            and re.search(rule.here, f"{here.status} {here.text or ''}", re.DOTALL)
        ):
            return rule
    return None
