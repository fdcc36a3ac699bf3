"""Where a role is told something else here than by Apache Pulsar 4.2.4, and why."""

from __future__ import annotations

import re
from typing import NamedTuple

from compat_tests.answers import differences as answers
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
        here=r"\A(4 Unauthorized|11 Topic not found or no-schema)",
    ),
    Rule(
        "what is not built says so to who may ask for it; of clusters to everybody",
        r"^administrator of the tenant \| [A-Z]+ /|\| [A-Z]+ /admin/v2/clusters/[^/]+/migrate$",
        here=r"\A501 ",
    ),
    Rule(
        "whether a namespace is there is told to its administrators alone",
        r"\| GET /admin/v2/namespaces/.*/scanOffloadedLedgers$",
        there=r"\A(0|500) ",
        here=r"\A40[34] ",
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
        here=r"\A(403 .* on policy \[DELAYED_DELIVERY\]|404 )",
    ),
    Rule(
        "the body comes before what a topic of its kind cannot do, and after the right",
        r"\| (PUT|POST) /admin/v2/non-persistent/.*/(properties|subscription/\{subName\}"
        r"|replicatedSubscriptionStatus)$",
        there=r"\A(0|40[056]) ",
        here=r"\A40[134] ",
    ),
    Rule(
        "which namespaces and topics exist is only told to roles that may ask about the topic",
        r"\| [A-Z]+ /admin/v2/non-persistent/.*/(entryFilters|partitioned-stats)$",
        there=r"\A(0|404) ",
        here=r"\A40[13] ",
    ),
    Rule(
        "a name that no tenant can have is reported to every role",
        r"\| (GET|POST|DELETE) /admin/v2/tenants/\{tenant\}$",
        there=r"\A401 ",
        here=r"\A412 ",
    ),
    Rule(
        "resources of brokers do not exist here, which every role may know",
        r"/broker-stats/broker-resource-availability/",
        here=r"\A409 ",
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
        "the missing namespace is named, and not that another broker serves the topic",
        r"\| a (non-persistent )?topic without a (namespace|tenant)",
        there=r"\A(6|11) ",
        here=r"\A11 Namespace (not found: |\S+ does not exist)",
    ),
    Rule(
        "the missing tenant is named, and not that an exception occurred",
        r"\| a .* without a tenant: ",
        there=r"\A4 (Exception occurred while|org\.apache\.pulsar\.\S+: HTTP 404 Not Found)",
        here=r"\A4 Tenant does not exist\Z",
    ),
    Rule(
        "the reason why a name cannot be is given, and the connection stays open",
        r"\| a name (of no|with a bad) ",
        there=r"\A(-1|17) ",
        here=r"\A17 ",
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


def rule_of(name: str, there: Told, here: Told) -> Rule | answers.Rule | None:
    """The first rule that explains a difference. None does that somebody is let in here alone, but
    for the few that are named.

    The rules are about "role | what is asked". Where something is missing, the rules of the answers
    that need no rights (compat_tests/answers/differences.py) count, too.
    """
    if here.status == LET_IN.status:
        return LOOSER if re.search(LOOSER.names, name) else None
    role, what, *kind = name.split(" | ")
    for rule in RULES:
        if (
            re.search(rule.names, f"{role} | {what}")
            and re.search(rule.there, f"{there.status} {there.text or ''}", re.DOTALL)
            and re.search(rule.here, f"{here.status} {here.text or ''}", re.DOTALL)
        ):
            return rule
    return answers.rule_of(f"{what} | {kind[0]}", there, here) if kind else None
