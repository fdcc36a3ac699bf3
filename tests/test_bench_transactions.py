"""The benchmark of transactions runs: every row of its table has a number."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import transactions


@pytest.mark.slow
def test_a_short_run_has_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--only", "pyxbroker", "--seconds", "0.3", "--aborted", "20", "--open", "20"]
    assert transactions.main([*arguments, "--workspace", str(tmp_path)]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(rows) == len(transactions.ROWS)
    assert [row[0] for row in rows if row[1] == "- |"] == []
