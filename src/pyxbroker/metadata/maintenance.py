"""What `pyxbroker metadata` does to an embedded store that is not open: check, back up, restore,
repair.

`directory` is always the store's own (`<data>/metadata`); its copies and change logs are beside it,
in `<data>/metadata.copies`. The caller holds the lock of the data directory: none of this may run
beside a broker. All of it blocks. What a broker repairs by itself when it starts (docs/metadata.md)
is repaired here by the same functions.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyxbroker.base.directories import DIRECTORY_MODE, make_directory
from pyxbroker.metadata import database, paths, salvage
from pyxbroker.metadata.change_log import (
    ABSENT,
    CONTINUES,
    COUNTER,
    NODE,
    Change,
    encode_record,
    read_file,
)
from pyxbroker.metadata.copies import (
    Copies,
    CopyWriter,
    Recorded,
    State,
    is_whole,
    read_copy,
    write_copy,
)
from pyxbroker.metadata.copy_settings import CopySettings
from pyxbroker.metadata.database import explain, finish_swap
from pyxbroker.metadata.embedded import DATABASE_NAME
from pyxbroker.metadata.embedded_tree import Operation, Tree
from pyxbroker.metadata.findings import Finding, Severity
from pyxbroker.metadata.opening import SESSION_STEP, Opening, begin_log, new_head
from pyxbroker.metadata.store import CorruptStore, MetadataError, NoSpace
from pyxbroker.metadata.upkeep import Upkeep


@dataclass(frozen=True, slots=True)
class CopyInfo:
    """One copy: its file, when it was finished, how far it goes, and whether it can be used."""

    path: Path
    number: int
    made_ms: int  # since 1970
    transaction: int
    nodes: int
    size_bytes: int
    is_intact: bool


@dataclass(frozen=True, slots=True)
class RestoreSummary:
    """What a restore brought back."""

    copy: Path | None  # None: there was none, the change logs began with the store
    nodes: int
    changes: int  # transactions of the change logs that were applied after the copy
    deleted: int  # nodes that were there before and are not any more
    set_aside: Path | None  # the database that was there before, kept beside the new one
    findings: list[Finding]


def list_copies(directory: Path) -> list[CopyInfo]:
    """The copies of the store, the newest first. Reads each of them from end to end."""
    copies = _copies(directory)
    return [_info(copies.copy_path(number), number) for number in reversed(copies.numbers()[0])]


def _info(path: Path, number: int) -> CopyInfo:
    with _explained(path):
        status = path.stat()
        try:
            content = read_file(path)
        except CorruptStore:
            return CopyInfo(path, number, int(status.st_mtime * 1000), 0, 0, status.st_size, False)
        is_intact = is_whole(content)
        end = content.records[-1] if content.records else None
        nodes = end.changes if end is not None and is_intact else 0
        transaction = end.transaction if end is not None else 0
        made_ms = int(status.st_mtime * 1000)
        return CopyInfo(path, number, made_ms, transaction, nodes, status.st_size, is_intact)


def check(directory: Path) -> list[Finding]:
    """Looks at every byte of the database, its log, the copies and the change logs.

    Reads only: what SQLite would change, the database and its log, is looked at as a copy in the
    directory for temporary files. An empty list: nothing is wrong. Raises Unavailable when a file
    cannot be read, and NoSpace when there is no room for that copy.
    """
    path = directory / DATABASE_NAME
    copies = _copies(directory)
    if not directory.exists() and not copies.folder.exists():
        return []
    with (
        _explained(path),
        _room_explained(path),
        tempfile.TemporaryDirectory(prefix="pyxbroker-") as temporary,
    ):
        place = Path(temporary) / directory.name
        recorded = _look_at_records(copies)  # first, so that an error has the file's own name
        _lay_out(path, copies, place)
        findings = [_elsewhere(each, place, directory) for each in _look(place)] + recorded
        return list({each.sentence: each for each in findings}.values())


@contextmanager
def _room_explained(path: Path) -> Iterator[None]:
    """A check writes nowhere else, so a full disk is that of the directory for temporary files."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if not isinstance(explain(path, error), NoSpace):
            raise
        raise NoSpace(
            f"the temporary directory {tempfile.gettempdir()} has no room for a copy of {path},"
            " which a check needs; the environment variable TMPDIR names another directory"
        ) from error


