"""`pyxbroker metadata`: looks after the embedded metadata store of a broker that is stopped.

The work is done by metadata/maintenance.py; here are its words. The commands print sentences, or
with --json one JSON value, on stdout. Exit codes are those of the other commands; `check` ends with
1 when something is not as it should be, `repair` when something still is not.
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
Check, back up, restore and repair the embedded metadata of a broker that is
stopped.

The metadata says which topics there are, which ledgers hold their messages,
and where each subscription stands. A running broker makes copies of it and
a log of all changes since; these commands use them.
"""

EXAMPLES = """\
Examples:
  pyxbroker metadata check --data /srv/pulsar             is every byte as it was written?
  pyxbroker metadata backup --data /srv/pulsar /backup    a copy of your own
  pyxbroker metadata repair --data /srv/pulsar            what a second source still has
  pyxbroker metadata restore --data /srv/pulsar           anew from a copy and the changes since
"""

SHOWN_LEDGERS_MAX = 20


class Place:
    """The locked data directory whose metadata a command is about."""

    def __init__(self, data: str, metadata: str) -> None:
        """`metadata` is where in it the store is. Raises DataDirectoryError."""
        path = Path(data)
        if not path.is_dir():
            raise DataDirectoryError(f"There is no data directory {path.absolute()}.")
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
    """The parser of a command, with the options that all of them have."""
    parser = Parser(f"metadata {name}", about, arguments)
    add = parser.options.add_argument
    add("--data", metavar="DIR", default=DEFAULT_DATA, help="The data directory [%(default)s].")
    add("--config", metavar="FILE", help="The configuration file of the broker.")
    add("--metadata", metavar="URL", help="Where its store is: embedded:PATH.")
    add("--json", action="store_true", help="Print one JSON value.")
    return parser


@contextmanager
def _open_place(parser: Parser, options: Namespace) -> Iterator[Place]:
    """The place that the options tell, locked; what goes wrong in it is one sentence."""
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
                f"The metadata is in {url}, not in files here; use the tools of that store."
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
Read every byte of the metadata and say what is not as it was written.

Changes nothing. Ends with 0 when all is well, with 1 when something is damaged.

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
                print(f"The metadata in {place.directory} is as it was written.")
        _exit_by(findings, harmless={"note"})


COPIES = """\
List the copies that the broker made, the newest first.

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
            print(f"There is no copy of {place.database}.")


BACKUP = """\
Write a copy of the metadata to TO.

TO is a file or a directory, the current one when it is left out.

Copy `bookie` as well to have a whole backup; one belongs to the other.

Examples:
  pyxbroker metadata backup --data /srv/pulsar
  pyxbroker metadata backup --data /srv/pulsar /backup/monday
"""


def backup(arguments: Sequence[str]) -> None:
    parser = _parser("backup", BACKUP, "[OPTIONS] [TO]")
    parser.add_argument_group("Arguments").add_argument(
        "to", metavar="TO", nargs="?", default=".", help="Where the copy goes [.]."
    )
    options = parser.parse(arguments)
    to = Path(options.to).absolute()
    if not to.parent.is_dir():
        parser.error(f"there is no directory {to.parent} for the copy")
    with _open_place(parser, options) as place:
        from pyxbroker.metadata import maintenance

        written = maintenance.backup(place.directory, to)
        if options.json:
            _echo_json({"file": str(written)})
        else:
            print(f"The metadata is in {written}; `pyxbroker metadata restore --copy` reads it.")


RESTORE = """\
Build the metadata anew from a copy and from the log of all changes since.

What was there before stays beside it under another name. Without an intact
copy nothing is changed.

Examples:
  pyxbroker metadata restore --data /srv/pulsar
  pyxbroker metadata restore --data /srv/pulsar --copy /backup/monday --yes
  pyxbroker metadata restore --data /srv/pulsar --without-changes
