"""The fault table: every disk call of every kind of file, every error of it, and what is promised.

One row is one call on one kind of file.  ``torture/test_fault_table.py`` causes each of its errors
in a real broker; ``python -m torture.fault_table`` writes the table of docs/reliability.md.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from harness.errors import KINDS

ERRORS = ("EIO once", "EIO for a while", "EIO for ever", "ENOSPC", "EDQUOT", "short", "slow")
EIO = ERRORS[:3]
SPACE = ERRORS[3:5]

# The promised outcomes, by their names in the table.
PROMISES = {
    "waits": "The caller waits and is served. Other clients are not delayed.",
    "read again": "A read error is not damage. The broker retries at most a second later, for as "
    "long as the error lasts. Consumers wait, no entry is skipped, and no older state "
    "is taken for the newest.",
    "journal ends": "Nothing more is acknowledged. Writes are refused immediately with a reason, "
    "all acknowledged messages can be read, and health is 503. A restart recovers all of them. "
    "(With `shutdownOnJournalFailure` the process ends instead.)",
    "tried again": "Clients notice nothing while memory and journal have space. The broker retries "
    "until the call succeeds. Meanwhile health is 503, and sends that have waited for long are "
    "refused with a code and a reason. Reading and acknowledging continue.",
    "unnoticed": "The call only reserves space in advance; nothing needs it.",
    "freed later": "The request that caused the call has succeeded; the space is freed later.",
    "refused": "The change of metadata is refused with a reason and has no effect, or succeeds "
    "nevertheless. Answered changes remain, reading and publishing continue, and the next change "
    "succeeds. Health is 503 for half a minute.",
    "folded later": "Answered changes are in the metadata's log, which is checkpointed later.",
    "copied later": "Answered changes are in the database; the copies are completed later.",
    "reserved later": "The broker works without its reserve of space and creates it later.",
    "start": "The start waits for up to two seconds for the error to pass. Otherwise it is "
    "refused: exit status 1 and one sentence that names file and error. Nothing is lost: the next "
    "start succeeds.",
    "start refused": "The start is refused immediately: exit status 1 and one sentence. Nothing is "
    "lost: the next start succeeds.",
    "stop": "The process ends; the next start finds all data.",
}


def _all(promise: str) -> dict[str, str]:
    return dict.fromkeys((*EIO, *SPACE), promise) | {"short": "waits", "slow": "waits"}


_OF_FAMILY = {
    "journal ends": _all("journal ends"),
    "tried again": _all("tried again"),
    "read again": _all("read again"),
    "freed later": _all("freed later"),
    "refused": _all("refused"),
    "folded later": _all("folded later"),
    "no space to write": _all("journal ends") | dict.fromkeys(SPACE, "tried again"),
    "unnoticed": _all("unnoticed"),
    "copied later": _all("copied later"),
    "reserved later": _all("reserved later"),
    "start": dict.fromkeys(ERRORS, "start"),
    "start refused": dict.fromkeys((*EIO, *SPACE), "start refused")
    | {"short": "start", "slow": "start"},
    "stop": dict.fromkeys(ERRORS, "stop"),
}

# Errors that a call can have besides EIO and slowness.
_MORE_ERRORS = {
    "open": SPACE,
    "read": ("short",),
    "write": (*SPACE, "short"),
    "sync": SPACE,
    "rename": SPACE,
    "allocate": SPACE,
    "truncate": SPACE,
    "punch": SPACE,
    "mkdir": SPACE,
}
_DIRECTORIES = ("bookie", "bookie/journal", "bookie/ledgers", "bookie/current", "metadata.copies")
_NEVER_CREATED = ("journal", "entry_log")  # files of these names are opened, but made by a rename


@dataclass(frozen=True)
class Row:
    """One call on one kind of file; ``action`` is what makes a broker do it."""

    kind: str
    call: str
    action: str
    family: str

    @property
    def name(self) -> str:
        """Of its test."""
        return f"{self.kind}-{self.call}-{self.action}".replace("_", "-")

    @property
    def errors(self) -> tuple[str, ...]:
        """Those that this call can have, in the order of ``ERRORS``."""
        more = _MORE_ERRORS.get(self.call, ())
        if self.call == "open" and self.kind in _NEVER_CREATED:
            more = ()
        return tuple(each for each in ERRORS if each in (*EIO, "slow") or each in more)

    def promise(self, error: str) -> str:
        """What is promised then."""
        return _OF_FAMILY[self.family][error]


def _rows(kind: str, action: str, family: str, calls: str) -> list[Row]:
    return [Row(kind, call, action, family) for call in calls.split()]


ROWS = [
    *_rows("journal", "publish", "no space to write", "write"),
    *_rows("journal", "publish", "journal ends", "sync"),
    *_rows("journal", "next_journal", "tried again", "rename"),
    *_rows("journal", "start", "start", "open read"),
    *_rows("journal", "stop", "stop", "unlink"),
    *_rows("journal_new", "next_journal", "tried again", "open write sync rename allocate"),
    *_rows("journal_new", "first_start", "start", "open write sync rename allocate"),
    *_rows("journal_new", "start", "start refused", "unlink"),
    *_rows("entry_log", "read", "read again", "open read"),
    *_rows("entry_log", "start", "start", "open read"),
    *_rows("entry_log", "delete", "freed later", "punch unlink"),
    *_rows("entry_log_new", "flush", "tried again", "open write sync rename allocate"),
    *_rows("journal_manifest", "next_journal", "tried again", "open write sync"),
    *_rows("journal_manifest", "start", "start", "open read"),
    *_rows("journal_manifest", "first_start", "tried again", "open write sync rename"),
    *_rows("log_manifest", "flush", "tried again", "open write sync rename"),
    *_rows("log_manifest", "flush", "reserved later", "allocate"),
    *_rows("log_manifest", "start", "start", "open read"),
    *_rows("log_manifest", "first_start", "start", "open"),
    *_rows("metadata_wal", "create", "refused", "write sync"),
    *_rows("metadata_wal", "fold", "folded later", "read"),
    *_rows("metadata_wal", "start", "start", "open read"),
    *_rows("metadata_wal", "first_start", "start", "write sync allocate"),
    *_rows("metadata_wal", "stop", "stop", "unlink rename"),
    *_rows("metadata", "fold", "folded later", "write sync truncate"),
    *_rows("metadata", "start", "start", "open read"),
    *_rows("metadata", "first_start", "start", "open write sync"),
    *_rows("metadata_copies", "create", "copied later", "write sync"),
    *_rows("metadata_copies", "start", "start", "open read"),
    *_rows("metadata_copies", "first_start", "start", "open write sync rename allocate"),
    *_rows("metadata_other", "first_start", "start", "open read write sync unlink"),
    *_rows("metadata_other", "clean_start", "start", "rename"),
    *_rows("cookie", "start", "start", "open read"),
    *_rows("cookie", "first_start", "start", "open write sync rename"),
    *_rows("lock", "start", "start refused", "open write truncate"),
    *_rows("reserve", "first_start", "reserved later", "open allocate"),
    *_rows("directory", "flush", "tried again", "sync"),
    *_rows("directory", "start", "start", "open read"),
    *_rows("directory", "first_start", "start", "mkdir sync"),
]

FILES = {
    "journal": "journal file `*.journal`",
    "journal_new": "the next journal file `prepare.tmp`",
    "entry_log": "entry log `*.log`",
    "entry_log_new": "entry log that is being written `*.log.tmp`",
    "metadata_wal": "log of the metadata `metadata.db-wal`",
    "metadata": "the metadata `metadata.db`",
    "metadata_copies": "copies and change log of the metadata `metadata.copies/*`",
    "metadata_other": "other files of the metadata",
    "journal_manifest": "the journal's manifest `journal.manifest`",
    "log_manifest": "the manifest of entry logs `manifest`",
    "cookie": "cookie `VERSION`",
    "lock": "lock `pyxbroker.lock`",
    "reserve": "reserve of space",
    "directory": "directories",
}
ACTIONS = {
    "publish": "publishing",
    "next_journal": "the next journal file",
    "read": "reading a backlog",
    "flush": "flushing",
    "delete": "deleting",
    "create": "a change of metadata",
    "fold": "folding the log in",
    "start": "a start",
    "clean_start": "a start after a clean stop",
    "first_start": "the first start",
    "stop": "a stop",
}
STARTS = ("start", "clean_start", "first_start", "stop")
BEGIN, END = "<!-- the fault table: begin -->", "<!-- the fault table: end -->"
CALLS = "read write sync open rename truncate punch allocate unlink mkdir".split()


def matches(patterns: str, name: str) -> bool:
    """Whether the patterns of a kind take this path below the data directory; the last one wins."""
    matched = False
    for pattern in patterns.split("|"):
        if fnmatchcase(name, pattern.removeprefix("!")):
            matched = not pattern.startswith("!")
    return matched


def kind_of(name: str) -> str:
    """The kind of a file by its path below the data directory, or the path when it has none."""
    for kind, patterns in KINDS.items():
        if kind != "any" and matches(patterns, name):
            return kind
    return "directory" if name in _DIRECTORIES else name


def markdown() -> str:
    """The table as docs/reliability.md has it."""
    lines = ["| file | call | when | " + " | ".join(ERRORS) + " | test |"]
    lines.append("|---" * (len(ERRORS) + 4) + "|")
    for row in ROWS:
        cells = [row.promise(error) if error in row.errors else "-" for error in ERRORS]
        test = f"`test_fault[{row.name}]`"
        where = [FILES[row.kind], row.call, ACTIONS[row.action]]
        lines.append("| " + " | ".join([*where, *cells, test]) + " |")
    lines += ["", "The promises:", ""]
    lines += [f"- **{name}**: {text}" for name, text in PROMISES.items()]
    lines += ["", "A dash: the call has no such error.", ""]
    lines += ["Calls that the broker does not make:", ""]
    for kind, name in FILES.items():
        made = {row.call for row in ROWS if row.kind == kind}
        never = [call for call in CALLS if call not in made]
        lines.append(f"- {name}: {', '.join(never)}")
    return "\n".join(lines)


def into(page: str) -> str:
    """The page with the table as it is now."""
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}\n\n{markdown()}\n\n{END}{rest.split(END)[1]}"


def main() -> int:
    """Write the table into the page."""
    path = Path(__file__).resolve().parent.parent / "docs" / "reliability.md"
    path.write_text(into(path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
