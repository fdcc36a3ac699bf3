"""When a fuzz target is done: CPU is added up over runs, and coverage must be calm at the end."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parent / "fuzz" / "saturation.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("saturation", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["saturation"] = module
    spec.loader.exec_module(module)
    return module


saturation = load()
GOAL = saturation.Goal(cpu_seconds=100, calm_seconds=20)

# Something that talks as libFuzzer does; what it does then is put behind it.
TARGET = """
import os, signal, sys, time
def say(text): print(text, flush=True)
def stop(*_):
    say("stat::number_of_executed_units: 700")
    sys.exit(0)
signal.signal(signal.SIGUSR1, stop)
say("INFO: Seed: 7")
say("#1\\tREAD   cov: 9999 ft: 9999 corp: 1/1b")
say("#5\\tINITED cov: 40 ft: 60 corp: 5/100b exec/s: 0 rss: 70Mb")
"""
SPIN = "while True: pass\n"


def progress_of(*lines: tuple[float, str], before: object = None) -> object:
    """What is known after a run told these lines, each when it had used so much CPU."""
    progress = before or saturation.Progress()
    progress.begin("code")
    run = saturation.Run()
    for cpu_seconds, line in lines:
        run.used(cpu_seconds, progress)
        run.follow(line, progress)
    return progress


def test_a_target_is_done_when_it_had_its_cpu_and_found_no_edge_for_long_enough() -> None:
    inited = (1.0, "#5 INITED cov: 40 ft: 60 corp: 5/100b")
    new = (70.0, "#900 NEW    cov: 41 ft: 62 corp: 6/120b")
    assert not progress_of(inited, (99, "")).is_done(GOAL)
    assert progress_of(inited, (100, "")).is_done(GOAL)
    assert progress_of(inited, new, (100, "")).calm_seconds == 30
    late = (90.0, "#999 NEW    cov: 42 ft: 66 corp: 6/120b")
    assert not progress_of(inited, new, late, (100, "")).is_done(GOAL)
    assert progress_of(inited, new, late, (110, "")).is_done(GOAL)


def test_more_features_are_no_new_edge_and_no_line_before_the_corpus_is_read_counts() -> None:
    progress = progress_of(
        (1, "#1 READ   cov: 99 ft: 100 corp: 1/1b"),
        (2, "#5 INITED cov: 40 ft: 60 corp: 5/100b"),
        (50, "#77 REDUCE cov: 40 ft: 90 corp: 5/100b"),
    )
    assert (progress.edges, progress.features, progress.new_at, progress.inputs) == (40, 90, 2, 77)


def test_an_edge_counts_as_new_when_a_run_finds_it_behind_its_corpus() -> None:
    """The corpus need not bring back all edges of an earlier run: one more may be another one."""
    before = progress_of((1, "#5 INITED cov: 40 ft: 60"), (60, "#90 pulse  cov: 40 ft: 60"))
    again = progress_of(
        (1, "#6 INITED cov: 38 ft: 60"), (30, "#80 NEW    cov: 39 ft: 60"), before=before
    )
    assert (again.cpu_seconds, again.inputs, again.edges, again.new_at) == (90, 170, 40, 90)


def test_of_other_code_the_cpu_counts_and_the_calm_begins_anew() -> None:
    progress = progress_of((1, "#5 INITED cov: 40 ft: 60"), (120, "#9 pulse  cov: 40 ft: 60"))
    assert progress.is_done(GOAL)
    progress.begin("code")
    assert progress.is_done(GOAL)
    progress.begin("other code")
    assert not progress.is_done(GOAL)
    assert (progress.cpu_seconds, progress.calm_seconds, progress.edges) == (120, 0, 0)


def test_a_finding_is_left_until_a_run_has_read_it_with_the_corpus_and_goes_on() -> None:
    progress = progress_of((1, "#5 INITED cov: 40 ft: 60"), (120, ""))
    progress.is_broken = True
    assert not progress.is_done(GOAL)
    progress_of((1, "INFO: Seed: 7"), before=progress)
    assert progress.is_broken
    progress_of((1, "#6 INITED cov: 40 ft: 60"), before=progress)
    assert progress.is_done(GOAL)


def run(
    place: Path, rest: str, cpu_seconds: float, calm_seconds: float, cut: threading.Event
) -> tuple[object, object]:
    """How such a program ended, and the progress that was kept."""
    program = saturation.Program([sys.executable, "-c", TARGET + rest], dict(os.environ), "code")
    goal = saturation.Goal(cpu_seconds, calm_seconds)
    ended = saturation.saturate(program, place / "target.json", goal, cut)
    return ended, saturation.Progress.load(place / "target.json")


def test_a_program_is_ended_when_it_is_done_and_what_it_used_is_added_up(tmp_path: Path) -> None:
    ended, first = run(tmp_path, SPIN, 0.5, 0.2, threading.Event())
    assert ended.error == ""
    assert first.is_done(saturation.Goal(0.5, 0.2))
    assert (first.inputs, first.edges, first.findings) == (700, 40, 0)
    _, second = run(tmp_path, SPIN, first.cpu_seconds + 0.5, 0.2, threading.Event())
    assert second.cpu_seconds >= first.cpu_seconds + 0.5
    assert second.inputs == 1400
    # It is done: nothing runs any more.
    _, third = run(tmp_path, SPIN, 0.5, 0.2, threading.Event())
    assert third == second


@pytest.mark.parametrize(
    ("rest", "error"),
    [
        ("sys.exit(77)\n", "exit status 77"),
        ("os.kill(os.getpid(), signal.SIGSEGV)\n", "exit status -11"),
    ],
    ids=["its word", "a signal"],
)
def test_a_program_that_ends_by_itself_has_found_something(
    tmp_path: Path, rest: str, error: str
) -> None:
    for findings in (1, 2):  # it is behind the corpus, so the second is another one
        ended, progress = run(tmp_path, rest, 100, 10, threading.Event())
        assert ended.error == error
        assert "INITED cov: 40" in ended.output
        assert (progress.is_broken, progress.findings) == (True, findings)


def test_a_finding_that_the_corpus_shows_again_is_the_same(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import sys; sys.exit('assertion failed')"]
    kept = tmp_path / "target.json"
    for _ in range(2):
        ended = saturation.saturate(
            saturation.Program(program, dict(os.environ), "code"), kept, GOAL, threading.Event()
        )
        assert (ended.error, ended.output) == ("exit status 1", "assertion failed")
    assert saturation.Progress.load(kept).findings == 1


def test_what_is_cut_is_gone_and_goes_on_where_it_was(tmp_path: Path) -> None:
    cut = threading.Event()
    result: list[tuple[object, object]] = []
    rest = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n" + SPIN
    thread = threading.Thread(target=lambda: result.append(run(tmp_path, rest, 1e6, 1, cut)))
    thread.start()
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.01)
    process = int((tmp_path / "pid").read_text())
    while saturation.cpu_seconds_of(process) < 0.1:
        time.sleep(0.01)
    cut.set()
    thread.join()
    ended, progress = result[0]
    assert ended.error == ""
    assert not Path(f"/proc/{process}").exists()
    assert progress.cpu_seconds >= 0.1
    assert not progress.is_broken
    # Who comes after the cut does not begin.
    _, after = run(tmp_path, SPIN, 1e6, 1, cut)
    assert after == progress


def test_the_table_says_what_is_done() -> None:
    done = progress_of((1, "#5 INITED cov: 40 ft: 60"), (120, "#3000 pulse  cov: 40 ft: 61"))
    rows = [("done", done), ("new", saturation.Progress())]
    assert saturation.table(rows, GOAL).splitlines()[2:] == [
        "| done | 2.0 | 3,000 | 40 | 61 | 2.0 | 0 | done |",
        "| new | 0.0 | 0 | 0 | 0 | 0.0 | 0 | goes on |",
    ]


def test_the_digest_is_that_of_names_and_contents(tmp_path: Path) -> None:
    target = tmp_path / "fuzz_x.py"
    folder = tmp_path / "src"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.pyx").write_text("a")
    target.write_text("x")
    first = saturation.digest(folder, target)
    (folder / "deep" / "a.so").write_text("built")
    assert saturation.digest(folder, target) == first
    (folder / "deep" / "a.pyx").write_text("b")
    assert saturation.digest(folder, target) != first


def test_a_target_tells_the_code_that_it_runs_and_no_other() -> None:
    target = PATH.with_name("fuzz_http.py")
    run = subprocess.run(
        [sys.executable, str(target), "--code"], check=True, text=True, stdout=subprocess.PIPE
    )
    told = [Path(line) for line in run.stdout.splitlines()]
    assert all(path.exists() for path in told)
    project = PATH.parents[2]
    names = {str(path.relative_to(project)) for path in told}
    assert {
        *("tests/fuzz/fuzz_http.py", "tests/fuzz/driver.py", "src/pyxbroker/__init__.py"),
        *("src/pyxbroker/web/connection.py", "src/pyxbroker/frames.pxd"),
    } <= names
    assert not any(name.startswith("src/pyxbroker/admin/resources/") for name in names)
