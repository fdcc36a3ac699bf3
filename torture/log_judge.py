"""Judges what a broker printed: no traceback, bounded, a refused start in one sentence.

Tolerant in wording, strict in substance.
"""

from __future__ import annotations

import re
from pathlib import Path

LINES_MAX = 300

_UNHANDLED = re.compile(
    r"Traceback \(most recent call last\)|never retrieved|Exception ignored|Unhandled|"
    r"Fatal Python error|AssertionError|Assertion .* failed|AddressSanitizer"
)
_LINE = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z (\w+) (\S+) event=(.*)$")
_SENTENCE = re.compile(r"^pyxbroker: (.+)$", re.MULTILINE)
# What a person can look for: a file, or a directory of the data directory.
_NAMES_A_FILE = re.compile(
    r"\.journal|\.log\b|\.tmp|metadata|VERSION|cookie|\.lock|bookie|journal|ledgers|data dir|/"
)
# Lines that the clients of the load cause, however good the disk is.
_OF_CLIENTS = re.compile(r"event=(dis)?connected ")
_JOURNAL_FAILED = re.compile(r"journal[^\n]*(fail|ended|error)", re.IGNORECASE)
_DAMAGE = re.compile(r"\bdamage|\bcorrupt|wrong checksum|unreadable", re.IGNORECASE)


class Output:
    """The output of a broker since a moment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._from = path.stat().st_size if path.exists() else 0

    def text(self) -> str:
        """All that came since."""
        with self.path.open("rb") as file:
            file.seek(self._from)
            return file.read().decode(errors="replace")

    def log_lines(self) -> list[str]:
        """The lines of the log, without the banner and without those of each connection."""
        lines = self.text().splitlines()
        return [line for line in lines if _LINE.match(line) and not _OF_CLIENTS.search(line)]

    def says_the_journal_failed(self) -> bool:
        """Whether the broker said that its journal can take nothing more."""
        return any(_JOURNAL_FAILED.search(line) for line in self.log_lines())

    def damage(self) -> list[str]:
        """Lines that report damaged bytes."""
        return [line for line in self.text().splitlines() if _DAMAGE.search(line)]

    def problems(self) -> list[str]:
        """Tracebacks, and more lines than one cause may have."""
        text, wrong = self.text(), []
        if found := _UNHANDLED.search(text):
            begin = max(0, text.rfind("\n", 0, found.start()))
            wrong.append(f"the log has: {text[begin : begin + 1500].strip()}")
        lines = self.log_lines()
        if len(lines) > LINES_MAX:
            wrong.append(f"the log has {len(lines)} lines, the last of them: {lines[-1][:200]}")
        return wrong


def refusal_problems(status: int, output: Output) -> list[str]:
    """A start ended by itself: was it refused in one sentence that names what it is about?"""
    sentences = _SENTENCE.findall(output.text())
    wrong = []
    if status != 1:
        wrong.append(f"the start ended with {status} instead of 1")
    if len(sentences) != 1:
        wrong.append(f"the start was refused with {len(sentences)} sentences: {sentences}")
    elif not _NAMES_A_FILE.search(sentences[0]):
        wrong.append(f"the sentence names no file: {sentences[0]}")
    return [each + f"\n{output.text()[-1500:]}" for each in wrong]


def refusal(output: Output) -> str:
    """The sentence of a refused start."""
    sentences = _SENTENCE.findall(output.text())
    return sentences[-1] if sentences else "(no sentence)"
