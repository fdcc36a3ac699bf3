"""Runs the command lines of pulsaradmin_script.txt, and keeps what they print.

python -m compat_tests.pulsaradmin KIND FILE    asks a broker of its own, and writes the answers
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from harness.brokers import Broker
from harness.java_admin import Done, JavaAdmin

from compat_tests.answers.differences import DEFECT, LIBRARY, PART

SCRIPT = Path(__file__).parent / "pulsaradmin_script.txt"
NAMES = {
    "NS": "adm/ns",
    "T": "persistent://adm/ns/topic",
    "P": "persistent://adm/ns/parts",
    "N": "non-persistent://adm/ns/passing",
}
SCHEMA = {"type": "STRING", "schema": "", "properties": {}}


def lines() -> list[str]:
    """The command lines."""
    return [each for each in SCRIPT.read_text().splitlines() if not each.startswith("#")]


def answers(broker: Broker, admin: JavaAdmin, directory: Path) -> Iterator[tuple[str, Done]]:
    """Each line with what it came to."""
    schema = directory / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    brokers = broker.rest("GET", "/admin/v2/brokers/standalone")[1]
    names = NAMES | {"SCHEMA": str(schema), "BROKER": brokers[0]}
    for line in lines():
        words = [names.get(each, each) for each in shlex.split(line)]
        if words[0] == "publish":
            path = "/topics/" + words[1].replace("://", "/")
            status, text = broker.request("POST", path, {"messages": [{"payload": "hello"}]})
            assert status == 200, text
            continue
        done = admin.run(broker.web_url, *words)
        yield line, Done(*(_put_back(each, brokers) for each in done))


def _put_back(told: int | str, brokers: list[str]) -> int | str:
    if not isinstance(told, str):
        return told
    for each in brokers:
        told = told.replace(each, "BROKER")
    return re.sub(r"(\{[^{}]*\}\n)\1+", r"\1", told)  # what is printed of each broker


# --- the record -------------------------------------------------------------------------------

RECORD = Path(__file__).parent / "answers" / "pulsaradmin-4.2.4.json"


class Recorded(NamedTuple):
    """What a line came to; the text is None where it is about a broker of its own."""

    line: str
    status: int
    text: str | None


class Difference(NamedTuple):
    """Lines that print something else here, and why."""

    reason: str
    lines: str  # a pattern
    here: str = ""  # a pattern of what they print here


ORDER = "order of a set"
DIFFERENCES = (
    Difference(PART, "offload", r"Offloading is not built yet"),
    Difference(PART, "shadow-|-migration", r"Other clusters are not built yet"),
    Difference(PART, "^clusters list$", r"standalone\Z|standalone\n\Z"),  # the migrated one stays
    Difference(ORDER, "^(namespaces|topics) permissions "),
    Difference(ORDER, " get-subscription-types-enabled ", r'\A\[ "Failover", "Shared" \]\n\Z'),
    Difference(DEFECT, "^namespaces (clear-backlog|get-topic-positions) NS "),
)
# Statistics, settings and ids: compared by their fields elsewhere.
OF_STATE = re.compile(
    r"^topics (stats|partitioned-stats|info-internal|peek-messages|examine-messages|last-message-id"
    r"|lookup|partitioned-lookup|analyze-backlog|get-message-id|terminate|partitioned-terminate"
    r"|get-backlog-size|bundle-range)|^broker-stats |^bookies list|^schemas (get|metadata)"
    r"|^brokers (list|leader|namespaces|get-internal|get-runtime|version|list-dynamic)"
    r"|^namespaces (get-topic-positions|unload)"
    r"|get-dispatcher-pause-on-ack-state-persistent T"  # prints a future of Java's
    r"|^topics (get-shadow-source|offload|compaction-status)"
)


def recorded() -> list[Recorded]:
    """All of them, in their order."""
    return [Recorded(*each) for each in json.loads(RECORD.read_text())]


def record(found: list[tuple[str, Done]]) -> None:
    """Writes the file."""
    kept = [
        (line, done.status, None if OF_STATE.search(line) else text_of(done))
        for line, done in found
    ]
    RECORD.write_text("[\n" + ",\n".join(json.dumps(each) for each in kept) + "\n]\n")


def text_of(done: Done) -> str:
    """What is printed; of a failure the first line, since the others say it again."""
    if done.status:
        return done.errors.strip().partition("\n")[0]
    return done.output.strip()


def is_equal(there: Recorded, done: Done) -> bool:
    """The same status, and the same text or JSON."""
    if there.status != done.status:
        return False
    return there.text is None or _value(there.text) == _value(text_of(done))


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def reason_of(there: Recorded, done: Done) -> str | None:
    """Why a line prints something else; None: nothing explains it."""
    if there.status == done.status == 1 and (there.text or "").startswith("HTTP 4"):
        # The reader of the command line is Java's, and so is what a failure prints.
        return LIBRARY
    for each in DIFFERENCES:
        if re.search(each.lines, there.line) and re.search(each.here, done.output + done.errors):
            return each.reason
    return None


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        broker = Broker("apache", Path(directory) / "broker")
        admin = JavaAdmin()
        try:
            broker.start()
            record(list(answers(broker, admin, Path(directory))))
        finally:
            admin.close()
            broker.close()


if __name__ == "__main__":
    main()