def _lay_out(path: Path, copies: Copies, place: Path) -> None:
    """Copies what SQLite would change to `place`; copies and change logs are read where they are.

    The database may be one that `database.build` made, whose swap was not finished.
    """
    place.mkdir(DIRECTORY_MODE)
    for suffix in ("", "-wal", "-journal", ".new"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            shutil.copyfile(file, place / file.name)
    if not copies.folder.exists():
        return
    folder = place.with_name(copies.folder.name)
    folder.mkdir(DIRECTORY_MODE)
    numbers, logs = copies.numbers()
    files = [copies.copy_path(number) for number in numbers]
    for file in [*files, *(copies.log_path(number) for number in logs)]:
        (folder / file.name).symlink_to(file.absolute())


def _look(place: Path) -> list[Finding]:
    path = place / DATABASE_NAME
    opening = Opening(path, _copies(place))
    try:
        opening.look(is_check=True)
        if opening.reason is None:
            return opening.findings
        merged, _ = opening.plan()
        sentence = (
            f"the metadata database {path} is damaged ({opening.reason}); a start, or `pyxbroker"
            f" metadata repair`, builds it anew: {merged.summary()}"
        )
    except MetadataError as error:
        sentence = str(error)
    finally:
        opening.close_database()
        if opening.log is not None:
            opening.log.close()
    return [*opening.findings, Finding(Severity.DAMAGED, path, sentence)]


def _look_at_records(copies: Copies) -> list[Finding]:
    findings = []
    for kind, numbers in zip((copies.copy_path, copies.log_path), copies.numbers(), strict=True):
        for number in numbers:
            file = kind(number)
            try:
                content = read_file(file)
            except MetadataError as error:
                findings.append(Finding(Severity.DAMAGED, file, str(error)))
                continue
            if content.damaged or (kind == copies.copy_path and not is_whole(content)):
                findings.append(Finding(Severity.DAMAGED, file, f"{file} is damaged"))
    return findings


def _elsewhere(finding: Finding, place: Path, directory: Path) -> Finding:
    """A finding of the files that were looked at, told of those that they are copies of."""
    severity, file, sentence = finding
    here, there = str(place), str(directory)
    return Finding(severity, Path(str(file).replace(here, there)), sentence.replace(here, there))


def backup(directory: Path, to: Path) -> Path:
    """Writes a copy of the store into `to`: a file, or a directory that gets a file with a name
    of its own. Returns the file, which is durable. Raises MetadataError.
    """
    if to.is_dir():
        to = to / time.strftime("metadata-%Y%m%dT%H%M%SZ.copy", time.gmtime())
    with _opened(directory) as tree:
        writer = CopyWriter(to, new_head(0, 0, tree.store_id, tree.transaction))
        try:
            for changes in tree.slices():
                writer.add(changes)
            writer.finish(tree.transaction)
        except BaseException:
            writer.abandon()
            raise
    return to


def restore(directory: Path, copy: Path | None = None, with_changes: bool = True) -> RestoreSummary:
    """Builds the database from a copy: that of `copy`, or the newest one that is intact.

    With `with_changes` the change logs since that copy are applied, so that nothing is lost;
    without, the store is what it was when the copy was made. `copy` may also be a file of
    `backup()`, which has no change logs of its own. The database that was there stays beside it
    under another name. Raises MetadataError and changes nothing when there is no copy that can be
    used.

    It goes forward: the difference to what was there before becomes one more transaction of the
    change logs, so copies from before it can still be restored. Counters are never set back, since
    that would give the number of a ledger twice. Nodes that are gone by this were not deleted by
    anybody: garbage collection keeps their ledgers.
    """
    path = directory / DATABASE_NAME
    copies = _copies(directory)
    with _explained(path):
        wanted, store_id = _wanted(copies, copy, with_changes)
        known = copies.load()
        before = _current(path, known)
        last = max(wanted.state.transaction, before.transaction, known.state.transaction)
        transaction = last + SESSION_STEP
        changes = _difference(wanted.state, before, transaction)
        state = State()
        state.apply(before.nodes.values())
        state.apply(changes)
        state.transaction = transaction
        _write_records(copies, store_id, known.is_complete, changes, state)
        make_directory(directory)
        database.build(path, state.changes(), store_id)
        aside = finish_swap(path, "before-restore")
        deleted = sum(change.kind == ABSENT for change in changes)
        return RestoreSummary(
            wanted.copy, state.live(), wanted.changes, deleted, aside, wanted.findings
        )


def _wanted(copies: Copies, copy: Path | None, with_changes: bool) -> tuple[Recorded, bytes]:
    """What is to be restored, and the id of the store."""
    if copy is not None and copy.absolute().parent != copies.folder.absolute():
        head, state = read_copy(copy)
        known = _store_id(copies)
        return Recorded(state, True, copy), known or head.store_id
    number = None if copy is None else int(copy.name.partition(".")[0])
    wanted = copies.load(number, with_changes)
    if not wanted.state.nodes or (wanted.copy is None and not with_changes):
        found = "; ".join(each.sentence for each in wanted.findings) or "there is none"
        raise MetadataError(f"no copy in {copies.folder} can be restored: {found}")
    store_id = _store_id(copies)
    assert store_id is not None, "a file with an intact head was just read"
    return wanted, store_id


def _store_id(copies: Copies) -> bytes | None:
    numbers, logs = copies.numbers()
    files = [copies.log_path(number) for number in logs]
    for file in [*files, *(copies.copy_path(number) for number in numbers)]:
        try:
            return read_file(file).head.store_id
        except CorruptStore:
            continue
    return None


def _current(path: Path, known: Recorded) -> State:
    """What there was before, as far as it can be told, from the records and the database."""
    state = State()
    state.apply(known.state.nodes.values())
    state.apply(known.state.counters.values())
    if not path.exists():
        return state
    connection = None
    try:
        connection = database.connect(path)
        if database.schema_of(connection) == database.SCHEMA:
            found = salvage.read_rows(connection, database.FORMAT_VERSION)
            state.apply(found.state.nodes.values())
            state.apply(found.state.counters.values())
    except sqlite3.DatabaseError as error:
        if not isinstance(explain(path, error), CorruptStore):
            raise
    finally:
        if connection is not None:
            connection.close()
    return state


def _difference(wanted: State, before: State, transaction: int) -> list[Change]:
    changes = [
        change._replace(transaction=transaction)
        for change in wanted.nodes.values()
        if change.kind == NODE
    ]
    there = {change.path for change in changes}
    changes += [
        Change(ABSENT, path, transaction)
        for path, change in before.nodes.items()
        if change.kind == NODE and path not in there
    ]
    numbers: dict[str, int] = {}
    for state in (wanted, before):
        for path, counter in state.counters.items():
            if counter.kind == COUNTER and path in there:
                numbers[path] = max(numbers.get(path, 0), counter.version)
    changes += [Change(COUNTER, path, transaction, number) for path, number in numbers.items()]
    return changes


def _write_records(
    copies: Copies, store_id: bytes, is_complete: bool, changes: list[Change], state: State
) -> None:
    """The restored state as the next change log and copy. From then on a start finishes it."""
    numbers, logs = copies.numbers()
    number = max([0, *numbers, *logs]) + 1
    flags = CONTINUES if is_complete else 0
    log = begin_log(copies, number, flags, store_id, state.transaction, changes)
    try:
        # What the database is compared with is the last record.
        log.append(encode_record(log.head.seed, state.transaction, [state.nodes["/"]]))
        log.sync()
        write_copy(copies.copy_path(number), log.head, state)
    finally:
        log.close()


def repair(directory: Path) -> list[Finding]:
    """Does what a start would do, and more: looks at everything however large, repairs what a
    second source has, and makes a new copy. Returns what was found, each with what was done.

    Raises CorruptStore when neither the database nor the copies can be used.
    """
    with _opened(directory, keep_rest=True) as tree:
        Upkeep(tree, CopySettings()).do_everything()
        return tree.findings


def unknown_ledgers(directory: Path) -> list[int]:
    """Ledgers that garbage collection found in the storage, and whose deletion nobody knows of."""
    with _opened(directory) as tree:
        return _ledger_ids(tree.unknown())


def forget_unknown_ledgers(directory: Path, ledger_ids: Iterable[int] | None = None) -> list[int]:
    """Records these ledgers (all of `unknown_ledgers()`) as deleted; the next garbage collection
    frees their space. Returns those that were recorded: none that has metadata.
    """
    with _opened(directory) as tree:
        if ledger_ids is None:
            ledger_ids = _ledger_ids(tree.unknown())
        wanted = [paths.ledger(each) for each in ledger_ids]
        gone = _apply(tree, tree.note_deleted, wanted)
        remaining = set(tree.unknown()).difference(gone)
        _apply(tree, tree.set_unknown, sorted(remaining))
        return _ledger_ids(gone)


def _ledger_ids(names: Iterable[str]) -> list[int]:
    found = (paths.ledger_id(name) for name in names)
    return sorted(each for each in found if each is not None)


def _copies(directory: Path) -> Copies:
    return Copies(directory.with_name(f"{directory.name}.copies"))


def _apply(tree: Tree, operation: Callable[..., Any], *arguments: object) -> Any:
    """One operation as a transaction of its own. Raises MetadataError."""
    waiter: Any = None
    (result,), _ = tree.transact([Operation(operation, arguments, waiter)])
    if isinstance(result, MetadataError):
        raise result
    return result


@contextmanager
def _opened(directory: Path, keep_rest: bool = False) -> Iterator[Tree]:
    path = directory / DATABASE_NAME
    copies = _copies(directory)
    if not path.exists() and not any(copies.numbers()):
        raise MetadataError(f"there is no metadata in {directory}")
    tree = Tree(path)
    with _explained(path):
        tree.open(keep_rest)
        try:
            yield tree
        finally:
            tree.close()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise explain(path, error) from error
