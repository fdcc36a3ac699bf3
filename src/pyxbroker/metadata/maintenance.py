"""The operations of `pyxbroker metadata` on a closed store: check, back up, restore, repair.

`directory` is always the store's own (`<data>/metadata`); its copies and change logs are in
`<data>/metadata.copies`. The caller holds the lock of the data directory, so that no broker runs
meanwhile. All functions block. The functions with which a broker repairs its store at startup
(docs/metadata.md) are used here, too.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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

EXPORT_ATTEMPTS_MAX = 5
EXPORT_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class CopyInfo:
    """One copy: its file, completion time, last transaction, and whether it is usable."""

    path: Path
    number: int
    made_ms: int  # since 1970
    transaction: int
    nodes: int
    size_bytes: int
    is_intact: bool


@dataclass(frozen=True, slots=True)
class RestoreSummary:
    """The result of a restore."""

    copy: Path | None  # None: there was none, but the change logs begin with the store
    nodes: int
    changes: int  # transactions of the change logs that were applied after the copy
    deleted: int  # nodes that existed before and no longer do
    set_aside: Path | None  # the previous database, which stays next to the new one
    findings: list[Finding]


def list_copies(directory: Path) -> list[CopyInfo]:
    """Return the copies of the store, newest first. Reads each of them completely."""
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
    """Check every byte of the database, its log, the copies and the change logs.

    Read-only: the database and its log, which SQLite would change, are copied to the directory for
    temporary files first. An empty list means that nothing is wrong. Raises Unavailable if a file
    cannot be read, and NoSpace if there is no room for that copy.
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
        recorded = _check_records(copies)  # first, so that an error names the original file
        _copy_for_check(path, copies, place)
        findings = [_relocated(each, place, directory) for each in _inspect(place)] + recorded
        return list({each.sentence: each for each in findings}.values())


@contextmanager
def _room_explained(path: Path) -> Iterator[None]:
    """Explain a full disk: a check writes only to the directory for temporary files."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if not isinstance(explain(path, error), NoSpace):
            raise
        raise NoSpace(
            f"the temporary directory {tempfile.gettempdir()} has no room for a copy of {path},"
            " which a check needs; the environment variable TMPDIR names another directory"
        ) from error


def _copy_for_check(path: Path, copies: Copies, place: Path) -> None:
    """Copy to `place` what SQLite would change; link copies and change logs, which are only read.

    The swap of a database that `database.build` made may still be incomplete.
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


def _inspect(place: Path) -> list[Finding]:
    path = place / DATABASE_NAME
    opening = Opening(path, _copies(place))
    try:
        opening.inspect(is_check=True)
        if opening.reason is None:
            return opening.findings
        merged, _ = opening.plan()
        sentence = (
            f"the metadata database {path} is damaged ({opening.reason}); a start, or `pyxbroker"
            f" metadata repair`, rebuilds it: {merged.summary()}"
        )
    except MetadataError as error:
        sentence = str(error)
    finally:
        opening.close_database()
        if opening.log is not None:
            opening.log.close()
    return [*opening.findings, Finding(Severity.DAMAGED, path, sentence)]


def _check_records(copies: Copies) -> list[Finding]:
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


def _relocated(finding: Finding, place: Path, directory: Path) -> Finding:
    """Translate a finding about the copied files to the original files."""
    severity, file, sentence = finding
    here, there = str(place), str(directory)
    return Finding(severity, Path(str(file).replace(here, there)), sentence.replace(here, there))


