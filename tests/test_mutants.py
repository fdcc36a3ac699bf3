"""The tool that plants bugs: its operators do what they say, and its judge is right about a tree
whose tests are known to notice something, or not.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from mutants import reach, trees
from mutants.draw import Drawing, Mutant, draw, mutant_of, quotas
from mutants.judge import KILLED, SURVIVED, Judge, first_failure
from mutants.kept import EQUIVALENT, KEPT, OPEN, Kept, kept_for
from mutants.named import NAMED, Named, named_mutants
from mutants.operators import OPERATORS, WORDS, edits
from mutants.reach import NO_JUDGES, Reach
from mutants.results import Results, table, unlisted
from mutants.sources import Source
from mutants.trees import Run, Stopped, Tree

PYTHON = '''"""A text with 3 < 4 in it."""
LINES_MAX = 7


class Pot:
    def take(self, count: int = 2) -> bool:
        # if count > 1: this is a comment
        if count >= LINES_MAX and self.room:
            raise ValueError(f"more than {LINES_MAX}")
        self.count += count
        self.pour(count, "tea")
        log.info("poured", count=count + 1)
        return count == self.count

    async def keep(self) -> None:
        await self.file.sync()
'''
CYTHON = """cdef class Pot:
    cdef int take(self, int64_t count) except -1:
        cdef uint64_t bit = <uint64_t>1 << (count & 63)
        if self.version < count:
            return <int>(count - 1)
        return 0
