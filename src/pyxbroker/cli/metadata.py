"""`pyxbroker metadata`: maintenance of the embedded metadata store of a stopped broker.

metadata/maintenance.py does the work; this module has the command line and the texts. The commands
print sentences, or with --json one JSON value, on stdout. In addition to the usual exit codes,
`check` exits with 1 if it finds damage, and `repair` if damage remains.
"""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyxbroker.base.properties import ConfigError
from pyxbroker.cli import Group, Parser, fail
from pyxbroker.cli.data_directory import DEFAULT_DATA, DataDirectory, DataDirectoryError
from pyxbroker.settings.config import DEFAULT_METADATA_URL, Config

if TYPE_CHECKING:
    from pyxbroker.metadata.findings import Finding
    from pyxbroker.metadata.maintenance import CopyInfo, RestoreSummary

ABOUT = """\
Check, back up, restore and repair the embedded metadata of a stopped broker.

The metadata contains the topics, the ledgers with their messages, and the
positions of subscriptions. A running broker writes copies of it and a log of
all changes since; these commands use them.
"""

EXAMPLES = """\
Examples:
  pyxbroker metadata check --data /srv/pulsar             look for damage
  pyxbroker metadata backup --data /srv/pulsar /backup    write a copy elsewhere
  pyxbroker metadata repair --data /srv/pulsar            repair from copies and the change log
  pyxbroker metadata restore --data /srv/pulsar           rebuild from a copy and the change log
"""

SHOWN_LEDGERS_MAX = 20


class Place:
    """The locked data directory whose metadata a command works on."""

    def __init__(self, data: str, metadata: str) -> None:
        """Lock it. `metadata` is the path of the store in it. Raise DataDirectoryError."""
        path = Path(data)
        if not path.is_dir():
            raise DataDirectoryError(f"The data directory {path.absolute()} does not exist.")
        self._lock = DataDirectory(path)
        self.bookie = self._lock.path / "bookie"
        self.directory = self._lock.path / (metadata.removeprefix("//") or "metadata")
        self.database = self.directory / "metadata.db"

    def close(self) -> None:
        self._lock.close()


def command(arguments: Sequence[str]) -> None:
    abouts = {name: about.partition("\n")[0] for name, (_, about) in SUBCOMMANDS.items()}
    name, rest = Group("metadata", ABOUT, abouts, EXAMPLES).choose(arguments)
    run, _ = SUBCOMMANDS[name]
    run(rest)


def _parser(name: str, about: str, arguments: str = "[OPTIONS]") -> Parser:
    """Return the parser of a command, with the common options."""
    parser = Parser(f"metadata {name}", about, arguments)
    add = parser.options.add_argument
    add("--data", metavar="DIR", default=DEFAULT_DATA, help="The data directory [%(default)s].")
    add("--config", metavar="FILE", help="The configuration file of the broker.")
    add("--metadata", metavar="URL", help="The metadata store: embedded:PATH.")
    add("--json", action="store_true", help="Print one JSON value.")
    return parser


@contextmanager
def _open_place(parser: Parser, options: Namespace) -> Iterator[Place]:
    """Lock and yield the place that the options name; exit with one sentence on an error."""
    from pyxbroker.bookie.errors import DataError
    from pyxbroker.metadata.store import MetadataError

    overrides = {"metadataStoreUrl": options.metadata} if options.metadata else {}
    try:
        file = Path(options.config) if options.config else None
        config = Config.load(file, os.environ, overrides)
        url = config.metadataStoreUrl or DEFAULT_METADATA_URL
        scheme, _, metadata = url.partition(":")
        if scheme not in ("embedded", "rocksdb"):
            parser.error(
                f"The metadata is in {url}, not in local files; use the tools of that store."
            )
        place = Place(options.data, metadata)
        try:
            yield place
        finally:
            place.close()
    except OSError as error:
        what = f"{error.filename} cannot be used: " if error.filename else ""
        fail(f"{what}{error.strerror or error}.")
    except (ConfigError, DataDirectoryError, DataError, MetadataError) as error:
        fail(str(error))


CHECK = """\
Read all of the metadata and report damage.

Changes nothing. Exits with 0 if there is no damage, otherwise with 1.

Example:
  pyxbroker metadata check --data /srv/pulsar
"""


