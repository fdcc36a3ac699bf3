"""`pyxbroker metadata`: looks after the embedded metadata store of a broker that is stopped.

The work is done by metadata/maintenance.py; here are its words. The commands print sentences, or
with --json one JSON value, on stdout. Exit codes are those of the other commands; `check` ends with
1 when something is not as it should be, `repair` when something still is not.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyxbroker.base.properties import ConfigError
from pyxbroker.cli import Group
from pyxbroker.cli.data_directory import DEFAULT_DATA, DataDirectory, DataDirectoryError
from pyxbroker.settings.config import DEFAULT_METADATA_URL, Config

if TYPE_CHECKING:
    from pyxbroker.metadata.findings import Finding
    from pyxbroker.metadata.maintenance import CopyInfo, RestoreSummary

EPILOG = """\b
Examples:
  pyxbroker metadata check --data /srv/pulsar             is every byte as it was written?
  pyxbroker metadata backup --data /srv/pulsar /backup    a copy of your own
  pyxbroker metadata repair --data /srv/pulsar            what a second source still has
  pyxbroker metadata restore --data /srv/pulsar           anew from a copy and the changes since
"""

SHOWN_LEDGERS_MAX = 20

Command = TypeVar("Command", bound=Callable[..., None])


class Place:
    """The locked data directory whose metadata a command is about."""

    def __init__(self, data: str, url: str) -> None:
        """Raises click.UsageError for a store that is not files, DataDirectoryError."""
        scheme, _, rest = url.partition(":")
        if scheme not in ("embedded", "rocksdb"):
            raise click.UsageError(
                f"The metadata is in {url}, not in files here; use the tools of that store."
            )
        path = Path(data)
        if not path.is_dir():
            raise DataDirectoryError(f"There is no data directory {path.absolute()}.")
        self._lock = DataDirectory(path)
        self.bookie = self._lock.path / "bookie"
        self.directory = self._lock.path / (rest.removeprefix("//") or "metadata")
        self.database = self.directory / "metadata.db"

    def close(self) -> None:
        self._lock.close()


def of_a_place(command: Command) -> Command:
    """Gives a command its options and its locked Place; what goes wrong is one sentence."""

    @click.option(
        "--data",
        metavar="DIR",
        default=DEFAULT_DATA,
        show_default=True,
        help="The data directory.",
    )
    @click.option("--config", "file", metavar="FILE", help="The configuration file of the broker.")
    @click.option("--metadata", "url", metavar="URL", help="Where its store is: embedded:PATH.")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
    @functools.wraps(command)
    def wrapped(data: str, file: str | None, url: str | None, **options: Any) -> None:
        from pyxbroker.bookie.errors import DataError
        from pyxbroker.metadata.store import MetadataError

        overrides = {"metadataStoreUrl": url} if url else {}
        try:
            config = Config.load(Path(file) if file else None, os.environ, overrides)
            place = Place(data, config.metadataStoreUrl or DEFAULT_METADATA_URL)
            try:
                command(place, **options)
            finally:
                place.close()
        except OSError as error:
            what = f"{error.filename} cannot be used: " if error.filename else ""
            _fail(f"{what}{error.strerror or error}.")
        except (ConfigError, DataDirectoryError, DataError, MetadataError) as error:
            _fail(str(error))

    return wrapped  # type: ignore[return-value]


def _fail(sentence: str) -> None:
    click.echo(f"pyxbroker: {sentence.rstrip('.')}.", err=True)
    sys.exit(1)


@click.group(cls=Group, epilog=EPILOG)
def command() -> None:
    """Check, back up, restore and repair the embedded metadata of a broker that is stopped.

    The metadata says which topics there are, which ledgers hold their messages, and where each
    subscription stands. A running broker makes copies of it and a log of all changes since; these
    commands use them.
    """


@command.command()
@of_a_place
def check(place: Place, as_json: bool) -> None:
    """Read every byte of the metadata and say what is not as it was written.

    Changes nothing. Ends with 0 when all is well, with 1 when something is damaged.

    \b
    Example:
      pyxbroker metadata check --data /srv/pulsar
    """
    from pyxbroker.cli.cookies import check_cookie_file
    from pyxbroker.metadata import maintenance
    from pyxbroker.metadata.findings import Finding, Severity

    findings = maintenance.check(place.directory)
    if not findings and not place.database.exists():
        sentence = f"the metadata database {place.database} is missing"
        findings = [Finding(Severity.DAMAGED, place.database, sentence)]
    findings += check_cookie_file(place.bookie)
    if as_json:
        _echo_json({"findings": _plain(findings)})
    else:
        _echo_findings(findings)
        if not findings:
            click.echo(f"The metadata in {place.directory} is as it was written.")
    _exit_by(findings, harmless={"note"})


@command.command()
@of_a_place
def copies(place: Place, as_json: bool) -> None:
    """List the copies that the broker made, the newest first.

    \b
    Example:
      pyxbroker metadata copies --data /srv/pulsar
    """
    from pyxbroker.metadata import maintenance

    found = maintenance.list_copies(place.directory)
    if as_json:
        _echo_json([_plain_copy(each) for each in found])
        return
    for each in found:
        click.echo(f"{each.path}  {_about_copy(each)}")
    if not found:
        click.echo(f"There is no copy of {place.database}.")


@command.command()
@click.argument("to", metavar="[TO]", default=".")
@of_a_place
def backup(place: Place, to: str, as_json: bool) -> None:
    """Write a copy of the metadata to TO, a file or a directory (the current one by default).

    Copy `bookie` as well to have a whole backup; one belongs to the other.

    \b
    Examples:
      pyxbroker metadata backup --data /srv/pulsar
      pyxbroker metadata backup --data /srv/pulsar /backup/monday
    """
    from pyxbroker.metadata import maintenance

    written = maintenance.backup(place.directory, Path(to).absolute())
    if as_json:
        _echo_json({"file": str(written)})
    else:
        click.echo(f"The metadata is in {written}; `pyxbroker metadata restore --copy` reads it.")


@command.command()
@click.option("--copy", metavar="FILE", help="The copy to use; otherwise the newest intact one.")
@click.option(
    "--without-changes",
    is_flag=True,
    help="Leave out what changed since the copy: the state is that of its time.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@of_a_place
def restore(
    place: Place, copy: str | None, without_changes: bool, yes: bool, as_json: bool
) -> None:
    """Build the metadata anew from a copy and from the log of all changes since.

    What was there before stays beside it under another name. Without an intact copy nothing is
    changed.

    \b
    Examples:
      pyxbroker metadata restore --data /srv/pulsar
      pyxbroker metadata restore --data /srv/pulsar --copy /backup/monday --yes
      pyxbroker metadata restore --data /srv/pulsar --without-changes
    """
    from pyxbroker.metadata import maintenance

    if not yes:
        click.confirm(_restore_question(place, copy, without_changes), abort=True, err=True)
    chosen = Path(copy).absolute() if copy else None
    summary = maintenance.restore(place.directory, chosen, not without_changes)
    if as_json:
        _echo_json(_plain_summary(summary))
        return
    _echo_findings(summary.findings)
    for sentence in _about_restore(place, summary):
        click.echo(sentence)


@command.command()
@click.option(
    "--delete-unknown-ledgers",
    is_flag=True,
    help="Give up the messages that the metadata has no place for; the broker frees their space.",
)
@of_a_place
def repair(place: Place, delete_unknown_ledgers: bool, as_json: bool) -> None:
    """Repair what a second source still has, and say what was done.

    The rows of the database come from the copies and the log of changes, the cookie of the bookie
    from its copy in the metadata. Ledgers that are stored and that no metadata names are kept until
    --delete-unknown-ledgers gives them up. Ends with 1 when something stays damaged.

    \b
    Examples:
      pyxbroker metadata repair --data /srv/pulsar
      pyxbroker metadata repair --data /srv/pulsar --delete-unknown-ledgers
    """
    from pyxbroker.cli.cookies import repair_cookie_file
    from pyxbroker.metadata import maintenance

    findings = maintenance.repair(place.directory)
    if place.database.exists():
        findings += repair_cookie_file(place.bookie, place.directory)
    deleted: list[int] = []
    if delete_unknown_ledgers:
        deleted = maintenance.forget_unknown_ledgers(place.directory)
    unknown = maintenance.unknown_ledgers(place.directory)
    if as_json:
        plain = _plain(findings)
        _echo_json({"findings": plain, "deletedLedgers": deleted, "unknownLedgers": unknown})
    else:
        _echo_findings(findings)
        if deleted:
            click.echo(f"{_count(deleted, 'ledger')} given up: {_ids(deleted)}.")
        if unknown:
            click.echo(_unknown_sentence(unknown))
        if not findings:
            click.echo(f"There was nothing to repair in {place.directory}.")
    _exit_by(findings, harmless={"note", "repaired"})


# --- words ------------------------------------------------------------------------------------


def _echo_findings(findings: Iterable[Finding]) -> None:
    for each in findings:
        place = "" if str(each.file) in each.sentence else f"{each.file}: "
        click.echo(f"{each.severity.value}: {place}{each.sentence}")


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
    click.echo(json.dumps(value))


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
