"""The benchmark of checks runs: every row of its table has a number."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import checks


@pytest.mark.slow
def test_a_short_run_has_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--only", "pyxbroker", "--rounds", "1", "--blocks", "1"]
    assert checks.main([*arguments, "--workspace", str(tmp_path)]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(rows) == len(checks.ROWS)
    assert [row[0] for row in rows if row[1] == "- |"] == []