def check(arguments: Sequence[str]) -> None:
    parser = _parser("check", CHECK)
    options = parser.parse(arguments)
    with _open_place(parser, options) as place:
        from pyxbroker.cli.cookies import check_cookie_file
        from pyxbroker.metadata import maintenance
        from pyxbroker.metadata.findings import Finding, Severity

        findings = maintenance.check(place.directory)
        if not findings and not place.database.exists():
            sentence = f"the metadata database {place.database} is missing"
            findings = [Finding(Severity.DAMAGED, place.database, sentence)]
        findings += check_cookie_file(place.bookie)
        if options.json:
            _echo_json({"findings": _plain(findings)})
        else:
            _echo_findings(findings)
            if not findings:
                print(f"The metadata in {place.directory} is undamaged.")
        _exit_by(findings, harmless={"note"})


COPIES = """\
List the copies that the broker has written, the newest first.

Example:
  pyxbroker metadata copies --data /srv/pulsar
"""


def copies(arguments: Sequence[str]) -> None:
    parser = _parser("copies", COPIES)
    options = parser.parse(arguments)
    with _open_place(parser, options) as place:
        from pyxbroker.metadata import maintenance

        found = maintenance.list_copies(place.directory)
        if options.json:
            _echo_json([_plain_copy(each) for each in found])
            return
        for each in found:
            print(f"{each.path}  {_about_copy(each)}")
        if not found:
            print(f"There are no copies of {place.database}.")


BACKUP = """\
Write a copy of the metadata to TO.

TO is a file or a directory; the default is the current directory.

Messages are not in it: `pyxbroker backup create` copies everything.

Examples:
  pyxbroker metadata backup --data /srv/pulsar
  pyxbroker metadata backup --data /srv/pulsar /backup/monday
"""


def backup(arguments: Sequence[str]) -> None:
    parser = _parser("backup", BACKUP, "[OPTIONS] [TO]")
    parser.add_argument(
        "to", metavar="TO", nargs="?", default=".", help="File or directory of the copy [.]."
    )
    options = parser.parse(arguments)
    to = Path(options.to).absolute()
    if not to.parent.is_dir():
        parser.error(f"the directory {to.parent} for the copy does not exist")
    with _open_place(parser, options) as place:
        from pyxbroker.metadata import maintenance

        written = maintenance.backup(place.directory, to)
        if options.json:
            _echo_json({"file": str(written)})
        else:
            print(f"Written to {written}; `pyxbroker metadata restore --copy` reads it.")


RESTORE = """\
Rebuild the metadata from a copy and the log of all changes since.

The previous metadata is kept next to it under another name. Without an intact
copy, nothing is changed.

Examples:
  pyxbroker metadata restore --data /srv/pulsar
  pyxbroker metadata restore --data /srv/pulsar --copy /backup/monday --yes
  pyxbroker metadata restore --data /srv/pulsar --without-changes
"""


def restore(arguments: Sequence[str]) -> None:
    parser = _parser("restore", RESTORE)
    add = parser.options.add_argument
    add("--copy", metavar="FILE", help="The copy to use [the newest intact one].")
    add(
        "--without-changes",
        action="store_true",
        help="Ignore the changes since the copy.",
    )
    add("--yes", action="store_true", help="Do not ask for confirmation.")
    options = parser.parse(arguments)
    with _open_place(parser, options) as place:
        from pyxbroker.metadata import maintenance

        question = _restore_question(place, options.copy, options.without_changes)
        if not (options.yes or _confirm(question)):
            fail("Nothing was changed.")
        chosen = Path(options.copy).absolute() if options.copy else None
        summary = maintenance.restore(place.directory, chosen, not options.without_changes)
        if options.json:
            _echo_json(_plain_summary(summary))
            return
        _echo_findings(summary.findings)
        for sentence in _about_restore(place, summary):
            print(sentence)


REPAIR = """\
Repair the metadata from its copies, and report what was repaired.

Rows of the database come from the copies and the log of changes, the cookie of
the bookie from its copy in the metadata. Stored ledgers that are unknown to the
metadata stay until --delete-unknown-ledgers deletes them. Exits with 1 if
damage remains.

Examples:
  pyxbroker metadata repair --data /srv/pulsar
  pyxbroker metadata repair --data /srv/pulsar --delete-unknown-ledgers
"""


