"""The benchmark of REST runs, in its short form: every row of its tables has a number."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import rest


@pytest.mark.parametrize(
    ("figure", "rows"),
    [("cost", 2 * len(rest.COST)), ("turns", 8)],
)
def test_all_figures(
    figure: str, rows: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--only", "pyxbroker", "--workspace", str(tmp_path / "data"), "--figure", figure]
    arguments += ["--requests", "10", "--topics", "10", "--seconds", "0.5"]
    assert rest.main(arguments) == 0
    table = capsys.readouterr().out
    numbers = [line.split("|")[2].strip() for line in table.splitlines()[2:]]
    assert len(numbers) == rows
    assert all(float(each.replace(",", "")) >= 0 for each in numbers), table
