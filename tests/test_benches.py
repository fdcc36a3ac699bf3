"""What the benchmarks promise besides their figures."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from bench import metadata, run, spark

ROOT = Path(__file__).parent.parent


def test_the_page_names_the_goals_of_the_benchmark() -> None:
    # Rows that begin with spaces belong to the one above, and several have one name.
    goals = {
        f"{title}, {unit}": goal
        for _, _, title, unit, _, goal in run.ROWS
        if goal and not title.startswith(" ")
    }
    page = (ROOT / "docs" / "performance.md").read_text()
    table = page[page.index("| figure | pyxbroker") :].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert cells[0][-1] == "to reach"
    named = {row[0]: row[-1] for row in cells[2:] if row[0] in goals}
    assert named == {title: goals[title] for title in named}
    assert len(named) == len(goals)


def test_files_of_an_open_store_are_copied_though_one_is_renamed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "store"
    source.mkdir()
    (source / "1.changes.tmp").write_bytes(b"begun")
    copy_file = shutil.copy2

    def copytree(source: Path, target: Path) -> None:
        copytree_of_all(source, target, copy_function=copy_after_renaming)

    def copy_after_renaming(path: str, to: str) -> object:
        temporary = source / "1.changes.tmp"
        if temporary.exists():
            temporary.rename(source / "1.changes")
        return copy_file(path, to)

    copytree_of_all = shutil.copytree
    monkeypatch.setattr(metadata.shutil, "copytree", copytree)
    metadata.copy_as_killed(source, tmp_path / "copy")
    assert [each.name for each in (tmp_path / "copy").iterdir()] == ["1.changes"]


def test_the_benchmark_of_spark_says_that_pyspark_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        spark.main(["--only", "pyxbroker"])
    assert ended.value.code == 2
    assert "has no PySpark. `make .venv/.spark` installs it" in capsys.readouterr().err