def backup(directory: Path, to: Path) -> Path:
    """Write a copy of the store to `to`: a file, or a directory that gets a file with a generated
    name. Returns the file, which is durable. Raises MetadataError.
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


def export(folder: Path, transaction: int, to: Path) -> bytes:
    """Write the state after a transaction, as the copies and change logs in `folder` have it, to
    the file `to`. Return the id of the store. A broker may use the store meanwhile.

    Raises MetadataError if they do not have all of that state, and OSError.
    """
    copies = Copies(folder)
    for attempt in range(EXPORT_ATTEMPTS_MAX):
        if attempt:
            time.sleep(EXPORT_PAUSE_S)
        # A record that is being appended, and a copy that is being removed, look like damage.
        recorded = copies.load(until=transaction)
        if recorded.is_complete:
            break
    else:
        found = "; ".join(each.sentence for each in recorded.findings) or "the files have a gap"
        raise MetadataError(f"the copies and change logs in {folder} are incomplete: {found}")
    store_id = _store_id(copies)
    assert store_id is not None, "no file with an intact header, although one was just read"
    recorded.state.transaction = transaction
    write_copy(to, new_head(0, 0, store_id, transaction), recorded.state)
    return store_id


def create(directory: Path, copy: Path, changed: Mapping[str, bytes]) -> None:
    """Create a store of its own from a copy, in a directory that does not exist.

    `changed` are the new values of some nodes. Unlike `restore`, the store has another id, and the
    recorded deletions are those of the copy. Raises MetadataError.
    """
    path = directory / DATABASE_NAME
    copies = _copies(directory)
    with _explained(path):
        _, state = read_copy(copy)
        state.transaction += SESSION_STEP
        now_ms = time.time_ns() // 1_000_000
        for name, value in changed.items():
            node = state.nodes.get(name, Change(NODE, name, 0, -1, now_ms))
            state.nodes[name] = Change(
                *(NODE, name, state.transaction, node.version + 1, node.created_ms, now_ms, value)
            )
        store_id = os.urandom(16)
        log = begin_log(copies, 1, 0, store_id, state.transaction, [state.nodes["/"]])
        log.close()
        write_copy(copies.copy_path(1), log.head, state)
        make_directory(directory)
        database.make(path, path, state.changes(), store_id)


def restore(directory: Path, copy: Path | None = None, with_changes: bool = True) -> RestoreSummary:
    """Build the database from `copy`, or from the newest intact copy.

    With `with_changes` the change logs since that copy are applied, so that nothing is lost;
    without, the store returns to the state of the copy. `copy` may also be a file of `backup()`,
    which has no change logs. The previous database stays next to the new one under another name.
    Raises MetadataError and changes nothing if there is no usable copy.

    The difference to the previous state becomes one more transaction of the change logs, so earlier
    copies can still be restored. Counters are never set back, since that would allocate a ledger id
    twice. Nodes that disappear by a restore were not deleted by a client, so garbage collection
    retains their ledgers.
    """
    path = directory / DATABASE_NAME
    copies = _copies(directory)
    with _explained(path):
        wanted, store_id = _select(copies, copy, with_changes)
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


def _select(copies: Copies, copy: Path | None, with_changes: bool) -> tuple[Recorded, bytes]:
    """Return the state to restore, and the id of the store."""
    if copy is not None and copy.absolute().parent != copies.folder.absolute():
        head, state = read_copy(copy)
        known = _store_id(copies)
        return Recorded(state, True, copy), known or head.store_id
    number = None if copy is None else int(copy.name.partition(".")[0])
    wanted = copies.load(number, with_changes)
    if not wanted.state.nodes or (wanted.copy is None and not with_changes):
        found = "; ".join(each.sentence for each in wanted.findings) or "no copy exists"
        raise MetadataError(f"no copy in {copies.folder} can be restored: {found}")
    store_id = _store_id(copies)
    assert store_id is not None, "no file with an intact header, although one was just read"
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
    """Return the previous state, as far as the records and the database contain it."""
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
    """Write the restored state as the next change log and copy. A start could complete it then."""
    numbers, logs = copies.numbers()
    number = max([0, *numbers, *logs]) + 1
    flags = CONTINUES if is_complete else 0
    log = begin_log(copies, number, flags, store_id, state.transaction, changes)
    try:
        # The database is compared with the last record.
        log.append(encode_record(log.head.seed, state.transaction, [state.nodes["/"]]))
        log.sync()
        write_copy(copies.copy_path(number), log.head, state)
    finally:
        log.close()


def repair(directory: Path) -> list[Finding]:
    """Repair the store like a start, but check everything whatever its size, and make a new copy.

    Returns the findings, each with the action taken. Raises CorruptStore if neither the database
    nor the copies are usable.
    """
    with _opened(directory, accept_loss=True) as tree:
        Upkeep(tree, CopySettings()).do_everything()
        return tree.findings


def unknown_ledgers(directory: Path) -> list[int]:
    """Return ledgers in the storage that have neither metadata nor a recorded deletion."""
    with _opened(directory) as tree:
        return _ledger_ids(tree.unknown())


def forget_unknown_ledgers(directory: Path, ledger_ids: Iterable[int] | None = None) -> list[int]:
    """Record the given ledgers (by default all of `unknown_ledgers()`) as deleted, so that the
    next garbage collection frees their space. Returns those recorded: none that has metadata.
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
    """Run one operation as a transaction of its own. Raises MetadataError."""
    waiter: Any = None
    (result,), _ = tree.transact([Operation(operation, arguments, waiter)])
    if isinstance(result, MetadataError):
        raise result
    return result


@contextmanager
def _opened(directory: Path, accept_loss: bool = False) -> Iterator[Tree]:
    path = directory / DATABASE_NAME
    copies = _copies(directory)
    if not path.exists() and not any(copies.numbers()):
        raise MetadataError(f"there is no metadata in {directory}")
    tree = Tree(path)
    with _explained(path):
        tree.open(accept_loss)
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
