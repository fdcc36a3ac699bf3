"""Where our answers differ from Apache Pulsar 4.2.4's, and why: a closed list.

What differs and is in no row of it fails a test. docs/compatibility.md has the rows and how many
cases each one has.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

LIBRARY = "text of a Java library"
DEFECT = "defect"
CLEARER = "clearer here"
PART = "part not there"
STATE = "another state"
REASONS = {
    LIBRARY: "the status is the same; the text there is written by Jetty, Jersey or Jackson",
    DEFECT: "Apache Pulsar answers 500, hangs, or says that it did what it did not",
    CLEARER: "the answer here says more precisely what is wrong, or what there is",
    PART: "a part that a broker here does not have: offloading, other clusters",
    STATE: "names, times and numbers of a broker of its own, and what its settings are",
}


class Told(NamedTuple):
    """An answer. Without a text: it is not to be compared."""

    status: int
    text: str | None


class Rule(NamedTuple):
    """A kind of difference."""

    reason: str
    what: str  # for a person
    cases: str  # a pattern of the names of cases
    there: str = ""  # a pattern of the status and the text of Apache Pulsar; empty: any
    here: str = ""  # of ours


# The bodies of containers: a page, or nothing, for what never reached Pulsar's own code.
_PAGE = re.compile(r"\A\s*(<html>|\Z)")
_JACKSON = re.compile(
    r"Cannot (deserialize|construct)|Unexpected character|Unrecognized token|Unexpected end"
    r"|JSON parse|was expecting"
)

MISSING_PARENT = re.compile(
    r"404 (Tenant .*|Namespace .*|Topic.*|path .* not found\.|Subscription .*|Schema .*"
    r"|couldn't find subscription|Partitioned Topic.*|Invalid .*|)\Z",
    re.DOTALL,
)
OF_STATE = (
    r"^GET /admin/v2/(clusters|tenants|resourcegroups) "
    r"|/(backlogSize|lastMessageId|messageid/\{timestamp\}|terminate|terminate/partitions) "
    r"|^GET /admin/v2/schemas/|/resource-quotas/|^GET /lookup/|/bookies/all "
    r"|/(internal-configuration|configuration|configuration/runtime|version|ownedNamespaces) "
    r"|/broker-stats/|/(internal-info|internalStats|partitioned-internalStats|stats) "
    r"|/(partitioned-stats|backlog|topicHashPositions) "
)

OF_LIBRARY = Rule(LIBRARY, REASONS[LIBRARY], "")
RULES: tuple[Rule, ...] = (
    Rule(
        PART,
        "an endpoint that is not built reports that, unless another error applies",
        "",
        here=r"501 ",
    ),
    Rule(
        DEFECT,
        "an unexpected error, or no answer within 20 s",
        "",
        there=r"\A(500|0) ",
        here=r"\A[234]",
    ),
    Rule(
        CLEARER,
        "nothing is set or returned: 204, which has no body, instead of 200 without one",
        r"",
        there=r"\A200 \Z",
        here=r"\A204 \Z",
    ),
    Rule(
        STATE,
        "ids, times, names, sizes and the settings of each broker, with the same status",
        OF_STATE,
        there=r"\A200 ",
        here=r"\A200 ",
    ),
    Rule(
        CLEARER,
        "a missing value does not remove a policy; DELETE does",
        r"\| no body$|\| no tenant, no body$|\| no namespace, no body$",
        there=r"\A20[04] ",
        here=r"\A40[04] ",
    ),
    Rule(
        CLEARER,
        "a body that is read must be declared as JSON",
        r"\| text$",
        here=r"\A415 ",
    ),
    Rule(
        CLEARER,
        "an unused body is not a reason to refuse",
        r"\| text$",
        there=r"\A415 ",
        here=r"\A20[04] ",
    ),
    Rule(
        DEFECT,
        "succeeds for a tenant, a namespace or a topic that does not exist",
        r"\| no (tenant|namespace|topic)|\| of partitioned$",
        there=r"\A20[04] ",
        here=r"\A404 ",
    ),
    Rule(
        CLEARER,
        "the first missing object is named: the namespace, then the topic, then its parts",
        r"",
        there=MISSING_PARENT.pattern,
        here=MISSING_PARENT.pattern,
    ),
    Rule(
        CLEARER,
        "the namespace is checked before its bundle",
        r"\{bundle\}.* \| no (tenant|namespace)$",
        there=r"\A4(04|12) ",
        here=r"\A404 Namespace not found",
    ),
    Rule(
        DEFECT,
        "a missing namespace is reported as concurrently modified",
        r"removeOffloadPolicies \| no (tenant|namespace)$",
        there=r"\A409 Concurrent modification",
        here=r"\A404 ",
    ),
    Rule(
        CLEARER,
        "the policy can be removed with DELETE as well",
        r"^DELETE .*/deduplicationSnapshotInterval \| wrong method$",
        here=r"\A204 ",
    ),
    Rule(
        CLEARER,
        "persistence of ledgers without a value is a request without a body",
        r"/persistence \| no (body|tenant, no body|namespace, no body)$",
        there=r"\A400 ",
        here=r"\A400 ",
    ),
    Rule(
        DEFECT,
        "expiring messages up to a position in an unknown ledger succeeds",
        r"/expireMessages \| good$",
        there=r"\A204 ",
        here=r"\A409 ",
    ),
    Rule(
        CLEARER,
        "storage of a non-persistent topic is an error instead of zeros",
        r"non-persistent.*/(backlog|subscription/\{subName\}/analyzeBacklog) ",
        here=r"\A405 ",
    ),
    Rule(
        STATE,
        "partitions of a non-persistent topic exist after their first use",
        r"non-persistent.*/subscription/\{subName\}/.* \| of partitioned$",
        there=r"\A404 ",
        here=r"\A20[04] ",
    ),
    Rule(
        CLEARER,
        "a partitioned topic without properties returns an empty object",
        r"/properties \| of partitioned$",
        there=r"\A200 \Z",
        here=r"\A200 ",
    ),
    Rule(
        CLEARER,
        "an invalid name is reported before an unsupported operation",
        r"/truncate \| bad (tenant|namespace)$",
        there=r"\A412 ",
        here=r"\A412 ",
    ),
    Rule(
        LIBRARY,
        "the sentence has the class of a load manager, which does not exist here",
        r"/broker-resource-availability/",
        here=r"\A409 ",
    ),
    Rule(
        CLEARER,
        "of two errors the other one is reported",
        r"\| no (tenant|namespace|topic|cluster), no body$",
        there=r"\A4(00|04|12) ",
        here=r"\A4(00|04) ",
    ),
    Rule(
        CLEARER,
        "an invalid tenant name is reported as such",
        r"/tenants/\{tenant\} \| bad tenant$",
        there=r"\A404 ",
        here=r"\A412 ",
    ),
)


def reason_of(text: str) -> str:
    """The sentence of a refusal."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return str(found.get("reason", text)) if isinstance(found, dict) else text