"""
C = """#include <x.h>
#define ROOM 3 /* if (a < b) */
enum { POTS_MAX = 16 };
static int pot_take(pot *p, int count) {
    int room = p->room;
    if (count > POTS_MAX)
        return -EINVAL;
    for (int i = 0; i < count; i++)
        pot_pour(p, i);
    p->count += count;
    p->shape = (shape){.size = count};
    p->error = p->disk->fdatasync(p->fd);
    pot_close(p, room);
    return p->error;
}
"""


def broken(path: str, text: str) -> dict[str, set[tuple[str, str]]]:
    """By operator: what the changed lines are, and what becomes of them."""
    result: dict[str, set[tuple[str, str]]] = {}
    source = Source(path, text)
    for edit in edits(source):
        mutant = mutant_of(source, edit)
        change = (mutant.before.strip(), mutant.after.strip())
        result.setdefault(edit.operator, set()).add(change)
    return result


def test_python_is_broken_by_every_operator_that_applies() -> None:
    found = broken("pot.py", PYTHON)
    condition = "if count >= LINES_MAX and self.room:"
    assert found == {
        "off by one": {
            ("LINES_MAX = 7", "LINES_MAX = (7 + 1)"),
            ("def take(self, count: int = 2) -> bool:",
             "def take(self, count: int = (2 + 1)) -> bool:"),
            (condition, "if count > LINES_MAX and self.room:"),
        },
        "wrong branch": {
            (condition, "if not (count >= LINES_MAX and self.room):"),
            ("return count == self.count", "return count != self.count"),
        },
        "wrong connective": {(condition, "if count >= LINES_MAX or self.room:")},
        "always": {(condition, "if True or (count >= LINES_MAX and self.room):")},
        "removed limit": {(condition, "if False and (count >= LINES_MAX and self.room):")},
        "dropped refusal": {('raise ValueError(f"more than {LINES_MAX}")', "pass")},
        "dropped assignment": {("self.count += count", "pass")},
        "dropped call": {
            ('self.pour(count, "tea")', "pass"),
            ("await self.file.sync()", "pass"),
        },
        "dropped sync": {("await self.file.sync()", "None")},
        "swapped arguments": {('self.pour(count, "tea")', 'self.pour("tea", count)')},
        "swapped order": {
            ('self.count += count\n        self.pour(count, "tea")',
             'self.pour(count, "tea")\n        self.count += count'),
        },
        "replaced return": {("return count == self.count", "return not (count == self.count)")},
    }  # fmt: skip


def test_casts_of_cython_are_no_comparisons() -> None:
    found = broken("pot.pyx", CYTHON)
    assert found["off by one"] == {
        ("cdef int take(self, int64_t count) except -1:",
         "cdef int take(self, int64_t count) except -(1 + 1):"),
        ("cdef uint64_t bit = <uint64_t>1 << (count & 63)",
         "cdef uint64_t bit = <uint64_t>(1 + 1) << (count & 63)"),
        ("cdef uint64_t bit = <uint64_t>1 << (count & 63)",
         "cdef uint64_t bit = <uint64_t>1 << (count & (63 + 1))"),
        ("if self.version < count:", "if self.version <= count:"),
        ("return <int>(count - 1)", "return <int>(count - (1 + 1))"),
        ("return 0", "return (0 + 1)"),
    }  # fmt: skip
    assert found["ignored version"] == {
        ("if self.version < count:", "if False and (self.version < count):")
    }
    assert found["replaced return"] == {
        ("return <int>(count - 1)", "return 0"),
        ("return 0", "return -1"),
    }


def test_c_is_broken_by_every_operator_that_applies() -> None:
    found = broken("pot.c", C)
    assert found["off by one"] == {
        ("enum { POTS_MAX = 16 };", "enum { POTS_MAX = (16 + 1) };"),
        ("if (count > POTS_MAX)", "if (count >= POTS_MAX)"),
        ("for (int i = 0; i < count; i++)", "for (int i = (0 + 1); i < count; i++)"),
        ("for (int i = 0; i < count; i++)", "for (int i = 0; i <= count; i++)"),
    }
    assert found["removed limit"] == {("if (count > POTS_MAX)", "if (0 && (count > POTS_MAX))")}
    assert found["dropped call"] == {
        ("pot_pour(p, i);", "(void)0;"),
        ("pot_close(p, room);", "(void)0;"),
    }
    assert found["dropped sync"] == {("p->error = p->disk->fdatasync(p->fd);", "p->error = 0;")}
    assert found["dropped assignment"] == {
        ("p->count += count;", "(void)0;"),
        ("p->shape = (shape){.size = count};", "(void)0;"),
        ("p->error = p->disk->fdatasync(p->fd);", "(void)0;"),
    }
    assert ("return -EINVAL;", "return 0;") in found["replaced return"]
    # The statement behind `for` is its body, and does not change places with what follows.
    assert all("pot_pour" not in before for before, _ in found["swapped order"])


def test_a_mutant_knows_its_function() -> None:
    for path, text in (("pot.pyx", CYTHON), ("pot.c", C)):
        inside = {edit.function for edit in edits(Source(path, text))} - {""}
        assert inside <= {"Pot", "Pot.take", "pot_take"}
        assert inside & {"Pot.take", "pot_take"}
    source = Source("pot.py", "@a\n@b\ndef f():\n    return [\n        lambda: 1]\n\n\nx = 1\n")
    assert [source.function_at(line) for line in (1, 3, 4, 5, 8)] == ["f", "f", "f", "f", ""]
    waiting = "async def f():\n async with turn(1):\n  async for a in b(2):\n   c(3)\n"
    assert {edit.function for edit in edits(Source("pot.py", waiting))} == {"f"}


def test_a_line_that_comes_again_is_another_mutant_however_deep_it_stands() -> None:
    for depths in ((1, 2), (2, 1), (1, 1), (2, 1, 3)):
        lines = [f"{'    ' * depth}if size{number} > 1:\n" for number, depth in enumerate(depths)]
        refusals = [f"{'    ' * depth}    raise MemoryError(1)\n" for depth in depths]
        body = "".join(f"{line}{refusal}" for line, refusal in zip(lines, refusals, strict=True))
        source = Source("pot.pyx", f"cdef int f() except -1:\n{body}")
        dropped = [each for each in edits(source) if each.operator == "dropped refusal"]
        assert len({mutant_of(source, each).id for each in dropped}) == len(depths)


def test_every_file_of_ours_is_read_and_every_operator_has_a_place() -> None:
    root = Path(__file__).parent.parent
    drawing = Drawing(root, 5, 400)
    mutants = []
    while (mutant := drawing.next()) is not None:
        mutants.append(mutant)
    assert {each.operator for each in mutants} == set(OPERATORS)
    count = {name: sum(each.language == name for each in mutants) for name in WORDS}
    assert count == quotas(400) == {"python": 160, "cython": 120, "c": 120}
    assert len({each.id for each in mutants}) == 400


def test_the_seed_decides_what_is_drawn() -> None:
    def ids(seed: str) -> list[str]:
        return [each.id for each in draw([Source("pot.py", PYTHON)], seed)]

    assert ids("1") == ids("1") != ids("2")
    assert sorted(ids("1")) == sorted(ids("2"))
    # An id stays when lines before it are added.
    moved = draw([Source("pot.py", PYTHON.replace("LINES", "\n\nLINES", 1))], "1")
    assert set(ids("1")) == {each.id for each in moved}


# --- the judge ----------------------------------------------------------------------------------

TOY = """import time


def is_full(count):
    return count >= 10


def unseen():
    return 1


def at_the_door():
    return "open"


def to_a_client(count):
    return count % 7


