"""The benchmark of policies runs, in its short form: every row of its table has a number."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import policies


@pytest.mark.slow
def test_the_short_form_has_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--only", "pyxbroker", "--short", "--workspace", str(tmp_path)]
    assert policies.main(arguments) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(rows) == len(policies.ROWS)
    assert [row[0] for row in rows if row[1] == "- |"] == []