def is_of_library(told: Told) -> bool:
    """Whether a refusal is not in Pulsar's own words."""
    if told.status < 400:
        return told.status == 0
    if told.text is None or told.status == 500:
        return True
    return bool(_PAGE.search(told.text) or _JACKSON.search(reason_of(told.text)))


def is_of_state(case: str, told: Told) -> bool:
    """Whether an answer is about a broker of its own."""
    return told.status == 200 and bool(re.search(OF_STATE, case))


def is_equal(there: Told, here: Told) -> bool:
    """The same status, and the same JSON or the same sentence."""
    if there.status != here.status or there.text is None or here.text is None:
        return False
    if there.text == here.text:
        return True
    if there.status < 300:
        try:
            return bool(json.loads(there.text) == json.loads(here.text))
        except ValueError:
            return False
    return reason_of(there.text) == reason_of(here.text)


def rule_of(case: str, there: Told, here: Told) -> Rule | None:
    """The row that explains a difference; None: there is none."""
    if there.status == here.status >= 400 and is_of_library(there):
        return OF_LIBRARY
    for rule in RULES:
        if (
            re.search(rule.cases, case)
            and re.search(rule.there, _line(there), re.DOTALL)
            and re.search(rule.here, _line(here), re.DOTALL)
        ):
            return rule
    return None


def _line(told: Told) -> str:
    return f"{told.status} {reason_of(told.text or '')}"