LIMIT = 3
"""
TOY_TESTS = """import os, subprocess, sys
from pathlib import Path
from pyxbroker.toy import LIMIT, is_full


def test_far_from_full():
    assert not is_full(3)


def test_full():
    assert is_full(10)


def test_by_chance():
    path = Path("chance")
    if is_full(9) and not path.exists():
        path.write_text("")
        raise AssertionError


def test_door():
    text = "from pyxbroker.toy import at_the_door; print(at_the_door())"
    assert subprocess.check_output([sys.executable, "-c", text], text=True) == "open\\n"


def test_limit():
    assert LIMIT == 3
"""


TOY_CLIENTS = """import subprocess, sys

import pytest


@pytest.fixture(scope="module")
def answer():
    text = "from pyxbroker.toy import to_a_client; print(to_a_client(15))"
    return subprocess.check_output([sys.executable, "-c", text], text=True)


def test_an_answer(answer):
    assert answer == "1\\n"


@pytest.mark.spark
def test_spark():
    raise AssertionError
"""
TOY_SETTINGS = """[pytest]
addopts = -p no:cacheprovider --strict-markers
markers =
    slow
    minutes
    spark
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tree, Reach]:
    root = tmp_path_factory.mktemp("toy")
    place = root / "tree"
    here = Path(__file__).parent
    for name, text in {
        "src/pyxbroker/__init__.py": "",
        "src/pyxbroker/toy.py": TOY,
        "tests/test_toy.py": TOY_TESTS,
        "tests/test_other.py": "def test_nothing():\n    pass\n",
        "compat_tests/test_clients.py": TOY_CLIENTS,
        "compat_tests/test_spark.py": "import pytest\n\npytestmark = pytest.mark.spark\n",
        "pytest.ini": TOY_SETTINGS,
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (place / "tests" / "mutants").symlink_to(here / "mutants")
    tree = Tree(place)
    reach = Reach(root / "reach.json")
    reach.record(tree, 1)
    return tree, reach


def of_toy(tree: Tree, old: str, new: str) -> Mutant:
    (found,) = named_mutants(tree.place, (Named("x", "src/pyxbroker/toy.py", old, new),))
    return found


def test_the_record_knows_who_calls_a_function(toy: tuple[Tree, Reach]) -> None:
    tree, reach = toy
    names = ("test_by_chance", "test_far_from_full", "test_full")
    full = [f"tests/test_toy.py::{name}" for name in names]
    assert reach.near(of_toy(tree, "count >= 10", "count > 10")) == full
    # A process is that of any test of its file.
    assert reach.near(of_toy(tree, '"open"', '"shut"')) == ["tests/test_toy.py"]
    assert reach.near(of_toy(tree, "return 1\n", "return 2\n")) == []
    # What a module has is used by who imports it: the whole suite may notice.
    module = of_toy(tree, "LIMIT = 3", "LIMIT = 4")
    assert not reach.is_exact(module)
    assert reach.rest(reach.near(module)) == ["tests/test_other.py"]
    assert reach.failing == []


def test_the_record_knows_which_clients_reach_a_function(toy: tuple[Tree, Reach]) -> None:
    tree, reach = toy
    served = of_toy(tree, "count % 7", "count % 8")
    assert (reach.near(served), reach.clients(served)) == ([], ["compat_tests/test_clients.py"])
    assert reach.clients(of_toy(tree, '"open"', '"shut"')) == []
    assert reach.clients(of_toy(tree, "LIMIT = 3", "LIMIT = 4")) == ["compat_tests/test_clients.py"]


def test_clients_are_asked_for_so_long_the_quickest_first_and_one_in_any_case(
    tmp_path: Path,
) -> None:
    assert reach.CLIENT_SECONDS_MAX == 120.0
    path = tmp_path / "reach.json"
    python, cython = (
        next(each for each in draw([Source(file, text)], "1") if each.function == "Pot.take")
        for file, text in (
            ("src/pyxbroker/pot.py", PYTHON),
            ("src/pyxbroker/delayed_index.pyx", CYTHON),
        )
    )

    def asked(mutant: Mutant, brew_seconds: float) -> list[str]:
        seconds = {"brew": brew_seconds, "sip": 20.0, "pour": 30.0, "delayed": 999.0, "idle": 1.0}
        record = {}
        for name, each in seconds.items():
            file = f"compat_tests/test_{name}.py"
            record[file] = {
                "tests": {f"{file}::test_it": {"seconds": each, "passed": True, "calls": []}},
                "process": [] if name == "idle" else ["src/pyxbroker/pot.py::Pot.take"],
            }
        path.write_text(json.dumps(record))
        return [each.removeprefix("compat_tests/test_") for each in Reach(path).clients(mutant)]

    assert asked(python, 70.0) == ["sip.py", "pour.py", "brew.py"]
    assert asked(python, 70.1) == ["sip.py", "pour.py"]
    assert asked(cython, 70.0) == ["delayed.py"]


@pytest.mark.parametrize(
    ("old", "new", "what", "by", "how"),
    [
        ("count >= 10", "count > 10", KILLED, "tests/test_toy.py::test_full", ""),
        ('"open"', '"shut"', KILLED, "tests/test_toy.py::test_door", ""),
        ("return 1\n", "return 2\n", SURVIVED, "", ""),
        # Only one test notices, and only once: it is a test that fails now and then.
        ("count >= 10", "count >= 9", SURVIVED, "", ""),
        ("count % 7", "count % 8", KILLED, "compat_tests/test_clients.py::test_an_answer", ""),
        ("LIMIT = 3", "LIMIT = 4", KILLED, "tests/test_toy.py::test_limit", ""),
        ("LIMIT = 3", "LIMIT = 1 / 0", KILLED, "tests/test_toy.py", "not imported"),
    ],
    ids=["noticed", "in a process", "not called", "by chance", "client", "module", "no import"],
)
def test_the_judge_says_who_noticed(
    toy: tuple[Tree, Reach], old: str, new: str, what: str, by: str, how: str
) -> None:
    tree, reach = toy
    outcome = Judge(tree, reach).judge(of_toy(tree, old, new))
    assert (outcome.what, outcome.by, outcome.how) == (what, by, how)
    assert (tree.place / "src/pyxbroker/toy.py").read_text() == TOY


def test_what_never_ends_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    program = "sleep 600 & echo $!; setsid sleep 601 & echo $!; wait"
    run = tree.run(["sh", "-c", program], 1.0)
    assert run.status is None
    for process in run.output.split():
        status = Path(f"/proc/{process}/status")
        assert not status.exists() or "zombie" in status.read_text()


def test_a_run_that_is_cut_says_nothing_about_the_mutant(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    timer = threading.Timer(0.5, tree.stop)
    timer.start()
    with pytest.raises(Stopped):
        tree.run(["sleep", "600"], 60.0)
    timer.join()


def test_what_a_run_has_started_is_gone_when_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path)
    monkeypatch.setattr(trees, "POLL_SECONDS", 0.05)
    started = tmp_path / "pid"

    def interrupt(path: Path, *_: object, **__: object) -> str:
        if started.exists() and started.stat().st_size:
            raise KeyboardInterrupt
        return ""

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "read_text", interrupt)
        tree.run(["sh", "-c", f"echo $$ > {started}; exec sleep 600"], 60.0, until="never")
    assert not Path(f"/proc/{started.read_text().strip()}").exists()


