"""Apache Pulsar's pulsar-admin: one process runs many command lines.

admin = JavaAdmin()
status, output, errors = admin.run(broker.web_url, "tenants", "list")
"""

from __future__ import annotations

from typing import NamedTuple

from harness.java_build import JavaProgram
from harness.line_program import Program

PROGRAM = JavaProgram("javaadmin")
# Longer than any command of a test may take.
_LIMIT_S = 120.0


class Done(NamedTuple):
    """What a command line came to."""

    status: int
    output: str
    errors: str


class JavaAdmin:
    """The process, which ends with this one at the latest."""

    def __init__(self) -> None:
        flag = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
        self._program = Program("pulsar-admin", PROGRAM.command("Main", flag), _failure)

    def run(self, url: str, *words: str) -> Done:
        """Runs one command line against the web port of a broker."""
        told = self._program.ask(url, 0, list(words), _LIMIT_S)
        return Done(told["status"], told["output"], told["errors"])

    def close(self) -> None:
        self._program.end()


def _failure(name: str, text: str) -> Exception:
    return RuntimeError(f"{name}: {text}")