"""


def restore(arguments: Sequence[str]) -> None:
    parser = _parser("restore", RESTORE)
    add = parser.options.add_argument
    add("--copy", metavar="FILE", help="The copy to use; otherwise the newest intact one.")
    add(
        "--without-changes",
        action="store_true",
        help="Leave out what changed since the copy: the state is that of its time.",
    )
    add("--yes", action="store_true", help="Do not ask.")
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
Repair what a second source still has, and say what was done.

The rows of the database come from the copies and the log of changes, the
cookie of the bookie from its copy in the metadata. Ledgers that are stored and
that no metadata names are kept until --delete-unknown-ledgers gives them up.
Ends with 1 when something stays damaged.

Examples:
  pyxbroker metadata repair --data /srv/pulsar
  pyxbroker metadata repair --data /srv/pulsar --delete-unknown-ledgers
"""


def repair(arguments: Sequence[str]) -> None:
    parser = _parser("repair", REPAIR)
    parser.options.add_argument(
        "--delete-unknown-ledgers",
        action="store_true",
        help="Give up the messages that the metadata has no place for; "
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
                print(f"{_count(deleted, 'ledger')} given up: {_ids(deleted)}.")
            if unknown:
                print(_unknown_sentence(unknown))
            if not findings:
                print(f"There was nothing to repair in {place.directory}.")
        _exit_by(findings, harmless={"note", "repaired"})


# The commands, and what their help says, its first line being the summary.
SUBCOMMANDS: dict[str, tuple[Callable[[Sequence[str]], None], str]] = {
    "check": (check, CHECK),
    "copies": (copies, COPIES),
    "backup": (backup, BACKUP),
    "restore": (restore, RESTORE),
    "repair": (repair, REPAIR),
}


# --- words ------------------------------------------------------------------------------------


def _echo_findings(findings: Iterable[Finding]) -> None:
    for each in findings:
        place = "" if str(each.file) in each.sentence else f"{each.file}: "
        print(f"{each.severity.value}: {place}{each.sentence}")


def _exit_by(findings: Iterable[Finding], harmless: set[str]) -> None:
    if any(each.severity.value not in harmless for each in findings):
        sys.exit(1)


def _unknown_sentence(unknown: list[int]) -> str:
    return (
        f"{_count(unknown, 'ledger')} in the storage that no metadata names, kept: {_ids(unknown)};"
        " `pyxbroker metadata repair --delete-unknown-ledgers` gives them up."
    )


def _count(things: list[int], word: str) -> str:
    return f"{len(things)} {word}" + ("" if len(things) == 1 else "s")


def _ids(ledgers: list[int]) -> str:
    shown = ", ".join(map(str, ledgers[:SHOWN_LEDGERS_MAX]))
    return shown + (", ..." if len(ledgers) > SHOWN_LEDGERS_MAX else "")


def _about_copy(copy: CopyInfo) -> str:
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(copy.made_ms / 1000))
    state = "intact" if copy.is_intact else "DAMAGED"
    return f"made {made}, {copy.nodes} nodes, {copy.size_bytes} bytes, {state}"


def _restore_question(place: Place, copy: str | None, without_changes: bool) -> str:
    source = copy if copy else "the newest intact copy"
    changes = (
        ", without any change that came after it"
        if without_changes
        else " and all changes since that are known"
    )
    return (
        f"{place.database} is set aside and made anew from {source}{changes}."
        f" The copies: pyxbroker metadata copies. Go on?"
    )


def _confirm(question: str) -> bool:
    """Asks on stderr, as stdout may be a file of JSON; the end of stdin, or none, is a no."""
    print(f"{question} [y/N]: ", end="", file=sys.stderr, flush=True)
    answer = "" if sys.stdin is None else sys.stdin.readline()
    if not answer:
        print(file=sys.stderr)
    return answer.strip().lower() in ("y", "yes")


def _about_restore(place: Place, summary: RestoreSummary) -> Iterable[str]:
    source = f"the copy {summary.copy}" if summary.copy else "the log of all changes"
    yield (
        f"{place.database} was made from {source} and {summary.changes} changes since:"
        f" {summary.nodes} nodes, {summary.deleted} that were there before are gone."
    )
    if summary.set_aside is not None:
        yield f"What was there before is {summary.set_aside} now."


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