def test_the_first_failure_is_found_in_what_pytest_says() -> None:
    lines = "tests/test_a.py::test_one PASSED  [ 50%]\ntests/test_a.py::test_two[x y] "
    failed = Run(1, lines + "FAILED   [100%]\n", 1.0)
    assert first_failure(failed) == ("tests/test_a.py::test_two[x y]", "")
    assert first_failure(Run(None, lines, 1.0)) == (
        "tests/test_a.py::test_two[x y]",
        "time is over",
    )
    lines += "Fatal Python error: Segmentation fault\n\nCurrent thread\n"
    assert first_failure(Run(-11, lines, 1.0)) == ("tests/test_a.py::test_two[x y]", "signal 11")
    with pytest.raises(RuntimeError, match="ended with 4"):
        first_failure(Run(4, "usage", 1.0))


# --- what is told -------------------------------------------------------------------------------


def test_each_compiled_module_has_tests_that_are_near() -> None:
    root = Path(__file__).parent.parent
    modules = {path.stem for path in (root / "src" / "pyxbroker").glob("*.pyx")}
    assert modules == set(reach.CYTHON)
    files = {f"test_{word}.py" for row in (*reach.CYTHON.values(), reach.C) for word in row.split()}
    assert {each for each in files if not (root / "tests" / each).exists()} == set()
    assert files.isdisjoint(NO_JUDGES)


def test_each_compiled_module_has_clients_that_reach_it() -> None:
    root = Path(__file__).parent.parent
    assert set(reach.CYTHON) == set(reach.CYTHON_CLIENTS)
    words = [*reach.CYTHON_CLIENTS.values(), reach.C_CLIENTS]
    files = [f"test_{word}.py" for row in words for word in row.split()]
    assert [each for each in files if not (root / "compat_tests" / each).is_file()] == []
    of_spark = [each for each, row in reach.CYTHON_CLIENTS.items() if not row]
    assert of_spark == ["avro_columns", "entry_columns"]


