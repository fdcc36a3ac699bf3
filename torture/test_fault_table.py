"""Causes every error of the fault table in a real broker, and holds it to the row's promise."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from harness.errors import KINDS, build_errors

from torture import fault_table
from torture.fault_table import ROWS, STARTS, Row, matches
from torture.log_judge import Output
from torture.stage import DELETED, OLD, REST, Pristine, Stage, make_pristine

pytestmark = pytest.mark.slow

WINDOW_S = 0.5
LASTING = ("EIO for a while", "ENOSPC", "EDQUOT")
MET_S = 8.0
SLOW_MS = 2000
LINES_MAX = 60


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_errors(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Pristine:
    return make_pristine(tmp_path_factory.mktemp("pristine"))


@pytest.fixture
def stage(tmp_path: Path, library: Path, pristine: Pristine) -> Iterator[Stage]:
    made = Stage(tmp_path, library, pristine)
    yield made
    made.close()


def begin(stage: Stage, row: Row, error: str) -> int:
    """Put one error of a row in force; returns the number of its rule."""
    stage.errors.forget()
    if error == "short":
        return stage.errors.rule(row.kind, row.call, bytes_max=1000)
    if error == "slow":
        return stage.errors.rule(row.kind, row.call, delay_ms=SLOW_MS, hits_max=1)
    hits_max = 1 if error == "EIO once" else 0
    return stage.errors.rule(row.kind, row.call, error=error.split()[0], hits_max=hits_max)


async def end_in_time(stage: Stage, rule: int, error: str) -> bool:
    """Whether it was met; what lasts for a while ends that long after it was met first."""
    met = await stage.wait_for(lambda: stage.errors.hits(rule) > 0, MET_S)
    if met and error in LASTING:
        await asyncio.sleep(WINDOW_S)
        stage.errors.clear(rule)
    return met


# --- what makes a broker do each call -------------------------------------------------------------


async def publish(stage: Stage) -> None:
    await stage.send(20, stall_s=4)


async def flush(stage: Stage) -> None:
    await stage.send(800, 10_000, stall_s=4)


async def next_journal(stage: Stage) -> None:
    await stage.send(900, 50_000, stall_s=4)


async def read(stage: Stage) -> None:
    await stage.read_all([OLD] if OLD in stage.sent else None, idle_s=3)


async def delete(stage: Stage) -> None:
    # Of three large topics the one in the middle has an entry log that goes as a whole.
    await stage.send(700, 10_000)
    await stage.send(2000, 10_000)
    first = stage.topic
    await stage.send(700, 10_000)
    for topic in (DELETED[0], first):
        if stage.sent.pop(topic, None) is None:
            continue
        status, answer = await stage.rest("DELETE", f"{REST}/{topic}?force=true")
        assert status < 300, f"a deletion is refused: {status} {answer}"


async def create(stage: Stage) -> None:
    await stage.create_topics(1)


async def fold(stage: Stage) -> None:
    await stage.create_topics(80)


ACTIONS: dict[str, Callable[[Stage], Awaitable[None]]] = {
    "publish": publish,
    "flush": flush,
    "next_journal": next_journal,
    "read": read,
    "delete": delete,
    "create": create,
    "fold": fold,
}


# --- what is promised -----------------------------------------------------------------------------


async def run_error(stage: Stage, row: Row, error: str) -> list[str]:
    """Cause it; what is wrong."""
    promise = row.promise(error)
    output = stage.output()
    if row.action in STARTS:
        wrong = await start_with(stage, row, error)
    elif promise == "journal ends":
        wrong = await journal_ends(stage, row, error, output)
    else:
        wrong = await goes_on(stage, row, error, promise)
    wrong += output.problems()
    lines = [line for line in output.log_lines() if " INFO " not in line]
    if len(lines) > LINES_MAX:
        wrong.append(f"{len(lines)} lines in the log, the last: {lines[-1][:200]}")
    return [f"{error}: {each}" for each in wrong]


async def goes_on(stage: Stage, row: Row, error: str, promise: str) -> list[str]:
    """The process lives, and serves as before soon after the error is over."""
    # From the same state each time: what was read is in memory, a spare file needs no new one.
    stage.again()
    await stage.must_start()
    wrong = []
    rule = begin(stage, row, error)
    acting = asyncio.ensure_future(ACTIONS[row.action](stage))
    met = await end_in_time(stage, rule, error)
    if not met:
        wrong.append("the call was not made, so nothing was tried")
    if error == "EIO for ever" and promise == "tried again" and met:
        wrong += await must_say_so(stage)
    if error == "slow" and met:
        began = time.monotonic()
        await asyncio.to_thread(stage.broker.answers)
        if time.monotonic() - began > 1:
            wrong.append(f"a client is greeted after {time.monotonic() - began:.1f} s")
    await asyncio.wait([acting], timeout=4 if error == "EIO for ever" else 12)
    stage.errors.clear(rule)
    await acting
    if not stage.lives():
        return [*wrong, f"the process ended: {stage.broker.output()}"]
    await stage.send_until_served()
    if promise != "refused" and not await stage.becomes_healthy():
        wrong.append("health is not 200 again")
    wrong += await stage.read_all()
    wrong += await stage.check_topics()
    return wrong


async def must_say_so(stage: Stage) -> list[str]:
    """While nothing can be put to the disk, health says so; it may take a few tries to be sure."""
    deadline = time.monotonic() + 4
    while await stage.health() != 503:
        if time.monotonic() > deadline:
            return ["health is 200 although nothing can be put to the disk"]
        await asyncio.sleep(0.05)
    return []


async def journal_ends(stage: Stage, row: Row, error: str, output: Output) -> list[str]:
    """Writes are refused at once, reads go on, a restart brings everything back."""
    stage.again()
    await stage.must_start()
    await stage.send(1)
    rule = begin(stage, row, error)
    wrong = []
    ending = asyncio.ensure_future(end_in_time(stage, rule, error))
    await stage.send(20, stall_s=2)
    if not await ending:
        wrong.append("the call was not made, so nothing was tried")
    stage.errors.clear()
    began = time.monotonic()
    if await stage.send(1, stall_s=5):
        wrong.append("a message was acknowledged after the journal had failed")
    if time.monotonic() - began > 2:
        wrong.append(f"a send was refused only after {time.monotonic() - began:.1f} s")
    if (status := await stage.health()) != 503:
        wrong.append(f"health is {status}")
    if not output.says_the_journal_failed():
        wrong.append("the log does not say that the journal failed")
    wrong += [f"after the journal failed: {each}" for each in await stage.read_all()]
    if not stage.lives():
        wrong.append("the process ended")
    stage.broker.kill()
    await stage.must_start()
    await stage.send_until_served()
    wrong += await stage.read_all()
    wrong += await stage.check_subscription()
    return wrong


async def start_with(stage: Stage, row: Row, error: str) -> list[str]:
    """It serves, or is refused in one sentence and serves when the error is over."""
    empty = row.action == "first_start"
    stage.again(empty)
    if row.action == "clean_start":
        await stage.must_start()
        await asyncio.to_thread(stage.broker.stop)
    if row.action == "stop":
        # Journal files that nothing needs go when there is time for it, perhaps before the stop.
        rule = begin(stage, row, error) if row.kind == "journal" else -1
        await stage.must_start()
        if rule < 0:
            rule = begin(stage, row, error)
        ending = asyncio.ensure_future(end_in_time(stage, rule, error))
        status = await asyncio.to_thread(stage.broker.stop)
        wrong = [] if status == 0 else [f"the stop ended with {status}"]
    else:
        rule = begin(stage, row, error)
        ending = asyncio.ensure_future(end_in_time(stage, rule, error))
        serves, wrong = await stage.attempt_start()
        soon_over = error in ("EIO once", "EIO for a while", "slow")
        if not serves and soon_over and not empty and row.promise(error) == "start":
            wrong.append(f"refused although it was soon over: {stage.broker.output(400)}")
    if not stage.errors.hits(rule) and not await ending:
        wrong.append("the call was not made, so nothing was tried")
    ending.cancel()
    stage.errors.clear()
    if stage.broker.process is None:
        await stage.must_start()
    await stage.send_until_served()
    wrong += await stage.read_all()
    if not empty:
        wrong += await stage.check_subscription()
    return wrong


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_fault(stage: Stage, row: Row) -> None:
    async def all_errors() -> list[str]:
        wrong = []
        for error in row.errors:
            try:
                wrong += await run_error(stage, row, error)
            except AssertionError as failure:
                wrong.append(f"{error}: {failure}")
                stage.again()
        return wrong

    wrong = asyncio.run(all_errors())
    assert not wrong, "\n" + "\n".join(wrong)


# --- the table itself -----------------------------------------------------------------------------


def test_the_page_has_the_table_as_it_is() -> None:
    path = Path(__file__).resolve().parent.parent / "docs" / "reliability.md"
    page = path.read_text()
    assert fault_table.into(page) == page, "python -m torture.fault_table writes it"


def test_every_error_of_the_list_is_in_some_row() -> None:
    assert {error for row in ROWS for error in row.errors} == {*fault_table.ERRORS}
    assert len({row.name for row in ROWS}) == len(ROWS)


async def _see_all_calls(stage: Stage) -> set[tuple[str, str]]:
    """(kind, call) of everything that a broker does to its disk."""
    seen = stage.errors.rule("any", *fault_table.CALLS, "mmap")
    await stage.must_start()
    for action in (*ACTIONS.values(), publish):
        await action(stage)
    await asyncio.sleep(2)
    stage.broker.stop()
    await stage.must_start()
    assert await stage.read_all() == []
    stage.broker.stop()
    assert stage.errors.hits(seen)
    return {(fault_table.kind_of(place.path), place.call) for place in stage.errors.places()}


def _list_until(root: Path, done: threading.Event, seen: set[str]) -> None:
    """Add every path that is there at some time, directories with a slash at their end."""
    seen.add("/")
    while not done.is_set():
        for folder, directories, files in os.walk(root):
            below = Path(folder).relative_to(root)
            seen.update(f"{below / name}/" for name in directories)
            seen.update(str(below / name) for name in files)


async def _live(stage: Stage) -> None:
    """All that a broker does, from an empty directory on, a clean stop and an unclean one."""
    await stage.must_start()
    for action in ACTIONS.values():
        await action(stage)
    await asyncio.to_thread(stage.broker.stop)
    await stage.must_start()
    await publish(stage)
    stage.broker.kill()


def test_every_pattern_of_a_kind_matches_a_file_that_there_is(stage: Stage) -> None:
    stage.again(empty=True)
    done, seen = threading.Event(), set[str]()
    lister = threading.Thread(target=_list_until, args=(stage.broker.data, done, seen))
    lister.start()
    try:
        asyncio.run(_live(stage))
    finally:
        done.set()
        lister.join()
    of_none = {
        (kind, pattern)
        for kind, patterns in KINDS.items()
        for pattern in patterns.split("|")
        if not any(fnmatchcase(name, pattern.removeprefix("!")) for name in seen)
    }
    assert of_none == set()
    unseen = [kind for kind in KINDS if not any(matches(KINDS[kind], name) for name in seen)]
    assert unseen == []


@pytest.mark.parametrize("empty", [False, True])
def test_no_call_is_missing_in_the_table(stage: Stage, empty: bool) -> None:
    if empty:
        stage.again(empty=True)
    seen = asyncio.run(_see_all_calls(stage))
    in_table = {(row.kind, row.call) for row in ROWS}
    assert seen - in_table == set()