def repair(arguments: Sequence[str]) -> None:
    parser = _parser("repair", REPAIR)
    parser.options.add_argument(
        "--delete-unknown-ledgers",
        action="store_true",
        help="Delete stored messages that are unknown to the metadata; "
        "the broker frees their space.",
    )
    options = parser.parse(arguments)
    with _open_place(parser, options) as place:
        from pyxbroker.cli.cookies import repair_cookie_file
        from pyxbroker.metadata import maintenance

        findings = maintenance.repair(place.directory)
        if place.database.exists():
            findings += repair_cookie_file(place.bookie, place.directory)
        deleted: list[int] = []
        if options.delete_unknown_ledgers:
            deleted = maintenance.forget_unknown_ledgers(place.directory)
        unknown = maintenance.unknown_ledgers(place.directory)
        if options.json:
            plain = _plain(findings)
            _echo_json({"findings": plain, "deletedLedgers": deleted, "unknownLedgers": unknown})
        else:
            _echo_findings(findings)
            if deleted:
                print(f"{_count(deleted, 'ledger')} marked for deletion: {_ids(deleted)}.")
            if unknown:
                print(_unknown_sentence(unknown))
            if not findings:
                print(f"Nothing to repair in {place.directory}.")
        _exit_by(findings, harmless={"note", "repaired"})


# The commands, with their help texts. The first line of a text is its summary.
SUBCOMMANDS: dict[str, tuple[Callable[[Sequence[str]], None], str]] = {
    "check": (check, CHECK),
    "copies": (copies, COPIES),
    "backup": (backup, BACKUP),
    "restore": (restore, RESTORE),
    "repair": (repair, REPAIR),
}


# --- texts ------------------------------------------------------------------------------------


def _echo_findings(findings: Iterable[Finding]) -> None:
    for each in findings:
        place = "" if str(each.file) in each.sentence else f"{each.file}: "
        print(f"{each.severity.value}: {place}{each.sentence}")


def _exit_by(findings: Iterable[Finding], harmless: set[str]) -> None:
    if any(each.severity.value not in harmless for each in findings):
        sys.exit(1)


def _unknown_sentence(unknown: list[int]) -> str:
    return (
        f"{_count(unknown, 'ledger')} in the storage unknown to the metadata, kept:"
        f" {_ids(unknown)}; `pyxbroker metadata repair --delete-unknown-ledgers` deletes them."
    )


def _count(things: list[int], word: str) -> str:
    return f"{len(things)} {word}" + ("" if len(things) == 1 else "s")


def _ids(ledgers: list[int]) -> str:
    shown = ", ".join(map(str, ledgers[:SHOWN_LEDGERS_MAX]))
    return shown + (", ..." if len(ledgers) > SHOWN_LEDGERS_MAX else "")


def _about_copy(copy: CopyInfo) -> str:
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(copy.made_ms / 1000))
    state = "intact" if copy.is_intact else "DAMAGED"
    return f"written {made}, {copy.nodes} nodes, {copy.size_bytes} bytes, {state}"


def _restore_question(place: Place, copy: str | None, without_changes: bool) -> str:
    source = copy if copy else "the newest intact copy"
    changes = (
        ", without the changes since that copy"
        if without_changes
        else " and all known changes since"
    )
    return (
        f"This moves {place.database} aside and rebuilds it from {source}{changes}."
        f" `pyxbroker metadata copies` lists the copies. Continue?"
    )


def _confirm(question: str) -> bool:
    """Ask on stderr, because stdout may be used for JSON. Without stdin, the answer is no."""
    print(f"{question} [y/N]: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        print(file=sys.stderr)
    return answer.strip().lower() in ("y", "yes")


def _about_restore(place: Place, summary: RestoreSummary) -> Iterable[str]:
    source = f"the copy {summary.copy}" if summary.copy else "the log of all changes"
    yield (
        f"{place.database} was rebuilt from {source} and {summary.changes} changes since:"
        f" {summary.nodes} nodes. Nodes of the previous metadata that are gone: {summary.deleted}."
    )
    if summary.set_aside is not None:
        yield f"The previous metadata is now in {summary.set_aside}."


# --- JSON -------------------------------------------------------------------------------------


def _echo_json(value: object) -> None:
    print(json.dumps(value))


def _plain(findings: Iterable[Finding]) -> list[dict[str, str]]:
    return [
        {"severity": each.severity.value, "file": str(each.file), "sentence": each.sentence}
        for each in findings
    ]


def _plain_copy(copy: CopyInfo) -> dict[str, object]:
    return {
        "file": str(copy.path),
        "number": copy.number,
        "madeMs": copy.made_ms,
        "transaction": copy.transaction,
        "nodes": copy.nodes,
        "sizeBytes": copy.size_bytes,
        "intact": copy.is_intact,
    }


def _plain_summary(summary: RestoreSummary) -> dict[str, object]:
    return {
        "copy": str(summary.copy) if summary.copy else None,
        "nodes": summary.nodes,
        "changes": summary.changes,
        "deleted": summary.deleted,
        "setAside": str(summary.set_aside) if summary.set_aside else None,
        "findings": _plain(summary.findings),
    }
