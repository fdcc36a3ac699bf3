"""Apache Pulsar's own classes read and write records: the program in ``javarecords``.

``harness/java_build.py`` builds it, of 35 jars (25 MB).
"""

from __future__ import annotations

import base64
import json
import subprocess
from typing import Any, NamedTuple

from harness.java_build import JavaProgram

PROGRAM = JavaProgram("javarecords")


class Written(NamedTuple):
    """What Apache's classes made: the Java fields of an object, and its bytes."""

    fields: dict[str, Any]
    value: bytes


class Compacted(NamedTuple):
    """What Apache's compactor made of a log."""

    ledger_id: int
    metadata: bytes  # the node of the ledger
    entries: list[bytes]
    properties: dict[str, int]  # with which it acknowledges the log
    horizon: tuple[int, int]  # up to where it does


class ApacheRecords:
    """A process of the program; to be closed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            PROGRAM.command("Records", "-Dslf4j.internal.verbosity=ERROR"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def read(self, kind: str, value: bytes) -> dict[str, Any]:
        """The Java fields of what Apache's class of a kind makes of bytes."""
        answer = self._ask({"read": kind, "value": _text(value)})
        fields: dict[str, Any] = answer["fields"]
        return fields

    def write(self, kind: str, but: dict[str, Any]) -> Written:
        """An object of Apache's class of a kind with a value in every field.

        but: those that it has to have, by the names of Java's fields on the way, with dots between;
        of protobuf messages an object within the other, and null is for what it does not have.
        """
        answer = self._ask({"write": kind, "but": but})
        return Written(answer["fields"], base64.b64decode(answer["value"]))

    def open_compacted(
        self,
        ledger_id: int,
        metadata: bytes,
        entries: list[bytes],
        horizon: tuple[int, int],
        since_ms: int,
    ) -> dict[str, Any]:
        """What Apache's broker reads of a compacted ledger.

        metadata: the node of the ledger; horizon: up to where it stands for the log; since_ms: a
        time of publishing, for which the first entry is looked for.
        """
        return self._ask(
            {
                "open": ledger_id,
                "metadata": _text(metadata),
                "entries": list(map(_text, entries)),
                "horizon": horizon,
                "since": since_ms,
            }
        )

    def compact(
        self,
        topic: str,
        log: list[tuple[tuple[int, int], bytes]],
        ledger_id: int,
        bookie: str,
        *,
        partition: int = -1,
        retains_keyless: bool = False,
    ) -> Compacted:
        """What Apache's compactor makes of entries with their positions.

        ledger_id, bookie: of the ledger that it writes.
        """
        answer = self._ask(
            {
                "compact": topic,
                "log": [{"position": at, "entry": _text(entry)} for at, entry in log],
                "ledgerId": ledger_id,
                "bookie": bookie,
                "partition": partition,
                "retainsKeyless": retains_keyless,
            }
        )
        return Compacted(
            answer["ledgerId"],
            base64.b64decode(answer["metadata"]),
            list(map(base64.b64decode, answer["entries"])),
            answer["properties"],
            tuple(answer["horizon"]),
        )

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"Java ended with {self._process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        status = self._process.wait(20)
        self._process.stdout.close()
        assert status == 0, f"Java ended with {status}"


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