def test_only_survivors_without_a_reason_fail_a_run(tmp_path: Path) -> None:
    from mutants.judge import Outcome

    source = Source("pot.py", PYTHON)
    noticed, missed, listed, *_ = draw([source], "1")
    results = Results(tmp_path / "seed-1.json", tmp_path)
    kept = Kept(OPEN, listed.path, listed.function, listed.before, listed.after, "too rare")
    assert kept_for(listed, [kept]) == kept and kept_for(missed, [kept]) is None
    results.add(noticed, Outcome(KILLED, "tests/test_pot.py::test_pour"), None)
    results.add(listed, Outcome(SURVIVED), kept)
    assert unlisted(results.rows()) == []
    results.add(missed, Outcome(SURVIVED, stages="near, all"), None)
    assert [each["id"] for each in unlisted(results.rows())] == [missed.id]
    assert table(results.rows()).endswith("mutants: 1 of 3 caught, 33.3 %")
    # A run that was cut goes on: what is known is not judged again, survivors only when asked.
    later = Results(tmp_path / "seed-1.json", tmp_path)
    assert later.known(noticed, again=True) == KILLED
    assert later.known(missed, again=True) is None
    assert later.known(missed, again=False) == SURVIVED
    assert [each["id"] for each in unlisted(later.rows())] == [missed.id]
    # It was listed meanwhile.
    reason = Kept(OPEN, missed.path, missed.function, missed.before, missed.after, "too rare")
    later.known(missed, again=False, kept=reason)
    assert unlisted(later.rows()) == []


def test_what_is_known_counts_for_the_tests_that_judged_it(tmp_path: Path) -> None:
    from mutants.judge import Outcome

    caught, in_c, missed, *_ = draw([Source("pot.py", PYTHON)], "1")
    tests, native = tmp_path / "tests" / "test_pot.py", tmp_path / "tests" / "native" / "pot.c"
    native.parent.mkdir(parents=True)
    tests.write_text("def test_pour(): ...")
    native.write_text("int main(void);")
    near = Results(tmp_path / "seed-1.json", tmp_path, only_near=True)
    near.add(caught, Outcome(KILLED, "tests/test_pot.py::test_pour[a/b.py]"), None)
    near.add(in_c, Outcome(KILLED, "tests/native: pot"), None)
    near.add(missed, Outcome(SURVIVED, stages="near"), None)

    def known(only_near: bool) -> list[str | None]:
        results = Results(tmp_path / "seed-1.json", tmp_path, only_near)
        return [results.known(each, again=False) for each in (caught, in_c, missed)]

    assert known(only_near=True) == [KILLED, KILLED, SURVIVED]
    assert known(only_near=False) == [KILLED, KILLED, None]
    tests.write_text("")
    assert known(only_near=True) == [None, KILLED, SURVIVED]
    native.write_text("")
    assert known(only_near=True) == [None, None, SURVIVED]
    tests.unlink()
    assert known(only_near=True) == [None, None, SURVIVED]


def test_each_compiled_module_has_tests_under_asan() -> None:
    """`make asanshort`, which is a part of `make test`."""
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    listed = set(makefile.split("COMPILED_TESTS :=")[1].split(".py,")[1].split("))")[0].split())
    assert [each for each, tests in reach.CYTHON.items() if not listed & set(tests.split())] == []
    assert [
        each for each in listed if not (Path(__file__).parent / f"test_{each}.py").is_file()
    ] == ["\\"]


def test_what_is_equivalent_does_not_count(tmp_path: Path) -> None:
    from mutants.judge import Outcome

    mutant = next(draw([Source("pot.py", PYTHON)], "1"))
    kept = Kept(EQUIVALENT, mutant.path, mutant.function, mutant.before, mutant.after, "the same")
    results = Results(tmp_path / "seed-1.json", tmp_path)
    results.add(mutant, Outcome(SURVIVED), kept)
    assert results.rows() == []


def test_what_is_listed_is_there() -> None:
    """An entry whose line has changed says nothing any more."""
    root = Path(__file__).parent.parent
    for kept in KEPT:
        text = " ".join((root / kept.path).read_text().split())
        assert " ".join(kept.before.split()) in text, kept
        assert kept.reason and kept.kind in (EQUIVALENT, OPEN)
    assert len(list(named_mutants(root))) == len(NAMED)
